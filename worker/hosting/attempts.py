"""Work that outlives an attempt: it goes on while Temporal is out of reach, and the next attempt joins it."""

import asyncio
import contextvars
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.activity import ActivityCancellationDetails
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.attempt import current_cancellation

logger = logging.getLogger("tightloop")

BEAT_SECONDS = 1.0
REMEMBERED = 256
"""Results that are kept for a further attempt: those of the last minutes of a busy worker."""
DESCRIBE_TIMEOUT = timedelta(seconds=5)
Key = tuple[str, str, str]


class Attempt:
    """One attempt of an activity, as Temporal sees it. Make it in the attempt's own task."""

    def __init__(self) -> None:
        self.info = activity.info()
        # Work asks from threads, and from other tasks.
        self._context = contextvars.copy_context()

    @property
    def key(self) -> Key:
        """What all attempts of one activity have in common."""
        return self.info.namespace, self.info.workflow_run_id or "", self.info.activity_id

    @property
    def cancellation(self) -> ActivityCancellationDetails | None:
        """Why the SDK cancelled the attempt; None: it did not."""
        if not self._ask(activity.is_cancelled):
            return None
        return self._ask(activity.cancellation_details) or ActivityCancellationDetails()

    @property
    def is_lost(self) -> bool:
        """Whether the only reason for its cancellation is a missed heartbeat.

        Temporal reports that, or the SDK, which times the attempt out by itself while Temporal is unreachable.
        """
        return self.cancellation in (
            ActivityCancellationDetails(not_found=True),
            ActivityCancellationDetails(timed_out=True),
            ActivityCancellationDetails(not_found=True, timed_out=True),
        )

    @property
    def is_shut_down(self) -> bool:
        """Whether its worker stops."""
        return bool(self._ask(activity.is_worker_shutdown))

    def _ask(self, question: Callable[[], Any]) -> Any:
        return self._context.copy().run(question)


class Work:
    """What an activity does, whichever attempt waits for it."""

    details: Sequence[Any] = ()
    """Of its last heartbeat."""

    def __init__(self, attempt: Attempt, *, in_thread: bool) -> None:
        self.attempt, self._in_thread, self._is_unwanted = attempt, in_thread, False
        limit = attempt.info.start_to_close_timeout
        self._ends_by = time.monotonic() + limit.total_seconds() if limit else math.inf
        self.watch: asyncio.Task[None] | None = None
        self.task: asyncio.Task[Any]

    @property
    def is_late(self) -> bool:
        """Whether it has used up the time of one attempt."""
        return time.monotonic() > self._ends_by

    def cancellation(self) -> ActivityCancellationDetails | None:
        """Return why the work should stop; None: it should not. For any thread."""
        attempt = self.attempt
        if self._is_unwanted or self.is_late:
            return attempt.cancellation or ActivityCancellationDetails(timed_out=True)
        return None if attempt.is_lost and not attempt.is_shut_down else attempt.cancellation

    def stop(self) -> None:
        """Have it end."""
        self._is_unwanted = True
        if not self._in_thread:
            self.task.cancel()


class Works:
    """The work of one worker."""

    def __init__(self, client: Client | None) -> None:
        """Take the client that asks whether work without an attempt is still wanted; None: it never is."""
        self._client = client
        self._running: dict[Key, Work] = {}
        self._results: OrderedDict[Key, Any] = OrderedDict()

    async def do(
        self, attempt: Attempt, perform: Callable[[Work], Awaitable[Any]], beat: Callable[..., None], *, in_thread: bool
    ) -> Any:
        """Do the work of an activity for an attempt, or wait for what an earlier attempt has begun.

        Args:
            attempt: the one that waits.
            perform: begins the work.
            beat: sends a heartbeat of the attempt with the details of the work.
            in_thread: the work asks whether to stop; nothing can interrupt it.

        Raises:
            CancelledError: Temporal gave the attempt up; the work goes on if its next attempt may come.
        """
        if attempt.info.attempt > 1 and attempt.key in self._results:
            logger.info("%s had ended before its attempt %d", attempt.info.activity_type, attempt.info.attempt)
            return self._results[attempt.key]
        work = self._running.get(attempt.key)
        if work is None:
            work = self._begin(Work(attempt, in_thread=in_thread), perform)
        else:
            logger.info("%s still runs: attempt %d joins it", attempt.info.activity_type, attempt.info.attempt)
            work.attempt = attempt
        try:
            await _wait(work, attempt, beat)
        except asyncio.CancelledError:
            if not attempt.is_lost:
                work.task.cancel()
                await asyncio.wait({work.task})
        if work.task.done():
            return work.task.result()
        if work.attempt is attempt:
            work.watch = asyncio.create_task(self._watch(work))
        raise CancelledError("Temporal gave this attempt up")

    def _begin(self, work: Work, perform: Callable[[Work], Awaitable[Any]]) -> Work:
        key = work.attempt.key

        async def run() -> Any:
            current_cancellation.set(work.cancellation)
            return await perform(work)

        work.task = asyncio.create_task(run())
        work.task.add_done_callback(lambda task: self._end(key, task))
        self._running[key] = work
        return work

    def _end(self, key: Key, task: asyncio.Task[Any]) -> None:
        del self._running[key]
        # An exception counts as retrieved then, also where no attempt waits for it any more.
        if task.cancelled() or task.exception() is not None:
            return
        self._results[key] = task.result()
        while len(self._results) > REMEMBERED:
            self._results.popitem(last=False)

    async def _watch(self, work: Work) -> None:
        """Stop work without an attempt once its workflow does not want it any more."""
        lost = work.attempt
        while work.attempt is lost and not work.task.done():
            if work.is_late or lost.is_shut_down or not await self._is_wanted(lost):
                if work.attempt is lost:
                    work.stop()
                return
            await asyncio.sleep(BEAT_SECONDS)

    async def _is_wanted(self, attempt: Attempt) -> bool:
        """Return whether the workflow waits for the activity; as long as Temporal cannot be asked it does."""
        if self._client is None:
            return False
        execution = WorkflowExecution(workflow_id=attempt.info.workflow_id or "", run_id=attempt.key[1])
        request = DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=execution)
        try:
            answer = await self._client.workflow_service.describe_workflow_execution(request, timeout=DESCRIBE_TIMEOUT)
        except RPCError as error:
            return error.status is not RPCStatusCode.NOT_FOUND
        cancelled = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
        return any(
            pending.activity_id == attempt.info.activity_id and pending.state != cancelled
            for pending in answer.pending_activities
        )


async def _wait(work: Work, attempt: Attempt, beat: Callable[..., None]) -> None:
    """Wait for the end of the work, or until Temporal gives the attempt up."""
    while not work.task.done() and not attempt.is_lost:
        await asyncio.wait({work.task}, timeout=BEAT_SECONDS)
        if work.task.done():
            return
        if attempt.info.heartbeat_timeout is not None:
            beat(*work.details)
        if work.is_late:
            work.stop()
