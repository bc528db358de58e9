"""Events of a workflow across all its runs, including those continued as new, reset, restored or restarted."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from temporalio.client import WorkflowQueryFailedError

from tightloop.client.calls import Calls
from tightloop.client.execution import Execution
from tightloop.client.status import Feed, OnSilence, describe_run, patiently
from tightloop.errors import InvalidRequestError, ServiceUnavailableError
from tightloop.run.core import OWN, TimelineLine, TimelinePage

_CURSOR = re.compile(r"([0-9a-f-]{36})\.(\d{1,9})", re.ASCII)
_LISTING_TRIES = 30
"""Maximum number of times to look for a new run, because Temporal lists it only shortly after its start."""
_LISTING_WAIT = timedelta(milliseconds=100)

T = TypeVar("T")


class Event(TimelineLine):
    """A timeline event with its position. Readers can continue from this position."""

    cursor: str = ""
    """Cursor to continue after this event with `events` or `timeline`. It stays valid in later runs."""
    run_id: str = ""


class ReadPosition(NamedTuple):
    """The position of a reader: a run and the number of lines read. All earlier runs were read completely."""

    run_id: str
    lines: int

    def __str__(self) -> str:
        """Return the position as a cursor."""
        return f"{self.run_id}.{self.lines}"


NOWHERE = ReadPosition("", 0)
Page = tuple[list[Event], ReadPosition, bool]
"""Page of events, with the position after them and whether the run has more events."""


def read_cursor(cursor: str) -> ReadPosition | None:
    """Parse a cursor. Return None for an empty cursor, which means the first event.

    Raises:
        InvalidRequestError: the text is not a cursor.
    """
    if not cursor:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequestError(
            f"{cursor!r} is not a valid cursor. Pass an event's cursor unchanged, or omit it to start from the "
            "first event"
        )
    return ReadPosition(match[1], int(match[2]))


async def runs_until(calls: Calls, newest: Execution) -> list[Execution]:
    """Return all runs up to the newest, oldest first. Runs that were rejected when they started are omitted."""
    runs: list[Execution] = []
    for _ in range(_LISTING_TRIES):
        runs = [run for run in await calls.listing.runs(newest.id) if not run.refused or run.run_id == newest.run_id]
        ids = [run.run_id for run in runs]
        if newest.run_id in ids:
            return runs[: ids.index(newest.run_id) + 1]
        await asyncio.sleep(_LISTING_WAIT.total_seconds())
    return [*runs, newest]


@dataclass(frozen=True)
class EventReader:
    """Reads the timeline events of one workflow across its runs."""

    calls: Calls
    workflow_id: str

    async def page(self, position: ReadPosition, newest: Execution) -> Page:
        """Return the next events of a run.

        If Temporal forced the run to end, the last event says so.

        Raises:
            InvalidRequestError: the events after the position are no longer stored.
            ServiceUnavailableError: no worker responds. Retryable.
        """
        is_newest = position.run_id == newest.run_id
        try:
            timeline_page = await self.calls.query(
                self.workflow_id, "events", TimelinePage, position.lines, run_id=position.run_id
            )
        except ServiceUnavailableError as error:
            if is_newest or not isinstance(error.__cause__, WorkflowQueryFailedError):
                raise
            # Changed code cannot replay this run; later runs must stay readable.
            return [], position, False
        if 0 < position.lines < timeline_page.oldest:
            raise _too_old(self.workflow_id, position)
        lines = list(timeline_page.lines)
        has_more = timeline_page.start + len(lines) < timeline_page.end
        # Only a closed run can have an end that the workflow did not record.
        if not has_more and not (is_newest and newest.is_open):
            forced = await self.calls.history.forced_end(self.workflow_id, position.run_id)
            # The workflow does not count this line, so a position after it is one ahead.
            if forced is not None and position.lines > timeline_page.end:
                return [], position, False
            lines += [forced] if forced else []
        events = [
            Event.of(
                line, run_id=position.run_id, cursor=str(ReadPosition(position.run_id, timeline_page.start + number))
            )
            for number, line in enumerate(lines, start=1)
        ]
        return events, ReadPosition(position.run_id, timeline_page.start + len(events)), has_more

    async def runs(self, newest: Execution) -> list[str]:
        """Return the ids of all runs up to the newest one, oldest first."""
        return [run.run_id for run in await runs_until(self.calls, newest)]

    async def begin(self, newest: Execution, position: ReadPosition | None) -> ReadPosition:
        """Return the position where reading starts. The default is the first event.

        Raises:
            InvalidRequestError: Temporal no longer stores the run in the cursor.
        """
        if position is not None and position.run_id == newest.run_id:
            return position
        runs = await self.runs(newest)
        if position is None:
            return ReadPosition(runs[0], 0)
        if position.run_id not in runs:
            raise _too_old(self.workflow_id, position)
        return position

    async def next_run(self, newest: Execution, position: ReadPosition) -> ReadPosition:
        """Return the start position of the next run."""
        runs = await self.runs(newest)
        # A run that Temporal has deleted is no longer listed; the oldest remaining one follows it.
        number = runs.index(position.run_id) + 1 if position.run_id in runs else 0
        return ReadPosition(runs[min(number, len(runs) - 1)], OWN)


async def read_timeline(calls: Calls, workflow_id: str, after: str) -> AsyncGenerator[Event]:
    """Yield all past events, oldest first, page by page. See `TightloopClient.timeline`."""
    reader, newest = EventReader(calls, workflow_id), await describe_run(calls, workflow_id)
    position = await reader.begin(newest, read_cursor(after))
    while True:
        events, position, more = await reader.page(position, newest)
        for event in events:
            yield event
        if not more:
            if position.run_id == newest.run_id:
                return
            position = await reader.next_run(newest, position)


async def last(calls: Calls, workflow_id: str, limit: int) -> list[Event]:
    """Return the last `limit` events of the timeline, oldest first."""
    reader, newest = EventReader(calls, workflow_id), await describe_run(calls, workflow_id)
    collected: list[Event] = []
    runs = await reader.runs(newest)
    # From the newest run backwards, so that a worker replays an old run only if its events are needed.
    for run_id in reversed(runs):
        # Later runs carry lines of earlier ones; OWN leaves these out.
        position, more, run_events = ReadPosition(run_id, 0 if run_id == runs[0] else OWN), True, list[Event]()
        while more:
            events, position, more = await reader.page(position, newest)
            run_events += events
        collected[:0] = run_events
        if len(collected) >= limit:
            break
    return collected[-limit:]


async def follow(
    calls: Calls, feed: Feed, workflow_id: str, after: str, *, patience: timedelta, on_silence: OnSilence | None
) -> AsyncGenerator[Event]:
    """Yield the events after a cursor, followed by new events until the workflow closes.

    See `TightloopClient.events`.
    """
    reader, start = EventReader(calls, workflow_id), read_cursor(after)
    position = NOWHERE

    def patient(read: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        return patiently(read, patience, feed.interval, on_silence)

    while True:
        # Taken before the reads: a change during them must not be missed.
        moves = feed.moves
        newest = await patient(lambda: feed.read("run", lambda: describe_run(calls, workflow_id)))
        if position is NOWHERE:
            position = await patient(partial(reader.begin, newest, start))
        is_newest = position.run_id == newest.run_id
        ask = partial(reader.page, position, newest)
        # The key includes the run's state: a page cached before the end would miss the last events.
        name = ("events", position, newest.run_id, newest.is_open)
        events, position, more = await patient(partial(feed.read, name, ask))
        for event in events:
            yield event
        if more:
            continue
        if not is_newest:
            position = await patient(partial(reader.next_run, newest, position))
        elif not newest.is_open:
            return
        else:
            await feed.wait_for_change(moves)


def _too_old(workflow_id: str, position: ReadPosition) -> InvalidRequestError:
    return InvalidRequestError(
        f"the events of {workflow_id} after cursor {position} are no longer stored, or the cursor belongs to "
        "another id. Omit the cursor to start from the oldest event"
    )
