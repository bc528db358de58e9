"""The typed client: start, look at and steer episodes and plans."""

import asyncio
import builtins
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter

from tightloop.client import finding
from tightloop.client.calls import QUERY_TIMEOUT, UPDATE_TIMEOUT, Calls
from tightloop.client.connection import connect as open_connection
from tightloop.client.connection import settings_for
from tightloop.client.encryption import data_converter as converter_of
from tightloop.client.execution import Kind, Run, Summary, memo_of
from tightloop.client.finding import choose_id, described
from tightloop.client.following import events, status
from tightloop.client.following.events import Event
from tightloop.client.following.feed import POLL_INTERVAL, Feeds
from tightloop.client.following.status import PATIENCE, OnSilence, Result, Status
from tightloop.client.installation import staffing
from tightloop.client.installation.sealing import refuse_plain_start
from tightloop.client.installation.setup import wrong_search_attributes
from tightloop.client.installation.staffing import Poller
from tightloop.client.installation.topology import Topology, topology_of
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.control import ExecutorAmendment, read_amendment, read_restore
from tightloop.episode.model import (
    WORKFLOW_TYPE,
    EpisodeInput,
    EpisodeRequest,
    EpisodeStatus,
    RestoreTarget,
)
from tightloop.host import home_queue, load_settings
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PLAN_WORKFLOW_TYPE, PlanRequest, StepLine, StepPage
from tightloop.settings import Settings
from tightloop.settings.defaults import with_defaults

if TYPE_CHECKING:
    from tightloop.client import SyncTightloopClient

REPLAN_TIMEOUT = timedelta(minutes=15)
"""A planner may have to write the revision."""


class TightloopClient:
    """Starts, watches and steers episodes and plans.

    An id alone tells which of the two is meant. Every call is bounded in time. Besides what a method documents, each
    raises `EpisodeNotFoundError` for an unknown id, and `SettingsError` where Temporal refuses access. What takes an
    `episode_id` or a `plan_id` raises `InvalidRequestError` for an id of the other kind. `ServiceUnavailableError`
    (retryable) means that Temporal does not answer, or no worker where the workflow itself has to: for the status
    while it is open, timeline, request, checkpoints and steps, and for every message that returns a sentence.
    """

    def __init__(
        self, client: Client, settings: Settings | None = None, *, query_timeout: timedelta = QUERY_TIMEOUT
    ) -> None:
        """Use an open connection, whose data converter must be the same as the workers'.

        Args:
            client: the connection.
            settings: what new episodes and plans get where they do not say; None: those in force.
            query_timeout: how long a worker may take to answer before it counts as absent.
        """
        self._calls = Calls(client, query_timeout)
        self._feeds = Feeds(self._calls)
        self._settings = settings or load_settings()

    @classmethod
    async def connect(
        cls,
        target: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> "TightloopClient":
        """Connect with the settings in force: the files and variables that the command line reads, too.

        Args:
            target: host and port of Temporal; None: those of the settings.
            namespace: None: that of the settings.
            settings: in place of those in force. `Settings()` are the defaults, whatever files and variables say.
            data_converter: the same as the workers'; None: the one that the settings ask for.
            interceptors: of the caller, such as one that traces; see docs/operate/telemetry.md.

        Raises:
            ServiceUnavailableError: Temporal does not answer within 5 s (retryable).
            SettingsError: a setting is wrong, the keys of payloads cannot be read, or the namespace is missing.
        """
        chosen = settings_for(target, namespace, settings)
        converter = data_converter or converter_of(chosen)
        opened = cls(await open_connection(chosen, converter, interceptors), chosen)
        await opened._calls.check_namespace()
        return opened

    @classmethod
    def sync(
        cls,
        target: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
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
        self, request: EpisodeRequest | PlanRequest, *, new_id: str | None = None, replace: bool = False
    ) -> str:
        """Start an episode or a plan and return its id. What the request leaves open is as the settings say.

        Args:
            request: what to do.
            new_id: the id; None: a new one.
            replace: take the id of a closed one. Its checkpoints and its timeline stay with the id; of a plan the
                steps that were done with the same inputs are taken over.

        Raises:
            InvalidRequestError: the request or the id cannot work.
            IdTakenError: an episode or a plan has the id, open or closed (without `replace`); the message names it.
            SettingsError: the namespace does not know our search attributes; or its workers encrypt, and this client
                would send plain text.
        """
        if isinstance(request, EpisodeRequest):
            asked = with_defaults(request, self._settings)
            return await self._start(choose_id(Kind.EPISODE, new_id), EpisodeInput.of(asked, replace=replace))
        plan = with_defaults(request, self._settings)
        return await self._start(choose_id(Kind.PLAN, new_id), PlanInput.of(plan, replace=replace))

    async def _start(self, workflow_id: str, start: EpisodeInput | PlanInput) -> str:
        start.check()
        queue = self._settings.temporal.task_queue
        await refuse_plain_start(self._calls, queue)
        if not start.queues.home and await self._is_home_of(start.workspace):
            start = start.evolve(queues=start.queues.evolve(home=home_queue(self._settings)))
        await self._calls.start(
            workflow_id,
            PLAN_WORKFLOW_TYPE if isinstance(start, PlanInput) else WORKFLOW_TYPE,
            start,
            task_queue=queue,
            memo=memo_of(start),
            replace=start.replace if isinstance(start, PlanInput) else start.goes_on,
        )
        return workflow_id

    async def _is_home_of(self, workspace: str) -> bool:
        """Return whether a worker of this host and state home can open a workspace.

        Other hosts may have a folder of that name too, so that the first worker to take it might be wrong.
        """
        if not await asyncio.to_thread(os.path.isdir, workspace):
            return False
        return bool(await self.pollers(home_queue(self._settings)))

    # -- look -----------------------------------------------------------------------------------

    async def status(self, workflow_id: str) -> Status:
        """Return a snapshot; for a closed workflow also when no worker is there."""
        return await status.status_of(self._calls, workflow_id)

    async def stored_status(self, workflow_id: str) -> Status:
        """Return what Temporal itself knows, and since when; it needs no worker, and says less than `status`."""
        return await status.stored_status(self._calls, workflow_id)

    async def summary(self, workflow_id: str) -> Summary:
        """Return what Temporal itself knows, without asking a worker."""
        return (await described(self._calls, workflow_id)).summary

    async def watch(
        self,
        workflow_id: str,
        *,
        poll: timedelta = POLL_INTERVAL,
        patience: timedelta = PATIENCE,
        on_silence: OnSilence | None = None,
    ) -> AsyncGenerator[Status]:
        """Yield the status now and after every change, until the workflow is closed.

        It continues through new runs, resets and restarts of worker or server. All who follow one workflow with this
        client share one call that waits at Temporal.

        Args:
            workflow_id: the episode or plan.
            poll: shortest time between two looks.
            patience: how long to wait while nobody answers.
            on_silence: called for each look that nobody answered.

        Raises:
            ServiceUnavailableError: nobody answered for longer than `patience` (retryable).
        """
        async with self._feeds.following(workflow_id, poll) as feed:
            changes = status.changes(self._calls, feed, workflow_id, patience=patience, on_silence=on_silence)
            async with contextlib.aclosing(changes):
                async for change in changes:
                    yield change

    async def events(
        self,
        workflow_id: str,
        *,
        after: str = "",
        poll: timedelta = POLL_INTERVAL,
        patience: timedelta = PATIENCE,
        on_silence: OnSilence | None = None,
    ) -> AsyncGenerator[Event]:
        """Yield the events of all runs, then every new one until the workflow is closed; each event once.

        It continues as `watch` does. To go on later, also in another process, keep the `cursor` of the last event.

        Args:
            workflow_id: the episode or plan.
            after: the cursor of the last event that is known; empty: from the oldest event on.
            poll: shortest time between two looks.
            patience: how long to wait while nobody answers.
            on_silence: called for each look that nobody answered.

        Raises:
            InvalidRequestError: it is not a cursor, or what follows it is not kept any more.
            ServiceUnavailableError: nobody answered for longer than `patience` (retryable).
        """
        async with self._feeds.following(workflow_id, poll) as feed:
            found = events.follow(self._calls, feed, workflow_id, after, patience=patience, on_silence=on_silence)
            async with contextlib.aclosing(found):
                async for event in found:
                    yield event

    async def earlier_result(self, workflow_id: str, run_id: str) -> Result:
        """Return the result of a closed run, one of `runs`.

        Raises:
            InvalidRequestError: there is no such run, or it is open, or another one went on with its work.
        """
        return await status.earlier_result(self._calls, workflow_id, run_id)

    async def result(
        self, workflow_id: str, *, timeout: timedelta | None = None, patience: timedelta = PATIENCE
    ) -> Result:
        """Wait for the end and return the result, however the workflow ended.

        A workflow that was cancelled or terminated in Temporal has a result, too.

        Args:
            workflow_id: the episode or plan.
            timeout: how long to wait; None: until it ends, which a pause may delay for days.
            patience: how long to wait while Temporal does not answer.

        Raises:
            TimeoutError: it has not ended; it goes on.
            ServiceUnavailableError: Temporal did not answer for longer than `patience` (retryable).
        """
        async with asyncio.timeout(timeout.total_seconds() if timeout is not None else None):
            return await status.end(self._calls, workflow_id, patience=patience)

    async def list(
        self, status: str | None = None, limit: int = 50, *, kind: Kind | str | None = None
    ) -> tuple[Summary, ...]:
        """Return episodes and plans, the newest run first.

        Args:
            status: only those with this status, one of `OPEN_STATUSES` or `CLOSED_STATUSES`.
            limit: maximum number of rows; open workflows are preferred.
            kind: only episodes, or only plans.

        Raises:
            InvalidRequestError: the status is unknown.
        """
        return await finding.newest(self._calls, status, limit, Kind(kind) if kind else None)

    async def resolve(self, reference: str, *, kind: Kind | None = None) -> str:
        """Return the id that a person means: an id, its unambiguous beginning, or `last`.

        `last` is the newest one that no plan started; the beginning of a plan's id never means one of its children.

        Args:
            reference: the person's word.
            kind: only an episode, or only a plan, is meant.

        Raises:
            EpisodeNotFoundError: nothing fits.
            InvalidRequestError: more than one fits, or the id is that of the other kind.
        """
        return await finding.resolve(self._calls, reference, kind)

    async def timeline(self, workflow_id: str, *, after: str = "", limit: int | None = None) -> tuple[Event, ...]:
        """Return the events so far, those of earlier runs included, oldest first.

        Args:
            workflow_id: the episode or plan.
            after: only those after the event with this cursor.
            limit: at most so many: the first ones after the cursor; without one the last.

        Raises:
            InvalidRequestError: it is not a cursor, or what follows it is not kept any more.
        """
        if limit is not None and not after:
            return tuple(await events.last(self._calls, workflow_id, limit))
        found: builtins.list[Event] = []
        async with contextlib.aclosing(events.recorded(self._calls, workflow_id, after)) as recorded:
            async for event in recorded:
                if limit is not None and len(found) >= limit:
                    break
                found.append(event)
        return tuple(found)

    async def request(self, workflow_id: str) -> EpisodeRequest | PlanRequest:
        """Return the request; that of an episode with its amendments."""
        seen = await described(self._calls, workflow_id)
        asked: type[EpisodeRequest | PlanRequest] = PlanRequest if seen.kind is Kind.PLAN else EpisodeRequest
        return await self._calls.query(workflow_id, "request", asked, run_id=seen.asked_run)

    async def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints of an episode's newest run, oldest first."""
        seen = await described(self._calls, episode_id, Kind.EPISODE)
        records = builtins.list[CheckpointRecord]
        return tuple(await self._calls.query(episode_id, "checkpoints", records, run_id=seen.asked_run))

    async def steps(self, plan_id: str) -> tuple[StepLine, ...]:
        """Return all steps in the order of the plan; those made from a template come last."""
        run = (await described(self._calls, plan_id, Kind.PLAN)).asked_run
        page = await self._calls.query(plan_id, "steps", StepPage, 1, run_id=run)
        lines = builtins.list(page.lines)
        for number in range(2, page.pages + 1):
            lines += (await self._calls.query(plan_id, "steps", StepPage, number, run_id=run)).lines
        return tuple(lines)

    async def runs(self, workflow_id: str) -> tuple[Run, ...]:
        """Return the runs that Temporal still has, oldest first."""
        newest = await described(self._calls, workflow_id)
        return tuple(map(Run.of, await events.runs_until(self._calls, newest)))

    async def history(self, workflow_id: str, *, run_id: str = "") -> str:
        """Return the history of a run as JSON, as Temporal's own tools write it; `tightloop replay` reads it.

        Args:
            workflow_id: the episode or plan.
            run_id: one of `runs`; empty: the newest.
        """
        run_id = run_id or (await described(self._calls, workflow_id)).run_id
        return await self._calls.history(workflow_id, run_id)

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
        self, workflow_id: str, option: str, text: str = "", *, question: str = "", by: str = "operator"
    ) -> str:
        """Answer a question with one of its options; return the workflow's sentence.

        Args:
            workflow_id: the episode or plan that asks.
            option: name of the option.
            text: what was done, or why; it decides nothing.
            question: id of the question, its step or its window; not needed where only one has the option.
            by: who answers.

        Raises:
            InvalidRequestError: the question or option is unknown, or it is closed.
        """
        word = {"question": question, "option": option, "text": text, "by": by}
        return await self._calls.update(workflow_id, "answer", word)

    async def respond(self, episode_id: str, text: str, *, by: str = "operator") -> str:
        """Tell the planner of an episode something; return the workflow's sentence.

        Raises:
            InvalidRequestError: the text is empty, or the episode is closed.
        """
        return await self._tell(episode_id, Kind.EPISODE, "respond", {"text": text, "by": by})

    async def top_up(self, /, workflow_id: str, **amounts: float) -> str:
        """Raise the budget by these amounts; return the workflow's sentence.

        Args:
            workflow_id: the episode or plan.
            amounts: fields of `TopUp` (episode) or `PlanTopUp` (plan), such as `iterations`, `steps`, `tokens`,
                `cost_usd` and `wall_minutes`; zeros are left out.

        Raises:
            InvalidRequestError: an amount is negative or of the other kind, nothing is added, or it is closed.
        """
        return await self._calls.update(workflow_id, "top_up", {name: more for name, more in amounts.items() if more})

    async def amend(
        self,
        episode_id: str,
        *,
        goal: str = "",
        definition_of_done: Sequence[str | Check] = (),
        executor: ExecutorAmendment | str | None = None,
        planner: str = "",
        by: str = "operator",
    ) -> str:
        """Change an episode's goal, definition of done, executor or planner; return the workflow's sentence.

        Raises:
            InvalidRequestError: nothing is changed, or the episode is closed.
        """
        word = {"goal": goal, "definition_of_done": definition_of_done, "planner": planner, "by": by}
        amendment = read_amendment(word | ({"executor": executor} if executor else {}))
        return await self._tell(episode_id, Kind.EPISODE, "amend_goal", amendment.model_dump(mode="json"))

    async def restore(self, episode_id: str, checkpoint_id: str, *, reason: str = "", by: str = "operator") -> str:
        """Go back to a checkpoint, state and files; a closed episode is opened again. Returns a sentence.

        Raises:
            InvalidRequestError: the checkpoint is unknown (the message names those that exist).
        """
        seen = await described(self._calls, episode_id, Kind.EPISODE)
        if seen.is_open:
            word = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
            return await self._calls.update(episode_id, "restore_checkpoint", word)
        target = await self._target(episode_id, checkpoint_id, reason, by)
        request, status = await self.request(episode_id), await self.status(episode_id)
        assert isinstance(request, EpisodeRequest)
        assert isinstance(status, EpisodeStatus)
        asked = with_defaults(request, self._settings)
        await self._start(episode_id, EpisodeInput.of(asked, budget=status.budget, restore=target))
        return f"{episode_id} was {seen.status}; it is open again, from {target.checkpoint_id}"

    async def fork(
        self, episode_id: str, checkpoint_id: str, new_id: str | None = None, *, by: str = "operator"
    ) -> str:
        """Start a new episode from a checkpoint, in a git worktree of its own. Returns its id.

        Raises:
            InvalidRequestError: the checkpoint is unknown.
            IdTakenError: an episode or a plan has the new id.
        """
        target = await self._target(episode_id, checkpoint_id, f"fork of {episode_id}", by)
        request = await self.request(episode_id)
        assert isinstance(request, EpisodeRequest)
        asked, target = with_defaults(request, self._settings), target.evolve(episode_id=episode_id)
        return await self._start(choose_id(Kind.EPISODE, new_id), EpisodeInput.of(asked, worktree=True, restore=target))

    async def replan(self, plan_id: str, source: str = "", *, rationale: str = "", by: str = "operator") -> str:
        """Replace the text of a running plan; without a text a planner writes it. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: the text is refused (the message names line and column).
        """
        word = {"source": source, "rationale": rationale, "by": by}
        return await self._tell(plan_id, Kind.PLAN, "replan", word, timeout=REPLAN_TIMEOUT)

    async def run_step(self, plan_id: str, step: str, *, by: str = "operator") -> str:
        """Start a ready step now, even during a pause, or a failed one again. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: the step is unknown, or it cannot be started.
        """
        return await self._tell(plan_id, Kind.PLAN, "run_step", {"step": step, "by": by})

    # -- the installation -----------------------------------------------------------------------

    async def missing_search_attributes(self) -> tuple[str, ...]:
        """Return the search attributes of ours that the namespace does not know, or knows with another type."""
        return tuple(await wrong_search_attributes(self._calls))

    async def pollers(self, task_queue: str) -> tuple[Poller, ...]:
        """Return the workers of a task queue, also such as are busy with all their slots."""
        return await staffing.workers_on(self._calls, task_queue)

    async def topology(self) -> Topology:
        """Return which workers are there, and what an episode would wait for."""
        return await topology_of(self._calls, self._settings)

    async def _tell(
        self, workflow_id: str, kind: Kind, name: str, word: dict[str, Any], *, timeout: timedelta = UPDATE_TIMEOUT
    ) -> str:
        await described(self._calls, workflow_id, kind)
        return await self._calls.update(workflow_id, name, word, timeout=timeout)

    async def _target(self, episode_id: str, checkpoint_id: str, reason: str, by: str) -> RestoreTarget:
        known = await self.checkpoints(episode_id)
        newest = max((record.number for record in known), default=-1)
        word = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
        return read_restore(word, known, newest=newest)
