"""How a workflow runs its activities: time limits and retries by capability, one at a time, interruptible."""

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload

from activities.alerts.activity import AlertActivities, AlertsSent, SendAlertsRequest
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

HEARTBEAT_TIMEOUT = timedelta(seconds=4)
"""Every activity beats once a second; a dead worker is noticed after this time."""
OPEN_TIMEOUT = timedelta(minutes=15)
PLAN_TIMEOUT = timedelta(minutes=10)
HAND_OFF_TIMEOUT = timedelta(minutes=1)
TRACK_TIMEOUT = timedelta(minutes=5)
REFLECT_TIMEOUT = timedelta(minutes=10)
RESTORE_TIMEOUT = timedelta(minutes=15)
CLOSE_TIMEOUT = timedelta(minutes=5)
GRACE = timedelta(minutes=2)
"""Added to the limits that an executor or a check keeps itself."""
NO_WORKER_TIMEOUT = timedelta(minutes=5)
"""How long an activity may wait for a worker on a task queue of its own."""

RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=12,
)

ALERT_TIMEOUT = timedelta(minutes=1)
"""For one try on all channels."""
ALERT_PATIENCE = timedelta(minutes=15)
"""For all tries; after that the cause is old news."""
ALERT_PICK_UP_TIMEOUT = timedelta(seconds=20)
"""After this time without a worker on the workspace's queue the episode's own workers send the alert."""
LAST_ALERT_TIMEOUT = timedelta(seconds=10)
"""How long an episode that fails waits for its alert: what is not sent when a workflow closes is never sent."""
ALERT_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=8,
)

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Call:
    """How one activity is to be run."""

    summary: str
    timeout: timedelta
    queue: str = ""
    """Task queue; empty for the workflow's own, where activities start eagerly."""
    busy_for: timedelta = timedelta()
    """How long the workers of that queue may rightly be busy with something else."""
    instant: bool = False
    """It takes no time: it need not beat, and where it uses up its limit nevertheless, it is tried again."""


class StepFailedError(Exception):
    """An activity failed for good; `reason` is the sentence for a person."""

    def __init__(self, reason: str, *, no_worker: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.no_worker = reason, no_worker


class Steps:
    """Runs activities one after another and remembers the one that is running, so that it can be stopped."""

    def __init__(self, *, no_worker_timeout: timedelta = NO_WORKER_TIMEOUT) -> None:
        """Start with nothing running."""
        self._no_worker_timeout = no_worker_timeout
        self._running: workflow.ActivityHandle[Any] | None = None
        self.interrupted = False
        """The running activity was stopped on purpose."""

    def interrupt(self) -> None:
        """Cancel the running activity; `run` then ends when the activity has really stopped."""
        if self._running is not None:
            self.interrupted = True
            self._running.cancel()

    @overload
    async def run(self, method: Callable[[Any, A], Coroutine[Any, Any, R]], request: A, call: Call) -> R: ...
    @overload
    async def run(self, method: Callable[[Any, A], R], request: A, call: Call) -> R: ...
    async def run(self, method: Callable[[Any, Any], Any], request: Any, call: Call) -> Any:
        """Run an activity to its end.

        Raises:
            StepFailedError: it failed for good, was interrupted, or no worker took it.
        """
        handle: workflow.ActivityHandle[Any] = workflow.start_activity_method(
            method,
            request,
            task_queue=call.queue or None,
            start_to_close_timeout=call.timeout,
            schedule_to_start_timeout=self._patience(call) if call.queue else None,
            heartbeat_timeout=None if call.instant else HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=call.summary,
        )
        self._running, self.interrupted = handle, False
        try:
            return await handle
        except ActivityError as error:
            if is_cancelled_exception(error) and not self.interrupted:
                raise  # the whole workflow is being cancelled
            if found_no_worker(error):
                raise StepFailedError(
                    f"no worker on task queue {call.queue!r} took {error.activity_type} within "
                    f"{self._patience(call).total_seconds():g} s. Start one for this queue, then resume",
                    no_worker=True,
                ) from error
            raise StepFailedError(reason_of(error)) from error
        finally:
            self._running = None

    def _patience(self, call: Call) -> timedelta:
        return self._no_worker_timeout + call.busy_for


async def send_alerts(request: SendAlertsRequest, queues: Iterable[str]) -> AlertsSent:
    """Send an alert beside whatever else is running, from the first queue that has a worker.

    Args:
        request: the alert.
        queues: task queues; empty for the workflow's own, on which it may wait longest.

    Raises:
        ActivityError: no worker took it, or workers died over it.
    """
    *others, last = dict.fromkeys(queues)
    for queue in others:
        try:
            return await _send_alerts(request, queue, ALERT_PICK_UP_TIMEOUT)
        except ActivityError as error:
            if not found_no_worker(error):
                raise
    return await _send_alerts(request, last, None)


async def _send_alerts(request: SendAlertsRequest, queue: str, pick_up: timedelta | None) -> AlertsSent:
    return await workflow.execute_activity_method(
        AlertActivities.send_alerts,
        request,
        task_queue=queue or None,
        start_to_close_timeout=ALERT_TIMEOUT,
        schedule_to_start_timeout=pick_up,
        schedule_to_close_timeout=ALERT_PATIENCE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=ALERT_RETRIES,
        summary=f"alert: {request.alert.kind.value}",
    )


def found_no_worker(error: ActivityError) -> bool:
    """Return whether no worker took the activity in time."""
    cause = error.cause
    return isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START


def reason_of(error: ActivityError) -> str:
    """Return why an activity failed, in the activity's own words where it said so."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.message
    return f"{error.activity_type} failed: {cause or error}"
