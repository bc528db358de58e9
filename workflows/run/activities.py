"""How a workflow executes activities."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from activities.staffing import CheckWorkersRequest, WorkerAvailability, WorkerCheckActivities
from tightloop.errors import IdTakenError, WorkspaceElsewhereError
from tightloop.run.core import Queues, Urgency, Work, fairness_key, wait_for_worker
from tightloop.run.question import Question
from tightloop.safety.drift import Drift, DriftError
from tightloop.safety.seal import RefusedPayload
from tightloop.value import format_count

FOUND_BY_WORKER = "tightloop"
"""`source` of the timeout failure that is recorded when a worker process is found to be dead."""
OPEN_TIMEOUT = timedelta(minutes=15)
SETUP_TIMEOUT = timedelta(hours=1)
"""Timeout for setup. It exceeds the command's limit to allow for the checkout before it and for copies of its results.
"""
FIND_TIMEOUT = timedelta(minutes=40)
"""Timeout for finding checks. It exceeds the total time of the trial runs, which the activity limits itself."""
PLAN_TIMEOUT = timedelta(hours=2)
"""Timeout for planning. It exceeds the maximum of `planner.plan_timeout_s`, which limits all attempts together."""
HAND_OFF_TIMEOUT = timedelta(minutes=1)
TRACK_TIMEOUT = timedelta(minutes=5)
REFLECT_TIMEOUT = timedelta(minutes=10)
REVIEW_TIMEOUT = timedelta(minutes=10)
"""Timeout for a review. It exceeds the time limit of the model call, which the activity enforces itself."""
RESTORE_TIMEOUT = timedelta(minutes=15)
CLOSE_TIMEOUT = timedelta(minutes=5)
GRACE = timedelta(minutes=2)
"""Time added to limits that an executor or a check enforces itself."""
NOTICE = timedelta(seconds=20)
"""Schedule-to-start timeout on another task queue, after which the workflow checks for workers."""
EXECUTOR_NOTICE = timedelta(seconds=3)
"""Schedule-to-start timeout on a dedicated executor queue, such as one for a screen, so that people are alerted to a
missing worker within 5 s.
"""
LOOK_TIMEOUT = timedelta(seconds=30)
LOOK_AGAIN = timedelta(minutes=10)
"""Interval between two checks for workers. Workers that were busy may have disappeared since the last check."""

# Temporal retries forever by default, so a person would never hear of a permanent failure.
RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=30),
    # The waits add up to 141 s, which bridges the restart of a service without calling a person.
    maximum_attempts=12,
)
# The server's own name for this timeout; the SDK has no constant for it.
RETRIES_IN_TIME = replace(RETRIES, non_retryable_error_types=["TemporalTimeout:StartToClose"])
"""Retry policy for plan steps. A dead worker causes a retry, but exceeding the time limit is a failure."""

TRIES_BEFORE_FORGERS = 3
"""Maximum number of attempts for an activity whose results are not signed with any of this installation's keys."""

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class ActivityOptions:
    """Options for one activity."""

    summary: str
    """Summary to show in Temporal's UI. It costs as much as the rest of the command."""
    timeout: timedelta
    queue: str = ""
    """Task queue. If it is empty, the workflow's own queue is used, where activities start eagerly."""
    work: Work | None = None
    """Work that is shown to people. If it is None, it is derived from the summary and the timeout."""
    open_question: Question | None = None
    """Question that is open while the activity runs. An answer stops the activity."""
    at_once: bool = False
    """Run the activity without a safe point before it. Such an activity concludes earlier work, so that the tree is
    known at a pause.
    """
    instant: bool = False
    """True if the activity finishes almost immediately. It then has no heartbeats, and a timeout is retried."""


class ActivityFailedError(Exception):
    """Raised if an activity failed after all retries. `reason` is a human-readable sentence."""

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


class Routing:
    """The task queues and the priority of a workflow's activities. Base class of `Run`."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    @property
    def queues(self) -> Queues:
        """Task queues for the host, the executor and the models."""
        return self._queues

    @property
    def priority(self) -> Priority:
        """The priority of the next activity. By default, this is the priority of the workflow."""
        return Priority()

    def report_missing_worker(self, what: str) -> None:
        """Handle a missing executor worker. Called once per wait."""

    def leave_silent_host(self, successor: str) -> bool:
        """Return whether the workflow is moving to the host `successor`, because its own host is silent."""
        del successor
        return False


class ActivityRunner:
    """Runs activities on the workspace's host. Running activities can be interrupted.

    The workflow's own task queue is tried first, because activities start eagerly there. If a host on
    this queue does not have the workspace, later activities use the task queue of the host that has it.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        notice: timedelta = NOTICE,
        retry_policy: RetryPolicy = RETRIES,
        quiet: bool = False,
    ) -> None:
        """Start with no running activity.

        If `quiet` is True, missing workers and silent hosts are not reported to `routing`.
        """
        self._routing, self._notice, self._retry_policy, self._quiet = routing, notice, retry_policy, quiet
        self._other_hosts = False
        # Dictionaries, because the order of a set could differ in replay.
        self._waits: dict[tuple[datetime, str], None] = {}
        self._running: dict[asyncio.Task[Any], None] = {}
        self._interrupts = 0
        self.interrupted = False
        """True if the last call was interrupted."""

    @property
    def waits_for(self) -> str:
        """Task queue that an activity is waiting on, and when the wait began. Empty if no activity is waiting.

        The value comes from the last check. Only Temporal knows whether the activity has started since then.
        """
        return next((wait_for_worker(since, queue) for since, queue in self._waits), "")

    def interrupt(self) -> None:
        """Cancel all running activities. `run` raises an error once they have stopped."""
        # Counted, because an interrupt may come between two activities, when there is nothing to cancel.
        self._interrupts += 1
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
        """Run an activity until it ends.

        Raises:
            ActivityFailedError: the activity failed after all retries, timed out or was interrupted, or no
                worker took it.
            asyncio.CancelledError: the awaiting task or the workflow is being cancelled.
        """
        queue, tried_queues, before, forged = self._place(options), list[str](), self._interrupts, 0
        while True:
            try:
                result = await self._run_on(queue, method, request, options)
            except ActivityError as error:
                cause = error.cause
                if not isinstance(cause, ApplicationError):
                    raise _failure(error, options) from error
                if cause.type == WorkspaceElsewhereError.__name__ and not self._is_stopped(before):
                    tried_queues.append(queue)
                    queue = self._elsewhere(options, cause, tried_queues)
                    continue
                if cause.type != RefusedPayload.__name__:
                    raise _failure(error, options) from error
                result = RefusedPayload(cause.message)
            if not isinstance(result, RefusedPayload):
                return result
            forged += 1
            if forged == TRIES_BEFORE_FORGERS:
                raise ActivityFailedError(
                    f"{TRIES_BEFORE_FORGERS} results from {method.__name__} were not sealed with a key from this "
                    f"installation ({result.reason}). Check which workers poll the task queue: tightloop doctor"
                )

    async def run_local(self, method: Callable[[Any, A], R], request: A, timeout: timedelta) -> R:
        """Run a short activity as a local activity, in the worker that runs the workflow.

        A local activity adds fewer events to the history. It has no heartbeats and may run again after a
        crash.

        Raises:
            ActivityFailedError: see `run`.
            asyncio.CancelledError: see `run`.
        """
        handle = workflow.start_local_activity_method(
            method,
            request,
            activity_id=new_activity_id(),
            start_to_close_timeout=timeout,
            retry_policy=RETRIES,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        try:
            result: R | RefusedPayload = await self._settle(handle)
        except ActivityError as error:
            raise _failure(error, ActivityOptions("", timeout)) from error
        if isinstance(result, RefusedPayload):
            raise ActivityFailedError(f"the result of {method.__name__} is not authentic: {result.reason}")
        return result

    async def run_workflow(self, child: Coroutine[Any, Any, R]) -> R:
        """Wait for a child workflow. `interrupt` cancels the child.

        The child has closed when this method returns or raises an error.

        Raises:
            ActivityFailedError: the child failed or was interrupted.
            asyncio.CancelledError: see `run`.
        """
        task = asyncio.create_task(child)
        self._running[task], self.interrupted = None, False
        try:
            return await task
        except asyncio.CancelledError:
            if self.interrupted:
                raise ActivityFailedError("the child workflow was stopped") from None
            raise
        finally:
            del self._running[task]

    async def _run_on(
        self, queue: str, method: Callable[[Any, Any], Any], request: Any, options: ActivityOptions
    ) -> Any:
        """Run an activity on a task queue. Wait while the workers of the queue are busy."""
        since, notice, is_reported, before = workflow.now(), self._notice, False, self._interrupts
        if self._is_executors_own(queue):
            notice = min(notice, EXECUTOR_NOTICE)
        try:
            while True:
                try:
                    return await self._settle(self._start(method, request, options, queue, notice))
                except ActivityError as error:
                    if not found_no_worker(error) or self._is_stopped(before):
                        raise
                    self._waits[since, queue] = None
                    notice, missing = await self._check_workers(request, queue, error.activity_type, since)
                    # The interrupt may have come during the look, which then ended by itself.
                    if self._is_stopped(before):
                        raise
                    if missing and not is_reported and not self._quiet and self._is_executors_own(queue):
                        is_reported = True
                        self._routing.report_missing_worker(
                            f"no worker on task queue {queue!r} has accepted {error.activity_type} yet. The workflow "
                            "is still waiting"
                        )
        finally:
            self._waits.pop((since, queue), None)

    def _is_stopped(self, before: int) -> bool:
        """Return whether `interrupt` has been called since `before` was read, even if nothing was running."""
        if self._interrupts == before:
            return False
        self.interrupted = True
        return True

    def _start(
        self, method: Callable[[Any, Any], Any], request: Any, options: ActivityOptions, queue: str, notice: timedelta
    ) -> workflow.ActivityHandle[Any]:
        return workflow.start_activity_method(
            method,
            request,
            activity_id=new_activity_id(),
            task_queue=queue or None,
            start_to_close_timeout=options.timeout,
            # Temporal does not retry this timeout, so the workflow decides whether to wait longer for a worker.
            schedule_to_start_timeout=notice if queue else None,
            # Heartbeats come once a second; the timeout is set by how long the server may be unreachable.
            heartbeat_timeout=None if options.instant else timedelta(seconds=self._routing.queues.absence_s),
            retry_policy=RETRIES if options.instant else self._retry_policy,
            # Nothing else may touch the tree before the activity has really stopped.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=options.summary or None,
            priority=self._routing.priority,
        )

    async def _settle(self, handle: workflow.ActivityHandle[Any]) -> Any:
        """Wait for an activity. `interrupt` cancels the activity."""
        self._running[handle], self.interrupted = None, False
        try:
            return await handle
        except ActivityError as error:
            if is_cancelled_exception(error) and not self.interrupted:
                raise asyncio.CancelledError from error
            raise
        finally:
            del self._running[handle]

    # -- task queues and workers ----------------------------------------------------------------------

    def _place(self, options: ActivityOptions) -> str:
        queues = self._routing.queues
        return queues.home if self._other_hosts and options.queue in ("", queues.workspace) else options.queue

    def _elsewhere(self, options: ActivityOptions, cause: ApplicationError, tried_queues: list[str]) -> str:
        """Return the task queue to try next if the workers of a queue do not have the workspace.

        Raises:
            ActivityFailedError: there is no other queue to try.
        """
        queues = self._routing.queues
        if options.queue not in ("", queues.workspace):
            raise ActivityFailedError(
                f"{cause.message}. The worker for task queue {options.queue!r} must run on the workspace's host, "
                "with the same TIGHTLOOP_HOME. Start the worker on that host, or remove the task queue from the "
                "settings"
            )
        self._other_hosts = True
        # Before the workspace is bound to a host, the worker that refused names all candidates.
        homes = [queues.home] if queues.home else [str(home) for home in cause.details]
        if not homes:
            raise ActivityFailedError(
                f"{cause.message}. No workspace worker is running. Start a worker with the 'workspace' or 'all' "
                "role on the host that contains the workspace, then resume",
                no_worker=True,
            )
        left = [home for home in homes if home not in tried_queues]
        if not left:
            raise ActivityFailedError(
                f"{cause.message}. Task queues tried: {', '.join(filter(None, tried_queues)) or 'none'}"
            )
        return left[0]

    def _is_executors_own(self, queue: str) -> bool:
        queues = self._routing.queues
        return queue == queues.executor not in ("", queues.workspace, queues.home)

    async def _check_workers(self, request: Any, queue: str, activity: str, since: datetime) -> tuple[timedelta, bool]:
        """Check whether a task queue has workers. Called if no worker has taken an activity yet.

        Returns:
            Time until the next check, and whether the queue has no worker.

        Raises:
            ActivityFailedError: the configured waiting time has passed.
        """
        # A local activity, because the slots for ordinary ones may be used up.
        looking = workflow.start_local_activity_method(
            WorkerCheckActivities.look_for_workers,
            CheckWorkersRequest(scope=request.scope, queue=queue, waited=workflow.now() - since),
            activity_id=new_activity_id(),
            schedule_to_close_timeout=LOOK_TIMEOUT,
            retry_policy=RETRIES,
        )
        try:
            staff: WorkerAvailability = await self._settle(looking)
        except ActivityError as error:
            if self.interrupted:
                raise _failure(error, ActivityOptions("", LOOK_TIMEOUT, queue)) from error
            # The check itself failed: keep waiting for the usual time.
            return self._notice, False
        waited = workflow.now() - since
        if staff.successor and not self._quiet and self._routing.leave_silent_host(staff.successor):
            # The host may never come back, so nothing else would end the wait for this activity.
            self.interrupt()
        if waited < staff.patience:
            return min(staff.patience - waited, staff.again or LOOK_AGAIN, LOOK_AGAIN), staff.workers == 0
        after = f"within {waited.total_seconds():.0f} s"
        if staff.workers:
            busy = (
                f"{format_count(staff.workers, 'worker')} on task queue {queue!r} had no free slot for "
                f"{activity} {after}"
            )
            raise ActivityFailedError(f"{busy}. Start another worker, or resume to keep waiting", no_worker=True)
        raise ActivityFailedError(
            f"no worker on task queue {queue!r} accepted {activity} {after}. Start a worker for this queue, "
            "then resume",
            no_worker=True,
        )


def new_activity_id() -> str:
    """Return an ID that is unique in this workflow. Each result is sealed for a single activity."""
    return workflow.uuid4().hex[:16]


def _failure(error: ActivityError, options: ActivityOptions) -> ActivityFailedError:
    """Return the error to raise for a failed activity. The activity's own message is used if available."""
    cause = error.cause
    if isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.START_TO_CLOSE:
        reason = f"{error.activity_type} exceeded its time limit of {options.timeout.total_seconds():g} s"
        return ActivityFailedError(reason, timed_out=True)
    if isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.HEARTBEAT:
        # The server only knows that heartbeats are missing. A worker that finds another one dead reports that itself.
        is_found = cause.failure is not None and cause.failure.source == FOUND_BY_WORKER
        lost = "its heartbeats stopped, because its worker or host died or could not reach Temporal"
        return ActivityFailedError(f"{error.activity_type} was interrupted: {cause.message if is_found else lost}")
    if isinstance(cause, ApplicationError):
        is_drift = cause.type == DriftError.__name__ and bool(cause.details)
        drift = Drift.model_validate(cause.details[0]) if is_drift else None
        return ActivityFailedError(cause.message, id_taken=cause.type == IdTakenError.__name__, drift=drift)
    return ActivityFailedError(f"{error.activity_type} failed: {cause or error}")


def found_no_worker(error: ActivityError) -> bool:
    """Return whether an activity failed because no worker took it in time."""
    cause = error.cause
    return isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START


def priority_of(project: str, weight: float, urgent: Urgency) -> Priority:
    """Return the task queue priority of a project's activities."""
    return Priority(priority_key=int(urgent), fairness_key=fairness_key(project) or None, fairness_weight=weight)
