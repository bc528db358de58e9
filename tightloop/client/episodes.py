"""The typed client: start, look at and steer episodes."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter

from tightloop.budget import TopUp
from tightloop.check import Check
from tightloop.checkpoint import CheckpointRecord
from tightloop.client.answers import EpisodeSummary, Poller
from tightloop.client.calls import QUERY_TIMEOUT, Calls
from tightloop.client.connection import connect as open_connection
from tightloop.client.encryption import data_converter as converter_of
from tightloop.client.episode_kind import EPISODE
from tightloop.client.execution import SEARCH_ATTRIBUTES
from tightloop.client.plans import Plans
from tightloop.client.reader import PATIENCE, POLL_INTERVAL, OnSilence, Reader
from tightloop.client.starting import checked_id, memo_of, queues_of
from tightloop.control import ExecutorAmendment, read_restore
from tightloop.episode import (
    EpisodeInput,
    EpisodeRequest,
    EpisodeResult,
    EpisodeStatus,
    RestoreTarget,
    TimelineEntry,
)
from tightloop.executor import AnswerKind
from tightloop.settings import Settings


class TightloopClient:
    """Starts, watches and steers episodes. All calls are bounded in time."""

    def __init__(
        self, client: Client, settings: Settings | None = None, *, query_timeout: timedelta = QUERY_TIMEOUT
    ) -> None:
        """Use an open connection, whose data converter must be the workers' one.

        Args:
            client: the connection.
            settings: where new episodes go: task queue and queues of the capabilities.
            query_timeout: how long a worker may take to answer before it counts as absent.
        """
        self._calls = Calls(client, EPISODE, query_timeout)
        self._reader = Reader(self._calls)
        self._settings = settings or Settings()
        self._plans = Plans(client, self._settings, query_timeout=query_timeout)

    @classmethod
    async def connect(
        cls,
        settings: Settings,
        data_converter: DataConverter | None = None,
        *,
        interceptors: Sequence[Interceptor] = (),
    ) -> "TightloopClient":
        """Connect to the Temporal that the settings name.

        Args:
            settings: where Temporal is, and where new episodes go.
            data_converter: the workers' one; None: the one that the settings ask for.
            interceptors: of the caller, such as one that traces; see docs/telemetry.md.

        Raises:
            ServiceUnavailableError: Temporal does not answer within 5 s (retryable).
            SettingsError: payload encryption is on, and its keys cannot be read.
        """
        converter = data_converter or converter_of(settings.privacy)
        return cls(await open_connection(settings, converter, interceptors), settings)

    @property
    def plans(self) -> Plans:
        """What there is to do with plans."""
        return self._plans

    # -- start ----------------------------------------------------------------------------------

    async def start(self, request: EpisodeRequest, *, episode_id: str | None = None) -> str:
        """Start an episode and return its id.

        Raises:
            InvalidRequestError: the request or the id cannot work, or an open episode has this id.
            SettingsError: the namespace does not know our search attributes.
            ServiceUnavailableError: Temporal does not answer (retryable).
        """
        new_id = _new_id() if episode_id is None else checked_id(episode_id, "an episode id")
        return await self._start(new_id, _as_input(request))

    async def _start(self, episode_id: str, request: EpisodeInput) -> str:
        request.check()
        request = request.model_copy(update={"queues": queues_of(request.queues, self._settings.queues)})
        memo = memo_of(request.goal, request.workspace, request.executor.name)
        await self._calls.start(episode_id, request, task_queue=self._settings.temporal.task_queue, memo=memo)
        return episode_id

    # -- look -----------------------------------------------------------------------------------

    async def status(self, episode_id: str) -> EpisodeStatus:
        """Return a snapshot; for a closed episode also when no worker is there.

        Raises:
            EpisodeNotFoundError: no episode has this id.
            ServiceUnavailableError: the episode is open and no worker answers (retryable).
        """
        return await self._reader.status(episode_id)

    async def summary(self, episode_id: str) -> EpisodeSummary:
        """Return what Temporal itself knows of an episode, without asking a worker."""
        return await self._reader.summary(episode_id)

    def watch(
        self,
        episode_id: str,
        *,
        poll: timedelta = POLL_INTERVAL,
        patience: timedelta = PATIENCE,
        on_silence: OnSilence | None = None,
    ) -> AsyncGenerator[EpisodeStatus]:
        """Yield the status now and whenever it changed, until the episode is closed.

        It goes on through new runs, resets and restarts of worker or server.

        Args:
            episode_id: the episode.
            poll: time between two looks.
            patience: how long to bear that nobody answers.
            on_silence: called for each look that nobody answered.

        Raises:
            ServiceUnavailableError: nobody answered for longer than `patience` (retryable).
        """
        return self._reader.watch(episode_id, poll=poll, patience=patience, on_silence=on_silence)

    async def result(self, episode_id: str, *, patience: timedelta = PATIENCE) -> EpisodeResult:
        """Wait for the end and return what the episode leaves behind, however it ended.

        Cancelled and terminated in Temporal count as ABORTED. Bound the wait with `asyncio.timeout`.

        Raises:
            ServiceUnavailableError: Temporal did not answer for longer than `patience` (retryable).
        """
        return await self._reader.result(episode_id, patience=patience)

    async def list(self, status: str | None = None, limit: int = 50) -> tuple[EpisodeSummary, ...]:
        """Return episodes, the newest run first.

        Args:
            status: only those; one of `OPEN_STATUSES` or `CLOSED_STATUSES`.
            limit: at most so many; open ones are preferred.

        Raises:
            InvalidRequestError: there is no such status.
        """
        return await self._reader.list(status, limit)

    async def resolve(self, reference: str) -> str:
        """Return the id that a person means: an id, its unambiguous beginning, or `last`.

        Raises:
            EpisodeNotFoundError: nothing fits.
            InvalidRequestError: more than one fits.
        """
        return await self._reader.resolve(reference)

    async def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints that the newest run carries, oldest first."""
        return tuple(await self._reader.ask(episode_id, "checkpoints", list[CheckpointRecord]))

    async def timeline(self, episode_id: str) -> tuple[TimelineEntry, ...]:
        """Return what happened last, oldest first."""
        return tuple(await self._reader.ask(episode_id, "timeline", list[TimelineEntry]))

    async def request(self, episode_id: str) -> EpisodeRequest:
        """Return the request, with amendments."""
        return await self._reader.ask(episode_id, "request", EpisodeRequest)

    async def history_json(self, episode_id: str) -> str:
        """Return the newest run's history as Temporal's own tools write it; `tightloop replay` reads it."""
        return await self._reader.history_json(episode_id)

    # -- steer ----------------------------------------------------------------------------------

    async def pause(self, episode_id: str, reason: str = "", *, by: str = "operator") -> None:
        """Pause at the next safe point. Asking twice is harmless."""
        await self._calls.signal(episode_id, "pause", {"reason": reason, "by": by})

    async def resume(
        self, episode_id: str, *, note: str = "", checkpoint_id: str | None = None, by: str = "operator"
    ) -> None:
        """End a pause, with a note for the planner, or from a checkpoint.

        Raises:
            InvalidRequestError: there is no such checkpoint.
        """
        word = {"note": note, "by": by}
        if checkpoint_id is not None:
            target = await self._target(episode_id, checkpoint_id, note, by)
            word = {"checkpoint_id": target.checkpoint_id, "reason": note, "by": by}
        await self._calls.signal(episode_id, "resume", word)

    async def abort(self, episode_id: str, reason: str = "", *, by: str = "operator") -> None:
        """End an episode for good; its files stay as they are."""
        await self._calls.signal(episode_id, "abort", {"reason": reason, "by": by})

    async def respond(self, episode_id: str, text: str, *, by: str = "operator") -> str:
        """Tell the planner something; ends a pause. Returns the workflow's sentence."""
        return await self._calls.update(episode_id, "respond", {"text": text, "by": by})

    async def answer(self, episode_id: str, kind: AnswerKind | str, text: str = "", *, by: str = "operator") -> str:
        """Answer what an executor asks: allow or deny; done, failed or refused. Returns the workflow's sentence.

        Raises:
            InvalidRequestError: nothing is asked, or this is no answer to it.
        """
        word = {"answer": str(kind), "text": text, "by": by}
        return await self._calls.update(episode_id, "answer", word)

    async def top_up(
        self,
        episode_id: str,
        *,
        iterations: int = 0,
        executor_failures: int = 0,
        infrastructure_retries: int = 0,
        tokens: int = 0,
        cost_usd: float = 0.0,
        wall_minutes: float = 0.0,
    ) -> str:
        """Raise the budget by these amounts. Returns the workflow's sentence."""
        addition = TopUp(
            iterations=iterations,
            executor_failures=executor_failures,
            infrastructure_retries=infrastructure_retries,
            tokens=tokens,
            cost_usd=cost_usd,
            wall_minutes=wall_minutes,
        )
        return await self._calls.update(episode_id, "top_up", addition.model_dump(exclude_defaults=True))

    async def amend_goal(
        self,
        episode_id: str,
        *,
        goal: str = "",
        definition_of_done: Sequence[str | Check] = (),
        executor: ExecutorAmendment | str | None = None,
        planner: str = "",
        by: str = "operator",
    ) -> str:
        """Change the goal, the definition of done or who works. Returns the workflow's sentence."""
        checks = [Check.model_validate(check).model_dump(mode="json") for check in definition_of_done]
        word: dict[str, Any] = {"goal": goal, "definition_of_done": checks, "by": by}
        if executor:
            other = ExecutorAmendment(name=executor) if isinstance(executor, str) else executor
            word["executor"] = other.model_dump(mode="json", exclude_defaults=True)
        if planner:
            word["planner"] = planner
        return await self._calls.update(episode_id, "amend_goal", word)

    async def restore(self, episode_id: str, checkpoint_id: str, *, reason: str = "", by: str = "operator") -> str:
        """Go back to a checkpoint, state and files; a closed episode is opened again. Returns a sentence.

        Raises:
            InvalidRequestError: there is no such checkpoint; the sentence names those that exist.
        """
        seen = await self._calls.describe(episode_id)
        if seen.is_open:
            word = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
            return await self._calls.update(episode_id, "restore_checkpoint", word)
        target = await self._target(episode_id, checkpoint_id, reason, by)
        request, status = await self.request(episode_id), await self.status(episode_id)
        request = request.model_copy(update={"budget": status.budget})
        await self._start(episode_id, _as_input(request, restore=target))
        return f"{episode_id} was {seen.status}; it is open again, from {target.checkpoint_id}"

    async def fork(
        self, episode_id: str, checkpoint_id: str, new_id: str | None = None, *, by: str = "operator"
    ) -> str:
        """Start a new episode from a checkpoint, in a git worktree of its own. Returns its id.

        Raises:
            InvalidRequestError: there is no such checkpoint, or the new id is taken.
        """
        target = await self._target(episode_id, checkpoint_id, f"fork of {episode_id}", by)
        request = _as_input(
            await self.request(episode_id),
            worktree=True,
            restore=target.model_copy(update={"episode_id": episode_id}),
        )
        return await self._start(_new_id() if new_id is None else checked_id(new_id, "an episode id"), request)

    async def _target(self, episode_id: str, checkpoint_id: str, reason: str, by: str) -> RestoreTarget:
        known = await self.checkpoints(episode_id)
        newest = max((record.number for record in known), default=-1)
        word = {"checkpoint_id": checkpoint_id, "reason": reason, "by": by}
        return read_restore(word, known, newest=newest)

    # -- the installation -----------------------------------------------------------------------

    async def missing_search_attributes(self) -> tuple[str, ...]:
        """Return which of our search attributes the namespace does not know."""
        known = await self._calls.search_attributes()
        return tuple(name for name in SEARCH_ATTRIBUTES if name not in known)

    async def pollers(self, task_queue: str) -> tuple[Poller, ...]:
        """Return which workers polled a task queue in the last minute."""
        return await self._calls.pollers(task_queue)


def _new_id() -> str:
    return f"episode-{secrets.token_hex(4)}"


def _as_input(request: EpisodeRequest, **changes: Any) -> EpisodeInput:
    fields = {name: getattr(request, name) for name in EpisodeRequest.model_fields}
    return EpisodeInput(**(fields | changes))
