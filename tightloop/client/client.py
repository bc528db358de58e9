"""The typed client: start, look at and steer episodes and plans."""

import asyncio
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
from tightloop.client.status import choose_id, described
from tightloop.client.viewer import Viewer
from tightloop.host import load_settings
from tightloop.host.identity import home_queue
from tightloop.run.routing import PLAN_WORKFLOW_TYPE
from tightloop.value.arguments import Hint, checks_arguments

if TYPE_CHECKING:
    from tightloop.client import (
        Check,
        EpisodeRequest,
        ExecutorAmendment,
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

# More threads would only take turns at the interpreter's lock, and everything else would wait for each of them.
_ONE_AT_A_TIME = ThreadPoolExecutor(1, "plan-checking")


async def check_aside(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a check of a text returns; raise what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_ONE_AT_A_TIME, partial(check, *args, **kwargs))


Address = Annotated[
    str | None,
    Hint(
        "Leave it out to connect with the settings in force; Settings() reads neither file nor environment. For others "
        "write: connect(settings=...)"
    ),
]
_MAKE_ONE = Hint(
    'Make one: EpisodeRequest(goal="...", workspace="/home/me/project", definition_of_done=(Check(run="pytest"),))'
)
REPLAN_TIMEOUT = timedelta(minutes=15)
"""A planner may have to write the revision."""


@checks_arguments
class TightloopClient(Viewer):
    """Starts, watches and steers episodes and plans.

    An id alone tells which of the two is meant. Every call is bounded in time. Besides what a method documents, each
    raises `EpisodeNotFoundError` for an unknown id, and `SettingsError` where Temporal refuses access. What takes an
    `episode_id` or a `plan_id` raises `InvalidRequestError` for an id of the other kind. `ServiceUnavailableError`
    (retryable) means that Temporal does not answer, or no worker where the workflow itself has to: for the status
    while it is open, timeline, request, checkpoints and steps, and for every message that returns a sentence.
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
        """Connect with the settings in force: the files and variables that the command line reads, too.

        Args:
            target: host and port of Temporal; None: those of the settings.
            namespace: None: that of the settings.
            settings: in place of those in force. `Settings()` are the defaults, whatever files and variables say.
            data_converter: the same as the workers'; None: the one that the settings ask for.
            interceptors: of the caller, such as one that traces; see docs/operate/telemetry.md.
            compare_keys: refuse to connect where the workers encrypt with keys that are not here; a start compares
                them itself. False: only to list, or to start.

        Raises:
            ServiceUnavailableError: Temporal does not answer within 5 s (retryable).
            SettingsError: a setting is wrong, the keys of payloads cannot be read or are not those of the workers, or
                the namespace is missing.
        """
        chosen = (settings or load_settings()).at(target, namespace)
        converter = data_converter or converter_of(chosen)
        opened = cls(await open_connection(chosen, converter, interceptors), chosen)
        await opened._calls.check_namespace()
        if compare_keys:
            await refuse_other_keys(opened._calls, chosen.temporal.task_queue)
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
        """Connect as `connect` does, with methods that need no `await`; see `SyncTightloopClient`."""
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
        """Start an episode or a plan and return its id. What the request leaves open is as the settings say.

        Args:
            request: what to do.
            new_id: the id; None: a new one.
            replace: take the id of a closed one. Its checkpoints and its timeline stay with the id; of a plan the
                steps that were done with the same inputs are taken over.
            request_id: with `new_id`: the same request sent again with the same id starts nothing more.

        Raises:
            InvalidRequestError: the request or the id cannot work; a `PlanError` where it is the text of a plan.
            IdTakenError: another request started an episode or a plan with the id, open or closed (without `replace`);
                the message names it.
            SettingsError: the namespace does not know our search attributes; or its workers encrypt, and this client
                would send plain text.
        """
        from tightloop.episode.control import EpisodeInput
        from tightloop.episode.model import EpisodeRequest

        # As it was asked: the settings may have changed when it is sent again.
        origin = _origin(request_id, request, replace)
        if isinstance(request, EpisodeRequest):
            asked = self._settings.with_defaults(request)
            episode = EpisodeInput.of(asked, replace=replace)
            return await self._start(choose_id(Kind.EPISODE, new_id), episode, origin)
        # It brings all that runs a plan: no client of episodes needs that.
        from tightloop.plan.progress import PlanInput

        plan = self._settings.with_defaults(request)
        return await self._start(choose_id(Kind.PLAN, new_id), PlanInput.of(plan, replace=replace), origin)

    async def plan_project(self, request: "LoopRequest", *, new_id: str | None = None, request_id: str = "") -> str:
        """Have a project inspected and planned, and return the plan's id; `dispatch` starts its tasks.

        Args:
            request: what to plan. What it leaves open is as the settings say.
            new_id: the id; None: a new one, `plan_<uuid>`.
            request_id: as for `start`.

        Raises:
            InvalidRequestError: the request or the id cannot work.
            IdTakenError: the id is taken; the message names by what.
            SettingsError: as for `start`.
        """
        from tightloop.loop.model import LoopInput

        origin = _origin(request_id, request)
        asked = LoopInput.of(self._settings.with_defaults(request))
        return await self._start(choose_id(Kind.LOOP, new_id), asked, origin)

    async def _start(self, workflow_id: str, start: "EpisodeInput | PlanInput | LoopInput", origin: str = "") -> str:
        start.check()
        if start.workflow_type == PLAN_WORKFLOW_TYPE and (plan := cast("PlanInput", start)).source:
            # It brings a parser of shell scripts, which takes a while to import.
            from tightloop.plan.validation import check_source

            await check_aside(check_source, plan.source, tuple(plan.inputs))
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
        """Return whether a worker of this host and state home can open a workspace.

        Other hosts may have a folder of that name too, so that the first worker to take it might be wrong.
        """
        if not await asyncio.to_thread(os.path.isdir, workspace):
            return False
        return bool(await self.pollers(home_queue(self._settings)))

    # -- steer ----------------------------------------------------------------------------------

    async def pause(self, workflow_id: str, reason: str = "", *, by: str = "operator") -> None:
        """Pause at the next safe point: an episode between two steps, a plan before it starts new ones. Idempotent.

        Raises:
            InvalidRequestError: it is closed.
        """
        await self._calls.signal(workflow_id, "pause", {"reason": reason, "by": by})

    async def resume(
        self, workflow_id: str, *, note: str = "", checkpoint_id: str | None = None, by: str = "operator"
    ) -> None:
        """End a pause, with a note, or (an episode) from a checkpoint.

        Raises:
            InvalidRequestError: it is closed, or the checkpoint is unknown.
        """
        word = {"note": note, "by": by}
        if checkpoint_id is not None:
            target = await self._target(workflow_id, checkpoint_id, note, by)
            word = {"checkpoint_id": target.checkpoint_id, "reason": note, "by": by}
        await self._calls.signal(workflow_id, "resume", word)

    async def cancel(self, workflow_id: str, reason: str = "", *, by: str = "operator") -> None:
        """End an episode or a plan for good.

        The files of an episode stay as they are; a plan undoes its steps where it says so.

        Raises:
            InvalidRequestError: it is closed.
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
        """Answer a question with one of its options; return the workflow's sentence.

        Args:
            workflow_id: the episode or plan that asks.
            option: name of the option.
            text: what was done, or why; it decides nothing.
            question: id of the question, its step or its window; not needed where only one has the option.
            by: who answers.
            message_id: sent again with the same id, it does nothing more, and returns what it returned first.

        Raises:
            InvalidRequestError: the question or option is unknown, or it is closed.
        """
        word = {"question": question, "option": option, "text": text, "by": by}
        return await self._calls.update(workflow_id, "answer", word, message_id=message_id)

    async def respond(
        self, episode_id: str, text: str, *, by: str = "operator", resumes: bool = True, message_id: str = ""
    ) -> str:
        """Tell the planner of an episode something; return the workflow's sentence.

        Args:
            episode_id: the episode.
            text: for the planner; it grants nothing.
            by: who says it.
            resumes: also end a pause that needs no decision, and have the planner read it before the episode ends.
            message_id: as for `answer`.

        Raises:
            InvalidRequestError: the text is empty, or the episode is closed.
        """
        word = {"text": text, "by": by} | ({} if resumes else {"resumes": False})
        return await self._tell(episode_id, Kind.EPISODE, "respond", word, message_id=message_id)

    async def top_up(self, /, workflow_id: str, *, by: str = "operator", message_id: str = "", **amounts: float) -> str:
        """Raise the budget by these amounts; return the workflow's sentence.

        Args:
            workflow_id: the episode or plan.
            by: who raises it.
            message_id: as for `answer`.
            amounts: fields of `TopUp` (episode) or `PlanTopUp` (plan), such as `iterations`, `attempts`, `tokens`,
                `cost_usd` and `wall_minutes`; zeros are left out.

        Raises:
            InvalidRequestError: an amount is negative or of the other kind, nothing is added, or it is closed.
        """
        word = {"by": by, **{name: more for name, more in amounts.items() if more}}
        return await self._calls.update(workflow_id, "top_up", word, message_id=message_id)

    async def amend(
        self,
        episode_id: str,
        *,
        goal: str = "",
        definition_of_done: "Sequence[str | Check]" = (),
        executor: "ExecutorAmendment | str | None" = None,
        planner: str = "",
        by: str = "operator",
        message_id: str = "",
    ) -> str:
        """Change an episode's goal, definition of done, executor or planner; return the workflow's sentence.

        `message_id`: as for `answer`.

        Raises:
            InvalidRequestError: nothing is changed, or the episode is closed.
        """
        from tightloop.episode.control import read_amendment

        word = {"goal": goal, "definition_of_done": definition_of_done, "planner": planner, "by": by}
        amendment = read_amendment(word | ({"executor": executor} if executor else {}))
        changes = amendment.model_dump(mode="json")
        return await self._tell(episode_id, Kind.EPISODE, "amend_goal", changes, message_id=message_id)

    async def restore(
        self, episode_id: str, checkpoint_id: str, *, reason: str = "", by: str = "operator", message_id: str = ""
    ) -> str:
        """Go back to a checkpoint, state and files; a closed episode is opened again. Returns a sentence.

        `message_id`: as for `answer`, while the episode is open.

        Raises:
            InvalidRequestError: the checkpoint is unknown (the message names those that exist).
        """
        from tightloop.episode.control import EpisodeInput
        from tightloop.episode.model import EpisodeRequest, EpisodeStatus

        seen = await described(self._calls, episode_id, Kind.EPISODE)
        if seen.is_open:
            word = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
            return await self._calls.update(episode_id, "restore_checkpoint", word, message_id=message_id)
        target = await self._target(episode_id, checkpoint_id, reason, by)
        request, status = await self.request(episode_id), await self.status(episode_id)
        assert isinstance(request, EpisodeRequest)
        assert isinstance(status, EpisodeStatus)
        asked = self._settings.with_defaults(request)
        await self._start(episode_id, EpisodeInput.of(asked, budget=status.budget, restore=target))
        return f"{episode_id} was {seen.status}; it is open again, from {target.checkpoint_id}"

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
        """Go on with an episode on another host, from its last checkpoint in the remote store. Returns a sentence.

        Args:
            episode_id: the episode; it must be open.
            to: name of the host, or the task queue of its workspaces.
            workspace: absolute path of the working tree there; empty: the same as before.
            reason: told in the timeline.
            by: who moves it.
            message_id: as for `answer`.

        Raises:
            InvalidRequestError: no worker for workspaces runs there, or the episode has no copies.
        """
        from tightloop.episode.checkpoint import choose_home

        home = choose_home(to, (await self.topology()).homes)
        word = {"to": home, "workspace": workspace, "reason": reason, "by": by}
        return await self._tell(episode_id, Kind.EPISODE, "move", word, message_id=message_id)

    async def fork(
        self,
        episode_id: str,
        checkpoint_id: str,
        new_id: str | None = None,
        *,
        by: str = "operator",
        request_id: str = "",
    ) -> str:
        """Start a new episode from a checkpoint, in a git worktree of its own. Returns its id.

        Args:
            episode_id: the episode.
            checkpoint_id: the checkpoint.
            new_id: of the new episode; None: a new one.
            by: who forks.
            request_id: as for `start`.

        Raises:
            InvalidRequestError: the checkpoint is unknown.
            IdTakenError: another request started an episode or a plan with the new id.
        """
        from tightloop.episode.control import EpisodeInput
        from tightloop.episode.model import EpisodeRequest

        target = await self._target(episode_id, checkpoint_id, f"fork of {episode_id}", by)
        request = await self.request(episode_id)
        assert isinstance(request, EpisodeRequest)
        asked, target = self._settings.with_defaults(request), target.evolve(episode_id=episode_id)
        forked = EpisodeInput.of(asked, worktree=True, restore=target)
        origin = _origin(request_id, episode_id, target.checkpoint_id)
        return await self._start(choose_id(Kind.EPISODE, new_id), forked, origin)

    async def replan(
        self, plan_id: str, source: str = "", *, rationale: str = "", by: str = "operator", message_id: str = ""
    ) -> str:
        """Replace the text of a running plan; without a text a planner writes it. Returns the workflow's sentence.

        `message_id`: as for `answer`.

        Raises:
            InvalidRequestError: the text is refused (the message names line and column).
        """
        word = {"source": source, "rationale": rationale, "by": by}
        return await self._tell(plan_id, Kind.PLAN, "replan", word, timeout=REPLAN_TIMEOUT, message_id=message_id)

    async def run_step(self, plan_id: str, step: str, *, by: str = "operator", message_id: str = "") -> str:
        """Start a ready step now, even during a pause, or a failed one again. Returns the workflow's sentence.

        `message_id`: as for `answer`.

        Raises:
            InvalidRequestError: the step is unknown, or it cannot be started.
        """
        return await self._tell(plan_id, Kind.PLAN, "run_step", {"step": step, "by": by}, message_id=message_id)

    async def dispatch(
        self, plan_id: str, *, parallel: int | bool | None = None, by: str = "operator", message_id: str = ""
    ) -> str:
        """Start the tasks of a project's plan. Returns the workflow's sentence.

        Args:
            plan_id: the plan; a draft.
            parallel: tasks at the same time; None: as the plan was asked for.
            by: who dispatches.
            message_id: as for `answer`.

        Raises:
            InvalidRequestError: it is not a draft; the message says what is possible.
            WorkspaceBusyError: somebody works in its workspace. It stays a draft; send it again later.
        """
        word = {"parallel": parallel, "by": by}
        return await self._tell(plan_id, Kind.LOOP, "dispatch", word, message_id=message_id)

    async def verify(self, plan_id: str, *, by: str = "operator", message_id: str = "") -> str:
        """Run the gates of a project's plan whose tasks have ended. Returns the workflow's sentence.

        Args:
            plan_id: the plan.
            by: who wants it verified.
            message_id: as for `answer`.

        Raises:
            InvalidRequestError: its tasks have not ended, or it has; the message says what is possible.
        """
        return await self._tell(plan_id, Kind.LOOP, "verify", {"by": by}, message_id=message_id)

    async def _tell(
        self,
        workflow_id: str,
        kind: Kind,
        name: str,
        word: dict[str, Any],
        *,
        timeout: timedelta = UPDATE_TIMEOUT,
        message_id: str = "",
    ) -> str:
        await described(self._calls, workflow_id, kind)
        return await self._calls.update(workflow_id, name, word, timeout=timeout, message_id=message_id)

    async def _target(self, episode_id: str, checkpoint_id: str, reason: str, by: str) -> "RestoreTarget":
        from tightloop.episode.control import read_restore

        known = await self.checkpoints(episode_id)
        newest = max((record.number for record in known), default=-1)
        word = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
        return read_restore(word, known, newest=newest)


def _origin(request_id: str, *request: Any) -> str:
    """Return the digest by which a start finds what it started before; empty without an id."""
    return hashlib.sha256(checked_json("start", [request_id, *request])).hexdigest() if request_id else ""
