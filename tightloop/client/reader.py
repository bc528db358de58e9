"""Reads what workflows of one kind say: their status, their end, their list. It changes nothing."""

import asyncio
import builtins
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from tightloop.client.answers import EpisodeSummary
from tightloop.client.calls import Calls
from tightloop.client.execution import OPEN_STATUSES
from tightloop.client.kind import ResultT, StatusT
from tightloop.client.starting import LAST
from tightloop.episode import EpisodeStatus
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, OtherKindError, ServiceUnavailableError
from tightloop.plan.request import PlanStatus

POLL_INTERVAL = timedelta(milliseconds=500)
PATIENCE = timedelta(minutes=10)
"""How long `watch` and `result` bear that nobody answers: a restart of the server, or of the worker."""
_RESOLVE_AMONG = 500

OnSilence = Callable[[ServiceUnavailableError], None]
T = TypeVar("T")


class Reader(Generic[StatusT, ResultT]):
    """What `TightloopClient` and `Plans` read; they document it for their callers."""

    def __init__(self, calls: Calls[StatusT, ResultT]) -> None:
        """Read over the connection of these calls."""
        self._calls = calls
        self._kind = calls.kind

    async def status(self, workflow_id: str) -> StatusT:
        """Return a snapshot; for a closed workflow also when no worker is there.

        Raises:
            EpisodeNotFoundError: none has this id.
            ServiceUnavailableError: it is open and no worker answers (retryable).
        """
        seen = await self._calls.describe(workflow_id)
        if seen.frozen is not None:
            return self._kind.outline(seen)
        if seen.is_open:
            return await self._calls.query(workflow_id, "status", self._kind.status_type)
        result = await self._calls.outcome(seen)
        try:
            answered = await self._calls.query(workflow_id, "status", self._kind.status_type)
        except ServiceUnavailableError:
            answered = self._kind.outline(seen)
        return self._kind.closed_status(answered, seen, result)

    async def summary(self, workflow_id: str) -> EpisodeSummary:
        """Return what Temporal itself knows, without asking a worker."""
        return self._kind.summary(await self._calls.describe(workflow_id))

    async def ask(self, workflow_id: str, name: str, answer_type: type[T], *arguments: Any) -> T:
        """Return the answer to a query of the newest run, which needs a worker."""
        await self._calls.describe(workflow_id)
        return await self._calls.query(workflow_id, name, answer_type, *arguments)

    async def history_json(self, workflow_id: str) -> str:
        """Return the newest run's history as Temporal's own tools write it."""
        await self._calls.describe(workflow_id)
        return await self._calls.history(workflow_id)

    async def watch(
        self, workflow_id: str, *, poll: timedelta, patience: timedelta, on_silence: OnSilence | None
    ) -> AsyncGenerator[StatusT]:
        """Yield the status now and whenever it changed, until the workflow is closed.

        Raises:
            ServiceUnavailableError: nobody answered for longer than `patience` (retryable).
        """
        shown: StatusT | None = None
        while True:
            status = await _patiently(lambda: self.status(workflow_id), patience, poll, on_silence)
            if shown is None or _without_clock(status) != _without_clock(shown):
                shown = status
                yield status
            if status.status in self._kind.closed_statuses:
                return
            await asyncio.sleep(poll.total_seconds())

    async def result(self, workflow_id: str, *, patience: timedelta) -> ResultT:
        """Wait for the end and return what is left behind, however it ended.

        Raises:
            ServiceUnavailableError: Temporal did not answer for longer than `patience` (retryable).
        """
        while True:
            seen = await _patiently(lambda: self._calls.describe(workflow_id), patience, POLL_INTERVAL, None)
            if not seen.is_open:
                return await self._calls.outcome(seen)
            # Another run may follow this one: after a restore, a reset, or much work.
            await self._calls.end_of_run(seen)

    async def list(self, status: str | None, limit: int) -> tuple[EpisodeSummary, ...]:
        """Return at most `limit` of them, open ones preferred, the newest run first.

        Raises:
            InvalidRequestError: there is no such status.
        """
        statuses = OPEN_STATUSES + self._kind.closed_statuses
        if status is not None and status not in statuses:
            raise InvalidRequestError(f"there is no status {status!r}. Known are: {', '.join(statuses)}")
        rows: builtins.list[EpisodeSummary] = []
        async with contextlib.aclosing(self._calls.executions(only_open=status in OPEN_STATUSES)) as found:
            async for seen in found:
                if len(rows) >= limit:
                    break
                if status is None or seen.status == status:
                    rows.append(self._kind.summary(seen))
        return tuple(sorted(rows, key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True))

    async def resolve(self, reference: str) -> str:
        """Return the id that a person means: an id, its unambiguous beginning, or `last`.

        Raises:
            EpisodeNotFoundError: nothing fits.
            InvalidRequestError: more than one fits.
        """
        if reference != LAST:
            try:
                return (await self._calls.describe(reference)).workflow_id
            except OtherKindError:
                # Ids of what it started begin with its own, and none of them is meant.
                raise
            except EpisodeNotFoundError:
                pass
        rows = await self.list(None, _RESOLVE_AMONG)
        if reference == LAST and rows:
            return rows[0].id
        fitting = [row.id for row in rows if row.id.startswith((reference, f"{self._kind.noun}-{reference}"))]
        if len(fitting) > 1:
            raise InvalidRequestError(f"{reference!r} fits {len(fitting)} {self._kind.noun}s: {', '.join(fitting[:5])}")
        if not fitting:
            raise await self._calls.not_found(reference)
        return fitting[0]


async def _patiently(
    look: Callable[[], Awaitable[T]], patience: timedelta, pause: timedelta, on_silence: OnSilence | None
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


def _without_clock(status: EpisodeStatus | PlanStatus) -> EpisodeStatus | PlanStatus:
    """Leave out what always changes: time alone is no news."""
    return status.model_copy(update={"spent": status.spent.model_copy(update={"wall_time": timedelta()})})
