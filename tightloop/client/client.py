"""Typed client that starts, watches and steers episodes and plans."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, cast

from temporalio.client import Interceptor
from temporalio.converter import DataConverter

from tightloop.client.calls import UPDATE_TIMEOUT, checked_json
from tightloop.client.connection import connect as open_connection
from tightloop.client.encryption import data_converter as converter_of
from tightloop.client.execution import REQUEST, Kind, memo_of
from tightloop.client.setup import refuse_other_keys, refuse_unreadable_start
from tightloop.client.status import choose_id, describe_run
from tightloop.client.viewer import Viewer
from tightloop.errors import ServiceUnavailableError, WrongStateError
from tightloop.host import load_settings
from tightloop.host.identity import home_queue
from tightloop.run.core import EPISODE_WORKFLOW_TYPE, PLAN_WORKFLOW_TYPE
from tightloop.value.arguments import Hint, checks_arguments

if TYPE_CHECKING:
    from tightloop.client import (
        Check,
        EpisodeRequest,
        ExecutorAmendment,
        HiddenScenarios,
        LoopRequest,
        PlanRequest,
        Settings,
        SyncTightloopClient,
    )
    from tightloop.episode.checkpoint import RestoreTarget
    from tightloop.episode.control import EpisodeInput
    from tightloop.loop.model import LoopInput
    from tightloop.plan.progress import PlanInput


P = ParamSpec("P")
T = TypeVar("T")

# More threads would compete for the interpreter lock and delay everything else.
_ONE_AT_A_TIME = ThreadPoolExecutor(1, "plan-checking")


async def check_in_thread(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a CPU-bound check in a thread and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_ONE_AT_A_TIME, partial(check, *args, **kwargs))


Address = Annotated[
    str | None,
    Hint(
        "Settings() reads neither files nor the environment. To connect with the current settings, omit the "
        "address. To use other settings, call connect(settings=...)"
    ),
]
_MAKE_ONE = Hint(
    'Create one: EpisodeRequest(goal="...", workspace="/home/me/project", definition_of_done=(Check(run="pytest"),))'
)
LOOK_SECONDS = 3.0
"""Maximum time to wait for a run's status before sending a message that does not need a worker."""
REPLAN_TIMEOUT = timedelta(minutes=15)
"""Timeout of `replan`, which includes the time that a planner needs to write the revision."""


@checks_arguments
class TightloopClient(Viewer):
    """Client for starting, watching and steering episodes and plans.

    Methods determine the kind of a run from its id. Every call has a time limit.

    In addition to the errors documented below, each method raises `EpisodeNotFoundError` if the id is
    unknown and `SettingsError` if Temporal denies access. Methods that take an `episode_id` or a
    `plan_id` raise `InvalidRequestError` if the id belongs to the other kind.

    Methods raise `ServiceUnavailableError` (retryable) if Temporal does not respond. Methods that need a
    response from the workflow also raise this error if no worker is available. These methods are
    `timeline`, `request`, `checkpoints`, `steps`, `status` for an open run, and all methods that return
    the workflow's reply.
    """

    @classmethod
    async def connect(
        cls,
        target: Address = None,
        *,
        namespace: str | None = None,
        settings: "Settings | None" = None,
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        compare_keys: bool = True,
    ) -> "TightloopClient":
        """Connect with the same settings files and environment variables as the command line.

        Args:
            target: Temporal's host and port. None means the address in the settings.
            namespace: Temporal namespace. None means the namespace in the settings.
            settings: settings to use instead of files and environment variables. `Settings()` contains the
                defaults.
            data_converter: data converter, which must match the workers' converter. None means the converter
                configured in the settings.
            interceptors: additional client interceptors, for example for tracing. See
                docs/operate/telemetry.md.
            compare_keys: refuse to connect if the workers encrypt with keys that this client does not have.
                This can be disabled for clients that only list or start runs, because `start` always compares
                the keys.

        Raises:
            ServiceUnavailableError: Temporal does not respond within 5 s (retryable).
            SettingsError: a setting is invalid, the payload keys cannot be read or differ from the workers'
                keys, or the namespace does not exist.
        """
        client_settings = (settings or load_settings()).at(target, namespace)
        converter = data_converter or converter_of(client_settings)
        opened = cls(await open_connection(client_settings, converter, interceptors), client_settings)
        await opened._calls.check_namespace()
        if compare_keys:
            await refuse_other_keys(opened._calls, client_settings.temporal.task_queue)
        return opened

    @classmethod
    def sync(
        cls,
        target: Address = None,
        *,
        namespace: str | None = None,
        settings: "Settings | None" = None,
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> "SyncTightloopClient":
        """Same as `connect`, but return a blocking client; see `SyncTightloopClient`."""
        # Lazy import: the module of the synchronous client imports this one.
        from tightloop.client import SyncTightloopClient

        return SyncTightloopClient(
            lambda: cls.connect(
                target,
                namespace=namespace,
                settings=settings,
                data_converter=data_converter,
                interceptors=interceptors,
            )
        )

    # -- start ----------------------------------------------------------------------------------

    async def start(
        self,
        request: "Annotated[EpisodeRequest | PlanRequest, _MAKE_ONE]",
        *,
        new_id: str | None = None,
        replace: bool = False,
        request_id: str = "",
    ) -> str:
        """Start an episode or a plan and return its id.

        Omitted fields of the request are filled in from the settings.

        Args:
            request: what to run.
            new_id: id to use; if None, an id is generated.
            replace: reuse the id of a closed run. Its checkpoints and timeline are kept. A plan also keeps
                the results of steps whose inputs have not changed.
            request_id: idempotency key; requires `new_id`. Repeating a request with the same key does not
                start another run.

        Raises:
            InvalidRequestError: the request or id is invalid. The error is a `PlanError` if the plan's text
                is invalid.
            IdTakenError: a run of another request has this id. If the run is closed, the error is raised only
                without `replace`. The message names the run.
            SettingsError: the namespace lacks tightloop's search attributes, or its workers encrypt payloads
                but this client would send plain text.
        """
        from tightloop.episode.control import EpisodeInput
        from tightloop.episode.model import EpisodeRequest

        # Digest of the request before defaults are applied: settings may change before it is repeated.
        origin = _origin(request_id, request, replace)
        if isinstance(request, EpisodeRequest):
            full_request = self._settings.with_defaults(request)
            episode = EpisodeInput.of(full_request, replace=replace)
            return await self._start(choose_id(Kind.EPISODE, new_id), episode, origin)
        # Lazy import: it loads everything that runs plans, which clients of episodes do not need.
        from tightloop.plan.progress import PlanInput

        plan = self._settings.with_defaults(request)
        return await self._start(choose_id(Kind.PLAN, new_id), PlanInput.of(plan, replace=replace), origin)

    async def plan_project(self, request: "LoopRequest", *, new_id: str | None = None, request_id: str = "") -> str:
        """Inspect a project, create a plan for it and return the plan's id. Call `dispatch` to start the tasks.

        Args:
            request: what to plan. Omitted fields are filled in from the settings.
            new_id: id to use; if None, an id of the form `plan_<uuid>` is generated.
            request_id: idempotency key, as in `start`.

        Raises:
            InvalidRequestError: the request or id is invalid.
            IdTakenError: the id is already in use. The message names the run that uses it.
            SettingsError: see `start`.
        """
        from tightloop.loop.model import LoopInput

        origin = _origin(request_id, request)
        loop_input = LoopInput.of(self._settings.with_defaults(request))
        return await self._start(choose_id(Kind.LOOP, new_id), loop_input, origin)

    async def _start(self, workflow_id: str, start: "EpisodeInput | PlanInput | LoopInput", origin: str = "") -> str:
        # Checked here, because an error of the workflow would only show in its result.
        start.check()
        if start.workflow_type == EPISODE_WORKFLOW_TYPE:
            from tightloop.episode.exit_status import refuse_masked

            refuse_masked(cast("EpisodeInput", start).definition_of_done)
        if start.workflow_type == PLAN_WORKFLOW_TYPE and (plan := cast("PlanInput", start)).source:
            # Lazy import: it loads a shell parser, which is slow to import.
            from tightloop.plan.validation import check_source

            await check_in_thread(check_source, plan.source, tuple(plan.inputs))
        queue = self._settings.temporal.task_queue
        await refuse_unreadable_start(self._calls, queue)
        if not start.queues.home and await self._is_home_of(start.workspace):
            start = start.evolve(queues=start.queues.evolve(home=home_queue(self._settings)))
        await self._calls.start(
            workflow_id,
            start.workflow_type,
            start,
            task_queue=queue,
            memo=memo_of(start) | ({REQUEST: origin} if origin else {}),
            replace=start.goes_on,
        )
        return workflow_id

    async def _is_home_of(self, workspace: str) -> bool:
        """Return whether a worker on this host can open a workspace.

        The worker must use the same state home. Without this check, a worker on another host might open a
        different folder with the same path.
        """
        if not await asyncio.to_thread(os.path.isdir, workspace):
            return False
        return bool(await self.pollers(home_queue(self._settings)))

    # -- steer ----------------------------------------------------------------------------------

    async def pause(self, workflow_id: str, reason: str = "", *, by: str = "operator") -> None:
        """Pause a run at the next safe point. Idempotent.

        An episode pauses between two steps. A plan pauses before it starts new steps.

        Raises:
            InvalidRequestError: the run is closed.
        """
        # A signal, not an update: Temporal accepts it while no worker runs.
        await self._calls.signal(workflow_id, "pause", {"reason": reason, "by": by})

    async def resume(
        self, workflow_id: str, *, note: str = "", checkpoint_id: str | None = None, by: str = "operator"
    ) -> None:
        """Resume a paused run. An episode can also resume from a checkpoint.

        Raises:
            WrongStateError: the run is closed, or one of its questions needs a decision. Only a worker knows
                the questions. If no worker responds, the message is sent, and the timeline explains why the
                run stays paused. A note is always sent.
            InvalidRequestError: the checkpoint does not exist.
        """
        arguments = {"note": note, "by": by}
        if checkpoint_id is None and not note:
            await self._refuse_undecided(workflow_id)
        if checkpoint_id is not None:
            target = await self._target(workflow_id, checkpoint_id, note, by)
            arguments = {"checkpoint_id": target.checkpoint_id, "reason": note, "by": by}
        await self._calls.signal(workflow_id, "resume", arguments)

    async def _refuse_undecided(self, workflow_id: str) -> None:
        """Raise `WrongStateError` if a plain `resume` cannot answer any of the run's questions."""
        with contextlib.suppress(TimeoutError, ServiceUnavailableError):
            async with asyncio.timeout(LOOK_SECONDS):
                status = await self.status(workflow_id)
            if status.list_status != "paused" or any(question.default for question in status.questions):
                return
            first = status.questions[0]
            raise WrongStateError(
                f"{workflow_id} cannot continue without a decision: {first.id or first.title}. "
                f"Answer with one of: {', '.join(first.names)}",
                "paused",
                ("answer",),
            )

    async def cancel(self, workflow_id: str, reason: str = "", *, by: str = "operator") -> None:
        """Cancel an episode or a plan permanently.

        An episode leaves its files unchanged. A plan runs the compensation of each step that defines one.

        Raises:
            InvalidRequestError: the run is closed.
        """
        await self._calls.signal(workflow_id, "cancel", {"reason": reason, "by": by})

    async def answer(
        self,
        workflow_id: str,
        option: str,
        text: str = "",
        *,
        question: str = "",
        by: str = "operator",
        message_id: str = "",
    ) -> str:
        """Answer a question by choosing one of its options, and return the workflow's reply.

        Args:
            workflow_id: id of the episode or plan that asked.
            option: name of the chosen option.
            text: explanation, report, or input that the option needs, such as a check's command.
            question: id of the question, or of its step or window. Optional if only one open question has
                this option.
            by: name of the author.
            message_id: idempotency key. Repeating a call with the same key has no further effect and returns
                the first reply.

        Raises:
            InvalidRequestError: the question or option does not exist, the check to add can never fail, or
                the run is closed.
        """
        from tightloop.episode.decisions import ADD

        if option.strip().lower() == ADD:
            from tightloop.episode.check import Check
            from tightloop.episode.exit_status import refuse_masked

            # Here and not in the workflow, because reading a shell command loads a C library.
            refuse_masked((Check(run=text),))
        arguments = {"question": question, "option": option, "text": text, "by": by}
        return await self._calls.update(workflow_id, "answer", arguments, message_id=message_id)

    async def respond(
        self, episode_id: str, text: str, *, by: str = "operator", resumes: bool = True, message_id: str = ""
    ) -> str:
        """Send a message to an episode's planner and return the workflow's reply.

        Args:
            episode_id: id of the episode.
            text: message for the planner. It never counts as the answer to a question.
            by: name of the author.
            resumes: also end a pause that does not need a decision. The planner then reads the message before
                the episode ends.
            message_id: idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: the text is empty, or the episode is closed.
        """
        arguments = {"text": text, "by": by} | ({} if resumes else {"resumes": False})
        return await self._send_update(episode_id, Kind.EPISODE, "respond", arguments, message_id=message_id)

    async def top_up(self, /, workflow_id: str, *, by: str = "operator", message_id: str = "", **amounts: float) -> str:
        """Raise a run's budget and return the workflow's reply.

        Args:
            workflow_id: id of the episode or plan.
            by: name of the author.
            message_id: idempotency key, as in `answer`.
            amounts: amounts to add, as fields of `TopUp` (episode) or `PlanTopUp` (plan), such as `iterations`,
                `attempts`, `tokens`, `cost_usd` and `wall_minutes`. Zeros are ignored.

        Raises:
            InvalidRequestError: an amount is negative or does not apply to this kind of run, all amounts are zero, or
                the run is closed.
        """
        arguments = {"by": by, **{name: more for name, more in amounts.items() if more}}
        return await self._calls.update(workflow_id, "top_up", arguments, message_id=message_id)

    async def amend(
        self,
        episode_id: str,
        *,
        goal: str = "",
        definition_of_done: "Sequence[str | Check]" = (),
        scenarios: "HiddenScenarios | None" = None,
        no_drafts: bool = False,
        executor: "ExecutorAmendment | str | None" = None,
        planner: str = "",
        by: str = "operator",
        message_id: str = "",
    ) -> str:
        """Change an episode's goal, checks, scenarios, executor or planner. Return the workflow's reply.

        `message_id` is an idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: the call changes nothing, or the episode is closed.
        """
        from tightloop.episode.control import read_amendment
        from tightloop.episode.exit_status import refuse_masked

        arguments: dict[str, Any] = {
            "goal": goal,
            "definition_of_done": definition_of_done,
            "planner": planner,
            "no_drafts": no_drafts,
            "by": by,
        }
        arguments |= {"scenarios": scenarios} if scenarios is not None else {}
        amendment = read_amendment(arguments | ({"executor": executor} if executor else {}))
        refuse_masked(amendment.definition_of_done)
        changes = amendment.model_dump(mode="json")
        return await self._send_update(episode_id, Kind.EPISODE, "amend_goal", changes, message_id=message_id)

    async def restore(
        self, episode_id: str, checkpoint_id: str, *, reason: str = "", by: str = "operator", message_id: str = ""
    ) -> str:
        """Restore the state and files of a checkpoint and return a summary.

        A closed episode is reopened. `message_id` is an idempotency key, as in `answer`, but only while the
        episode is open.

        Raises:
            InvalidRequestError: the checkpoint does not exist. The message lists the existing checkpoints.
        """
        from tightloop.episode.control import EpisodeInput
        from tightloop.episode.model import EpisodeRequest, EpisodeStatus

        execution = await describe_run(self._calls, episode_id, Kind.EPISODE)
        # An open episode restores itself; a closed one needs a new run that starts from the checkpoint.
        if execution.is_open:
            arguments = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
            return await self._calls.update(episode_id, "restore_checkpoint", arguments, message_id=message_id)
        target = await self._target(episode_id, checkpoint_id, reason, by)
        request, status = await self.request(episode_id), await self.status(episode_id)
        assert isinstance(request, EpisodeRequest)
        assert isinstance(status, EpisodeStatus)
        full_request = self._settings.with_defaults(request)
        # The budget as topped up since, not as first requested.
        await self._start(episode_id, EpisodeInput.of(full_request, budget=status.budget, restore=target))
        return f"reopened {episode_id} (previously {execution.status}) from {target.checkpoint_id}"

    async def move(
        self,
        episode_id: str,
        to: str,
        *,
        workspace: str = "",
        reason: str = "",
        by: str = "operator",
        message_id: str = "",
    ) -> str:
        """Continue an episode on another host from its last remote checkpoint. Return the workflow's reply.

        Args:
            episode_id: id of an open episode.
            to: name of the host, or its workspace task queue.
            workspace: absolute path of the working tree on that host. If empty, the path stays the same.
            reason: reason to record in the timeline.
            by: name of the author.
            message_id: idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: no workspace worker runs on that host, or the episode has no remote copies.
        """
        from tightloop.episode.checkpoint import choose_home

        # Resolved here, because a workflow cannot list the workers.
        home = choose_home(to, (await self.topology()).homes)
        arguments = {"to": home, "workspace": workspace, "reason": reason, "by": by}
        return await self._send_update(episode_id, Kind.EPISODE, "move", arguments, message_id=message_id)

    async def fork(
        self,
        episode_id: str,
        checkpoint_id: str,
        new_id: str | None = None,
        *,
        by: str = "operator",
        request_id: str = "",
    ) -> str:
        """Start a new episode from a checkpoint and return its id.

        The new episode has its own git worktree.

        Args:
            episode_id: id of the source episode.
            checkpoint_id: checkpoint of the source episode.
            new_id: id to use. If None, an id is generated.
            by: name of the author.
            request_id: idempotency key, as in `start`.

        Raises:
            InvalidRequestError: the checkpoint does not exist.
            IdTakenError: another request already used the new id.
        """
        from tightloop.episode.control import EpisodeInput
        from tightloop.episode.model import EpisodeRequest

        target = await self._target(episode_id, checkpoint_id, f"fork of {episode_id}", by)
        request = await self.request(episode_id)
        assert isinstance(request, EpisodeRequest)
        # The snapshot is stored under the id of the source, not of the fork.
        full_request, target = self._settings.with_defaults(request), target.evolve(episode_id=episode_id)
        forked = EpisodeInput.of(full_request, worktree=True, restore=target)
        origin = _origin(request_id, episode_id, target.checkpoint_id)
        return await self._start(choose_id(Kind.EPISODE, new_id), forked, origin)

    async def replan(
        self, plan_id: str, source: str = "", *, rationale: str = "", by: str = "operator", message_id: str = ""
    ) -> str:
        """Replace the text of a running plan and return the workflow's reply.

        If no text is given, a planner writes it. `message_id` is an idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: the text is invalid. The message contains the line and column.
        """
        arguments = {"source": source, "rationale": rationale, "by": by}
        return await self._send_update(
            plan_id, Kind.PLAN, "replan", arguments, timeout=REPLAN_TIMEOUT, message_id=message_id
        )

    async def run_step(self, plan_id: str, step: str, *, by: str = "operator", message_id: str = "") -> str:
        """Start a ready step or retry a failed step. Return the workflow's reply.

        A ready step can be started even during a pause. `message_id` is an idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: the step does not exist or cannot be started.
        """
        return await self._send_update(plan_id, Kind.PLAN, "run_step", {"step": step, "by": by}, message_id=message_id)

    async def dispatch(
        self, plan_id: str, *, parallel: int | bool | None = None, by: str = "operator", message_id: str = ""
    ) -> str:
        """Start the tasks of a project plan and return the workflow's reply.

        Args:
            plan_id: id of a plan in the DRAFT state.
            parallel: maximum number of concurrent tasks; None to use the plan's value.
            by: name of the author.
            message_id: idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: the plan is not a draft. The message lists the possible operations.
            WorkspaceBusyError: the plan's workspace is in use. The plan stays a draft, so the call can be retried
                later.
        """
        arguments = {"parallel": parallel, "by": by}
        return await self._send_update(plan_id, Kind.LOOP, "dispatch", arguments, message_id=message_id)

    async def verify(self, plan_id: str, *, by: str = "operator", message_id: str = "") -> str:
        """Run the gates of a project plan whose tasks have ended, and return the workflow's reply.

        Args:
            plan_id: id of the plan.
            by: name of the author.
            message_id: idempotency key, as in `answer`.

        Raises:
            InvalidRequestError: tasks are still running, or the plan has ended. The message lists the possible
                operations.
        """
        return await self._send_update(plan_id, Kind.LOOP, "verify", {"by": by}, message_id=message_id)

    async def _send_update(
        self,
        workflow_id: str,
        kind: Kind,
        name: str,
        arguments: dict[str, Any],
        *,
        timeout: timedelta = UPDATE_TIMEOUT,
        message_id: str = "",
    ) -> str:
        # A workflow of another kind does not know the message, and its error would not say why.
        await describe_run(self._calls, workflow_id, kind)
        return await self._calls.update(workflow_id, name, arguments, timeout=timeout, message_id=message_id)

    async def _target(self, episode_id: str, checkpoint_id: str, reason: str, by: str) -> "RestoreTarget":
        from tightloop.episode.control import read_restore

        records = await self.checkpoints(episode_id)
        newest = max((record.number for record in records), default=-1)
        arguments = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
        return read_restore(arguments, records, newest=newest)


def _origin(request_id: str, *request: Any) -> str:
    """Return the digest that identifies a repeated start request, or "" without a request id."""
    return hashlib.sha256(checked_json("start", [request_id, *request])).hexdigest() if request_id else ""
