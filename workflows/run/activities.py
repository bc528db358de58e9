"""How a workflow runs its activities."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from activities.staffing import LookRequest, Staffing, StaffingActivities
from tightloop.errors import IdTakenError, WorkspaceElsewhereError
from tightloop.run.core import Work, wait_for_worker
from tightloop.run.question import Question
from tightloop.run.routing import Queues, Urgency, fairness_key
from tightloop.safety.drift import Drift, DriftError
from tightloop.safety.seal import RefusedPayload
from tightloop.value import counted

FOUND_BY_WORKER = "tightloop"
"""Source of the failure of an activity whose worker process was found to have ended."""
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
NOTICE = timedelta(seconds=20)
"""So long an activity waits on another task queue than the workflow's before it is looked who works there."""
EXECUTOR_NOTICE = timedelta(seconds=3)
"""The same on the queue of an executor alone, such as a screen: people are told within 5 s that nobody is there."""
LOOK_TIMEOUT = timedelta(seconds=30)
LOOK_AGAIN = timedelta(minutes=10)
"""Workers that were busy may be gone by then."""

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
    work: Work | None = None
    """What a person is told that it does; None: its summary and its limit."""
    beside: Question | None = None
    """Open while it runs; whoever answers it ends the activity."""
    at_once: bool = False
    """It concludes what ran before: nobody steps in between, so the tree is known at a pause."""
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


class Routing:
    """Where the activities of a workflow run, and in which order. A `Run` is one."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    @property
    def queues(self) -> Queues:
        """Task queues of the host, the executor and the models."""
        return self._queues

    @property
    def priority(self) -> Priority:
        """Order of the next activity; by default that of its workflow."""
        return Priority()

    def tell_missing(self, what: str) -> None:
        """Take note that no worker runs the executor; called once for each wait."""

    def leave_silent_host(self, successor: str) -> bool:
        """Return whether the workflow goes on on the host `successor` because its own has been silent for too long."""
        del successor
        return False


class ActivityRunner:
    """Runs activities on the host of the workspace and remembers those that are running, so that they can be stopped.

    The workflow's own task queue is tried first, because activities start eagerly there. Once that has reached another
    host than the workspace's, they go to the task queue of its home.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        notice: timedelta = NOTICE,
        retry_policy: RetryPolicy = RETRIES,
        quiet: bool = False,
    ) -> None:
        """Start with nothing under way. `quiet`: `routing` is not told of missing workers and silent hosts."""
        self._routing, self._notice, self._retry_policy, self._quiet = routing, notice, retry_policy, quiet
        self._other_hosts = False
        # Dictionaries, because the order of a set could differ in replay.
        self._waits: dict[tuple[datetime, str], None] = {}
        self._running: dict[asyncio.Task[Any], None] = {}
        self._interrupts = 0
        self.interrupted = False
        """Whether what ran last was stopped on purpose."""

    @property
    def waits_for(self) -> str:
        """Where a step waits, for which it was looked for workers; Temporal knows whether it has begun meanwhile."""
        return next((wait_for_worker(since, queue) for since, queue in self._waits), "")

    def interrupt(self) -> None:
        """Cancel what is running; `run` then fails when the activity has really stopped."""
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
        """Run an activity to its end.

        Raises:
            ActivityFailedError: it failed for good, used up its time, was interrupted, or no worker took it.
            asyncio.CancelledError: the task that waits for it, or the whole workflow, is being cancelled.
        """
        queue, asked, before, forged = self._place(options), list[str](), self._interrupts, 0
        while True:
            try:
                result = await self._run_on(queue, method, request, options)
            except ActivityError as error:
                cause = error.cause
                if not isinstance(cause, ApplicationError):
                    raise _failure(error, options) from error
                if cause.type == WorkspaceElsewhereError.__name__ and not self._is_stopped(before):
                    asked.append(queue)
                    queue = self._elsewhere(options, cause, asked)
                    continue
                if cause.type != RefusedPayload.__name__:
                    raise _failure(error, options) from error
                result = RefusedPayload(cause.message)
            if not isinstance(result, RefusedPayload):
                return result
            forged += 1
            if forged == TRIES_BEFORE_FORGERS:
                raise ActivityFailedError(
                    f"{method.__name__} was answered {TRIES_BEFORE_FORGERS} times by something that has no key of this "
                    f"installation ({result.reason}). See which workers poll the task queue: tightloop doctor"
                )

    async def run_local(self, method: Callable[[Any, A], R], request: A, timeout: timedelta) -> R:
        """Run an activity that takes no longer than a workflow task may, in the worker that has the workflow.

        It costs fewer events than an ordinary one, has no heartbeats, and may run again after a crash.

        Raises:
            ActivityFailedError: as `run` does.
            asyncio.CancelledError: as `run` does.
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
        """Wait for a child workflow, which `interrupt` cancels; it has ended when this returns or raises.

        Raises:
            ActivityFailedError: it was interrupted, or failed.
            asyncio.CancelledError: as `run` does.
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
        """Run an activity on a task queue; where its workers are busy, wait for them."""
        since, notice, told, before = workflow.now(), self._notice, False, self._interrupts
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
                    notice, missing = await self._look(request, queue, error.activity_type, since)
                    if self._is_stopped(before):
                        raise
                    if missing and not told and not self._quiet and self._is_executors_own(queue):
                        told = True
                        self._routing.tell_missing(
                            f"no worker on task queue {queue!r} takes {error.activity_type}; it waits"
                        )
        finally:
            self._waits.pop((since, queue), None)

    def _is_stopped(self, before: int) -> bool:
        """Return whether it was interrupted since then, though what ran at that moment had just ended by itself."""
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
            # Temporal does not retry this timeout: waiting longer for a worker is decided by the workflow.
            schedule_to_start_timeout=notice if queue else None,
            # Heartbeats are sent once a second; what they have to outlast is an absence of the server.
            heartbeat_timeout=None if options.instant else timedelta(seconds=self._routing.queues.absence_s),
            retry_policy=RETRIES if options.instant else self._retry_policy,
            # Nothing else may touch the tree before the activity has really stopped.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=options.summary or None,
            priority=self._routing.priority,
        )

    async def _settle(self, handle: workflow.ActivityHandle[Any]) -> Any:
        """Wait for an activity, which `interrupt` stops."""
        self._running[handle], self.interrupted = None, False
        try:
            return await handle
        except ActivityError as error:
            if is_cancelled_exception(error) and not self.interrupted:
                raise asyncio.CancelledError from error
            raise
        finally:
            del self._running[handle]

    # -- where, and by whom ---------------------------------------------------------------------------

    def _place(self, options: ActivityOptions) -> str:
        queues = self._routing.queues
        return queues.home if self._other_hosts and options.queue in ("", queues.workspace) else options.queue

    def _elsewhere(self, options: ActivityOptions, cause: ApplicationError, asked: list[str]) -> str:
        """Return the task queue to try next, after workers that have not the workspace.

        Raises:
            ActivityFailedError: there is none.
        """
        queues = self._routing.queues
        if options.queue not in ("", queues.workspace):
            raise ActivityFailedError(
                f"{cause.message}. The worker of task queue {options.queue!r} reads and writes what lies there: start "
                "it on that host with the same TIGHTLOOP_HOME, or leave this queue out of the settings"
            )
        self._other_hosts = True
        homes = [queues.home] if queues.home else [str(home) for home in cause.details]
        if not homes:
            raise ActivityFailedError(
                f"{cause.message}, and no worker opens workspaces. Start one of role workspace or all on the host that "
                "has this one, then resume",
                no_worker=True,
            )
        left = [home for home in homes if home not in asked]
        if not left:
            raise ActivityFailedError(f"{cause.message}. Asked: {', '.join(filter(None, asked)) or 'no other host'}")
        return left[0]

    def _is_executors_own(self, queue: str) -> bool:
        queues = self._routing.queues
        return queue == queues.executor not in ("", queues.workspace, queues.home)

    async def _look(self, request: Any, queue: str, activity: str, since: datetime) -> tuple[timedelta, bool]:
        """Look who works on a task queue, where nobody took an activity for a while.

        Returns:
            How long to wait until the next look, and whether nobody works there.

        Raises:
            ActivityFailedError: it has waited as long as the settings allow.
        """
        # Local: the slots of ordinary activities may be what is waited for.
        looking = workflow.start_local_activity_method(
            StaffingActivities.look_for_workers,
            LookRequest(scope=request.scope, queue=queue, waited=workflow.now() - since),
            activity_id=new_activity_id(),
            schedule_to_close_timeout=LOOK_TIMEOUT,
            retry_policy=RETRIES,
        )
        try:
            staff: Staffing = await self._settle(looking)
        except ActivityError as error:
            if self.interrupted:
                raise _failure(error, ActivityOptions("", LOOK_TIMEOUT, queue)) from error
            return self._notice, False
        waited = workflow.now() - since
        if staff.successor and not self._quiet and self._routing.leave_silent_host(staff.successor):
            self.interrupt()
        if waited < staff.patience:
            return min(staff.patience - waited, staff.again or LOOK_AGAIN, LOOK_AGAIN), staff.workers == 0
        after = f"within {waited.total_seconds():.0f} s"
        if staff.workers:
            busy = f"{counted(staff.workers, 'worker')} on task queue {queue!r} had no free slot for {activity} {after}"
            raise ActivityFailedError(f"{busy}. Start another one, or resume to wait on", no_worker=True)
        raise ActivityFailedError(
            f"no worker on task queue {queue!r} took {activity} {after}. Start one for this queue, then resume",
            no_worker=True,
        )


def new_activity_id() -> str:
    """Return an id that no other activity of this workflow has had: results are sealed for one call only."""
    return workflow.uuid4().hex[:16]


def _failure(error: ActivityError, options: ActivityOptions) -> ActivityFailedError:
    """Return why an activity failed, in the activity's own words where it said so."""
    cause = error.cause
    if isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.START_TO_CLOSE:
        reason = f"{error.activity_type} did not end within {options.timeout.total_seconds():g} s"
        return ActivityFailedError(reason, timed_out=True)
    if isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.HEARTBEAT:
        # The server only knows that it heard nothing; a worker that finds another one dead says so in its own words.
        is_found = cause.failure is not None and cause.failure.source == FOUND_BY_WORKER
        lost = "no heartbeat came: its worker or its host was lost, or could not reach Temporal"
        return ActivityFailedError(f"{error.activity_type} broke off: {cause.message if is_found else lost}")
    if isinstance(cause, ApplicationError):
        is_drift = cause.type == DriftError.__name__ and bool(cause.details)
        drift = Drift.model_validate(cause.details[0]) if is_drift else None
        return ActivityFailedError(cause.message, id_taken=cause.type == IdTakenError.__name__, drift=drift)
    return ActivityFailedError(f"{error.activity_type} failed: {cause or error}")


def found_no_worker(error: ActivityError) -> bool:
    """Return whether no worker took the activity in time."""
    cause = error.cause
    return isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START


def priority_of(project: str, weight: float, urgent: Urgency) -> Priority:
    """Return the order in which Temporal hands out the tasks of a project."""
    return Priority(priority_key=int(urgent), fairness_key=fairness_key(project) or None, fairness_weight=weight)
