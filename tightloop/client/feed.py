"""Tells when a workflow has moved on: one call that waits at Temporal, for all who follow it in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import temporalio.api.common.v1 as common
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError

from tightloop.client.calls import Calls
from tightloop.errors import TightloopError

POLL_INTERVAL = timedelta(milliseconds=500)
"""Shortest time between two looks at a workflow that is busy, and between two tries where nobody answers."""
PARKED = timedelta(seconds=70)
"""Temporal answers a call that waits for events after 20 s, also where nothing happened."""
_CLOSED_WAIT = timedelta(seconds=5)
_LOOK_ANYWAY = PARKED + timedelta(seconds=10)
# What a query tells changes with a workflow task only; these end a run, or make one.
_MOVES = frozenset(
    number
    for name, number in EventType.items()
    if name.startswith("EVENT_TYPE_WORKFLOW_EXECUTION_") or name == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"
)

T = TypeVar("T")


class Feed:
    """What those share who follow one workflow: the call that waits, and every look that follows."""

    def __init__(self, calls: Calls, workflow_id: str) -> None:
        """Follow nothing yet: `_poll` does, while somebody needs it."""
        self._calls, self._id = calls, workflow_id
        self._looks: dict[Hashable, asyncio.Future[Any]] = {}
        self._moved = asyncio.Event()
        self.moves = 0
        self.followers = 0
        self.interval = POLL_INTERVAL
        self.polling: asyncio.Task[None] | None = None

    async def look(self, name: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` answers; asked once for all who look between two moves. An error is not kept."""
        if name not in self._looks:
            self._looks[name] = asyncio.ensure_future(ask())
            # Where all have left, nobody else would take an error, and asyncio would print it.
            self._looks[name].add_done_callback(lambda done: done.cancelled() or done.exception())
        asked: asyncio.Future[T] = self._looks[name]
        try:
            # Whoever asked first may leave before the others have their answer.
            return await asyncio.shield(asked)
        finally:
            if asked.done() and (asked.cancelled() or asked.exception() is not None) and self._looks.get(name) is asked:
                del self._looks[name]

    async def moved(self, since: int) -> None:
        """Wait until the workflow may have moved on since `moves` was `since`."""
        if self.moves == since:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_ANYWAY.total_seconds()):
                    await self._moved.wait()

    def move(self) -> None:
        """Let everybody look."""
        self.moves += 1
        self._looks.clear()
        self._moved.set()
        self._moved = asyncio.Event()

    async def poll(self) -> None:
        """Wait at Temporal for events of the newest run, again and again."""
        while True:
            wait = self.interval
            # The looks of the followers say what is wrong; here it is only tried again.
            with contextlib.suppress(TightloopError, RPCError):
                seen = await self._calls.describe(self._id)
                if seen.is_open:
                    await self._follow(seen.run_id)
                else:
                    wait = _CLOSED_WAIT
            self.move()
            await asyncio.sleep(wait.total_seconds())

    async def _follow(self, run_id: str) -> None:
        """Let everybody look after each move of a run, until it has ended."""
        request = service.GetWorkflowExecutionHistoryRequest(
            namespace=self._calls.client.namespace,
            execution=common.WorkflowExecution(workflow_id=self._id, run_id=run_id),
            wait_new_event=True,
            skip_archival=True,
        )
        ask = self._calls.client.workflow_service.get_workflow_execution_history
        while True:
            answer = await ask(request, timeout=PARKED)
            request.next_page_token = answer.next_page_token
            if not answer.next_page_token:
                return
            events = answer.history.events
            if not events or any(event.event_type in _MOVES for event in events):
                self.move()
                await asyncio.sleep(self.interval.total_seconds())


class Feeds:
    """The feeds of one connection, each as long as somebody follows its workflow."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._feeds: dict[str, Feed] = {}

    @asynccontextmanager
    async def following(self, workflow_id: str, interval: timedelta = POLL_INTERVAL) -> AsyncIterator[Feed]:
        """Share the feed of a workflow; the last one to leave ends its call."""
        feed = self._feeds.setdefault(workflow_id, Feed(self._calls, workflow_id))
        feed.followers += 1
        feed.interval = min(feed.interval, interval)
        feed.polling = feed.polling or asyncio.create_task(feed.poll())
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                del self._feeds[workflow_id]
                feed.polling.cancel()
                await asyncio.wait({feed.polling})
