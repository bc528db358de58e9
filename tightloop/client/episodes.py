"""The typed client: start, look at and steer episodes."""

import asyncio
import builtins
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter

from tightloop.budget import TopUp
from tightloop.check import Check
from tightloop.checkpoint import CheckpointRecord
from tightloop.client.answers import (
    CLOSED_STATUSES,
    OPEN_STATUSES,
    SEARCH_ATTRIBUTES,
    EpisodeSummary,
    Poller,
    closed_status,
    outline_of,
    summary_of,
)
from tightloop.client.calls import QUERY_TIMEOUT, Calls
from tightloop.client.calls import connect as open_connection
from tightloop.client.encryption import data_converter as converter_of
from tightloop.client.plans import Plans
from tightloop.control import ExecutorAmendment, read_restore
from tightloop.episode import (
    EpisodeInput,
    EpisodeRequest,
    EpisodeResult,
    EpisodeStatus,
    Queues,
    RestoreTarget,
    TimelineEntry,
)
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ServiceUnavailableError
from tightloop.executor import AnswerKind
from tightloop.scrub import scrub
from tightloop.settings import Settings

POLL_INTERVAL = timedelta(milliseconds=500)
PATIENCE = timedelta(minutes=10)
"""How long `watch` and `result` bear that nobody answers: a restart of the server, or of the worker."""
MEMO_GOAL_CHARACTERS = 200
LAST = "last"
_RESOLVE_AMONG = 500

# An id becomes part of a git ref (refs/tightloop/<episode>/<n>), whose rules are stricter than Temporal's.
_EPISODE_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,99}")

T = TypeVar("T")


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
        self._calls = Calls(client, query_timeout)
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
        new_id = _new_id() if episode_id is None else _checked_id(episode_id)
        return await self._start(new_id, _as_input(request))

    async def _start(self, episode_id: str, request: EpisodeInput) -> str:
        request.check()
        request = request.model_copy(update={"queues": self._queues(request.queues)})
        queue = self._settings.temporal.task_queue
        await self._calls.start(episode_id, request, task_queue=queue, memo=_memo(request))
        return episode_id

    def _queues(self, asked: Queues) -> Queues:
        known = self._settings.queues
        return Queues(
            workspace=asked.workspace or known.workspace,
            llm=asked.llm or known.llm,
            executor=asked.executor or known.executor,
        )

    # -- look -----------------------------------------------------------------------------------

    async def status(self, episode_id: str) -> EpisodeStatus:
        """Return a snapshot; for a closed episode also when no worker is there.

        Raises:
            EpisodeNotFoundError: no episode has this id.
            ServiceUnavailableError: the episode is open and no worker answers (retryable).
        """
        seen = await self._calls.describe(episode_id)
        if seen.frozen is not None:
            return outline_of(seen)
        if seen.is_open:
            return await self._calls.query(episode_id, "status", EpisodeStatus)
        result = await self._calls.outcome(seen)
        try:
            answered = await self._calls.query(episode_id, "status", EpisodeStatus)
        except ServiceUnavailableError:
            answered = outline_of(seen)
        return closed_status(answered, seen, result)

    async def summary(self, episode_id: str) -> EpisodeSummary:
        """Return what Temporal itself knows of an episode, without asking a worker."""
        return summary_of(await self._calls.describe(episode_id))

    async def watch(
        self,
        episode_id: str,
        *,
        poll: timedelta = POLL_INTERVAL,
        patience: timedelta = PATIENCE,
        on_silence: Callable[[ServiceUnavailableError], None] | None = None,
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
        shown: EpisodeStatus | None = None
        while True:
            status = await _patiently(lambda: self.status(episode_id), patience, poll, on_silence)
            if shown is None or _without_clock(status) != _without_clock(shown):
                shown = status
                yield status
            if status.status in CLOSED_STATUSES:
                return
            await asyncio.sleep(poll.total_seconds())

    async def result(self, episode_id: str, *, patience: timedelta = PATIENCE) -> EpisodeResult:
        """Wait for the end and return what the episode leaves behind, however it ended.

        Cancelled and terminated in Temporal count as ABORTED. Bound the wait with `asyncio.timeout`.

        Raises:
            ServiceUnavailableError: Temporal did not answer for longer than `patience` (retryable).
        """
        while True:
            seen = await _patiently(lambda: self._calls.describe(episode_id), patience, POLL_INTERVAL, None)
            if not seen.is_open:
                return await self._calls.outcome(seen)
            # Another run may follow this one: after a restore, a reset, or many iterations.
            await self._calls.end_of_run(seen)

    async def list(self, status: str | None = None, limit: int = 50) -> tuple[EpisodeSummary, ...]:
        """Return episodes, the newest run first.

        Args:
            status: only those; one of `OPEN_STATUSES` or `CLOSED_STATUSES`.
            limit: at most so many; open ones are preferred.

        Raises:
            InvalidRequestError: there is no such status.
        """
        if status is not None and status not in OPEN_STATUSES + CLOSED_STATUSES:
            known = ", ".join(OPEN_STATUSES + CLOSED_STATUSES)
            raise InvalidRequestError(f"there is no status {status!r}. Known are: {known}")
        rows: builtins.list[EpisodeSummary] = []
        async with contextlib.aclosing(self._calls.executions(only_open=status in OPEN_STATUSES)) as found:
            async for seen in found:
                if len(rows) >= limit:
                    break
                if status is None or seen.status == status:
                    rows.append(summary_of(seen))
        return tuple(sorted(rows, key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True))

    async def resolve(self, reference: str) -> str:
        """Return the id that a person means: an id, its unambiguous beginning, or `last`.

        Raises:
            EpisodeNotFoundError: nothing fits.
            InvalidRequestError: more than one fits.
        """
        if reference != LAST:
            with contextlib.suppress(EpisodeNotFoundError):
                return (await self._calls.describe(reference)).episode_id
        rows = await self.list(limit=_RESOLVE_AMONG)
        if reference == LAST and rows:
            return rows[0].id
        starts = (reference, f"episode-{reference}")
        fitting = [row.id for row in rows if row.id.startswith(starts)]
        if len(fitting) > 1:
            raise InvalidRequestError(f"{reference!r} fits {len(fitting)} episodes: {', '.join(fitting[:5])}")
        if not fitting:
            raise await self._calls.not_found(reference)
        return fitting[0]

    async def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints that the newest run carries, oldest first."""
        return tuple(await self._ask(episode_id, "checkpoints", list[CheckpointRecord]))

    async def timeline(self, episode_id: str) -> tuple[TimelineEntry, ...]:
        """Return what happened last, oldest first."""
        return tuple(await self._ask(episode_id, "timeline", list[TimelineEntry]))

    async def request(self, episode_id: str) -> EpisodeRequest:
        """Return the request, with amendments."""
        return await self._ask(episode_id, "request", EpisodeRequest)

    async def history_json(self, episode_id: str) -> str:
        """Return the newest run's history as Temporal's own tools write it; `tightloop replay` reads it."""
        await self._calls.describe(episode_id)
        return await self._calls.history(episode_id)

    async def _ask(self, episode_id: str, name: str, kind: type[T]) -> T:
        await self._calls.describe(episode_id)
        return await self._calls.query(episode_id, name, kind)

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
        return await self._start(_new_id() if new_id is None else _checked_id(new_id), request)

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


async def _patiently(
    look: Callable[[], Awaitable[T]],
    patience: timedelta,
    pause: timedelta,
    on_silence: Callable[[ServiceUnavailableError], None] | None,
) -> T:
    clock = asyncio.get_running_loop().time
    until = clock() + patience.total_seconds()
    while True:
        try:
            return await look()
        except ServiceUnavailableError as error:
            if clock() >= until:
                raise
            if on_silence is not None:
                on_silence(error)
            await asyncio.sleep(pause.total_seconds())


def _new_id() -> str:
    return f"episode-{secrets.token_hex(4)}"


def _checked_id(episode_id: str) -> str:
    wrong = episode_id == LAST or episode_id.endswith(".lock") or not _EPISODE_ID.fullmatch(episode_id)
    if wrong:
        raise InvalidRequestError(
            f"{episode_id!r} cannot be an episode id: it needs 1 to 100 letters, digits, '-', '_' or single '.', "
            f"starting with a letter or digit, and not {LAST!r}. For example: nightly-1"
        )
    return episode_id


def _as_input(request: EpisodeRequest, **changes: Any) -> EpisodeInput:
    fields = {name: getattr(request, name) for name in EpisodeRequest.model_fields}
    return EpisodeInput(**(fields | changes))


def _memo(request: EpisodeRequest) -> dict[str, str]:
    return {
        "goal": scrub(request.goal)[:MEMO_GOAL_CHARACTERS],
        "workspace": request.workspace,
        "executor": request.executor.name,
    }


def _without_clock(status: EpisodeStatus) -> EpisodeStatus:
    """Leave out what always changes: time alone is no news."""
    spent = status.spent.model_copy(update={"wall_time": timedelta()})
    return status.model_copy(update={"spent": spent})
