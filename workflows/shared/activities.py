"""How workflows run activities: time limits and retries by capability, interruptible."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from tightloop.episode.work import Work
from tightloop.errors import IdTakenError
from tightloop.safety.drift import Drift, DriftError
from tightloop.safety.seal import RefusedPayload

# What a killed worker did runs again after this time and the first retry interval.
HEARTBEAT_TIMEOUT = timedelta(seconds=3)
"""Every activity beats once a second; a dead worker is noticed after this time."""
OPEN_TIMEOUT = timedelta(minutes=15)
PLAN_TIMEOUT = timedelta(hours=2)
"""Above the longest `planner.plan_timeout_s`, which bounds all attempts together."""
HAND_OFF_TIMEOUT = timedelta(minutes=1)
TRACK_TIMEOUT = timedelta(minutes=5)
REFLECT_TIMEOUT = timedelta(minutes=10)
RESTORE_TIMEOUT = timedelta(minutes=15)
CLOSE_TIMEOUT = timedelta(minutes=5)
GRACE = timedelta(minutes=2)
"""Added to the limits that an executor or a check keeps itself."""
NO_WORKER_TIMEOUT = timedelta(minutes=5)
"""How long an activity may wait for a worker on a task queue of its own."""

# Temporal's own default never gives up: what cannot succeed would never come before a person.
RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=30),
    maximum_attempts=12,
)
RETRIES_IN_TIME = RetryPolicy(
    initial_interval=RETRIES.initial_interval,
    backoff_coefficient=RETRIES.backoff_coefficient,
    maximum_interval=RETRIES.maximum_interval,
    maximum_attempts=RETRIES.maximum_attempts,
    non_retryable_error_types=["TemporalTimeout:StartToClose"],
)
"""A dead worker is tried again; what used up its time has failed."""

TRIES_BEFORE_FORGERS = 3
"""How often an activity runs whose result somebody without a key has sent."""

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class ActivityOptions:
    """How one activity is to be run."""

    summary: str
    """Shown beside the activity in Temporal's own UI. It costs as much as the rest of the command."""
    timeout: timedelta
    queue: str = ""
    """Task queue; empty for the workflow's own, where activities start eagerly."""
    busy_for: timedelta = timedelta()
    """How long the workers of that queue may rightly be busy with something else."""
    work: Work | None = None
    """What a person is told that it does; None: its summary and its limit."""
    instant: bool = False
    """It takes no time: it need not beat, and where it uses up its limit nevertheless, it is tried again."""


class ActivityFailedError(Exception):
    """An activity failed for good; `reason` is the sentence for a person."""

    def __init__(
        self,
        reason: str,
        *,
        no_worker: bool = False,
        timed_out: bool = False,
        id_taken: bool = False,
        drift: Drift | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.no_worker, self.timed_out, self.id_taken = reason, no_worker, timed_out, id_taken
        self.drift = drift


class ActivityRunner:
    """Runs activities and remembers those that are running, so that they can be stopped."""

    def __init__(
        self, *, no_worker_timeout: timedelta = NO_WORKER_TIMEOUT, retry_policy: RetryPolicy = RETRIES
    ) -> None:
        self._no_worker_timeout = no_worker_timeout
        self._retry_policy = retry_policy
        # A dictionary, because the order of a set could differ in replay.
        self._running: dict[workflow.ActivityHandle[Any], None] = {}
        self.interrupted = False
        """Whether what ran last was stopped on purpose."""

    def interrupt(self) -> None:
        """Cancel what is running; `run` then fails when the activity has really stopped."""
        for handle in self._running:
            self.interrupted = True
            handle.cancel()

    @overload
    async def run(
        self, method: Callable[[Any, A], Coroutine[Any, Any, R]], request: A, options: ActivityOptions
    ) -> R: ...
    @overload
    async def run(self, method: Callable[[Any, A], R], request: A, options: ActivityOptions) -> R: ...
    async def run(self, method: Callable[[Any, Any], Any], request: Any, options: ActivityOptions) -> Any:
        """Run an activity to its end.

        Raises:
            ActivityFailedError: it failed for good, used up its time, was interrupted, or no worker took it.
            asyncio.CancelledError: the task that waits for it, or the whole workflow, is being cancelled.
        """
        reason = ""
        for _ in range(TRIES_BEFORE_FORGERS):
            result = await self._run_once(method, request, options)
            if not isinstance(result, RefusedPayload):
                return result
            reason = result.reason
        raise ActivityFailedError(
            f"{method.__name__} was answered {TRIES_BEFORE_FORGERS} times by something that has no key of this "
            f"installation ({reason}). See which workers poll the task queue: tightloop doctor"
        )

    async def _run_once(self, method: Callable[[Any, Any], Any], request: Any, options: ActivityOptions) -> Any:
        patience = self._no_worker_timeout + options.busy_for
        handle: workflow.ActivityHandle[Any] = workflow.start_activity_method(
            method,
            request,
            activity_id=new_activity_id(),
            task_queue=options.queue or None,
            start_to_close_timeout=options.timeout,
            # Temporal does not retry this timeout: waiting longer for a worker is decided by the workflow.
            schedule_to_start_timeout=patience if options.queue else None,
            heartbeat_timeout=None if options.instant else HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES if options.instant else self._retry_policy,
            # Nothing else may touch the tree before the activity has really stopped.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=options.summary or None,
        )
        self._running[handle], self.interrupted = None, False
        try:
            return await handle
        except ActivityError as error:
            if is_cancelled_exception(error) and not self.interrupted:
                raise asyncio.CancelledError from error
            if isinstance(error.cause, ApplicationError) and error.cause.type == RefusedPayload.__name__:
                return RefusedPayload(error.cause.message)
            raise _failure(error, options, patience) from error
        finally:
            del self._running[handle]


def new_activity_id() -> str:
    """Return an id that no other activity of this workflow has had: results are sealed for one call only."""
    return workflow.uuid4().hex[:16]


def _failure(error: ActivityError, options: ActivityOptions, patience: timedelta) -> ActivityFailedError:
    """Return why an activity failed, in the activity's own words where it said so."""
    cause = error.cause
    if found_no_worker(error):
        return ActivityFailedError(
            f"no worker on task queue {options.queue!r} took {error.activity_type} within "
            f"{patience.total_seconds():g} s. Start one for this queue, then resume",
            no_worker=True,
        )
    if isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.START_TO_CLOSE:
        reason = f"{error.activity_type} did not end within {options.timeout.total_seconds():g} s"
        return ActivityFailedError(reason, timed_out=True)
    if isinstance(cause, ApplicationError):
        is_drift = cause.type == DriftError.__name__ and bool(cause.details)
        drift = Drift.model_validate(cause.details[0]) if is_drift else None
        return ActivityFailedError(cause.message, id_taken=cause.type == IdTakenError.__name__, drift=drift)
    return ActivityFailedError(f"{error.activity_type} failed: {cause or error}")


def found_no_worker(error: ActivityError) -> bool:
    """Return whether no worker took the activity in time."""
    cause = error.cause
    return isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START
