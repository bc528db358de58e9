"""Interceptor of activities: attempts, losses, failures."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio import activity
from temporalio.activity import ActivityCancellationDetails
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput, Interceptor

from activities.attempt import current_cancellation
from activities.workspace.scope import EpisodeScope
from tightloop.client.sealing import sealing_as
from tightloop.errors import (
    InvalidRequestError,
    PlannerUnavailableError,
    TightloopError,
    WorkspaceElsewhereError,
)
from tightloop.host.log import told
from tightloop.safety.drift import DriftError
from tightloop.safety.seal import SealKind, check_id
from tightloop.value.scrub import scrub
from worker.hosting.presence import Presence
from worker.hosting.tenure import Home

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


RESET_TIMEOUT = timedelta(seconds=1)
"""The default of `worker.sticky_timeout_s`: a slower answer would save nothing."""
TAKE_NOTHING = frozenset({"collect_leftovers"})
"""Activities without a request: they name nothing, and their workflows have ids that Temporal made."""
EXACT = frozenset(
    "workspace path paths scope key name session_id host fingerprint episode_id graph source inputs episode "  # noqa: SIM905
    "bring_back".split()
)
"""Fields of results that are used as they are, not only shown."""


class ActivityInterceptor(Interceptor):
    """Wraps all activities of a worker."""

    def __init__(
        self, home: Home | None = None, client: Client | None = None, presence: Presence | None = None
    ) -> None:
        """Take where the worker is, whom it tells and asks, and where it notes for which workflows it works.

        Without a home it takes everything; without a client no attempt joins an earlier one.
        """
        self.home, self.client, self.presence, self.works = home, client, presence, Works(client)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self)


class _Outbound(ActivityOutboundInterceptor):
    """Remembers the last details that the activity sent itself."""

    work: Work | None = None

    def heartbeat(self, *details: Any) -> None:
        if self.work is not None:
            self.work.details = details
        super().heartbeat(*details)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, worker: ActivityInterceptor) -> None:
        super().__init__(next)
        self._worker = worker

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = _Outbound(outbound)
        super().init(self._outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        worker, noted = self._worker, contextlib.nullcontext()
        with worker.presence.working_for(info.workflow_id or "") if worker.presence else noted:
            if worker.client is not None and info.attempt > 1:
                await leave_sticky_queue(worker.client)
            try:
                takes_nothing = not input.args and info.activity_type in TAKE_NOTHING
                scope = None if takes_nothing else check_request(input.args)
                # Heartbeats are sealed in the context of the activity that sends them; its result is not a heartbeat.
                with sealing_as(SealKind.HEARTBEAT):
                    result = await self._do(input, scope)
                return result if worker.home is None else worker.home.bind(result)
            except TightloopError as error:
                logger.warning("%s: %s", info.activity_type, told(error))
                raise as_application_error(error) from error

    async def _do(self, input: ExecuteActivityInput, scope: EpisodeScope | None) -> Any:
        """Check the request, then do the work; send heartbeats meanwhile, if the workflow wants that."""
        attempt = Attempt()
        # What the attempt before told must outlive this one too, should it die before it tells more.
        before = tuple(attempt.info.heartbeat_details)
        if (home := self._worker.home) is not None and scope is not None:
            async with self._beating(before):
                await home.check(attempt.info.activity_type, scope)
                await home.check_epoch(attempt.info.activity_type, scope)

        async def perform(work: Work) -> Any:
            self._outbound.work, work.details = work, before
            return without_secrets(await self.next.execute_activity(input))

        in_thread = not inspect.iscoroutinefunction(input.fn)
        return await self._worker.works.do(attempt, perform, self._outbound.next.heartbeat, in_thread=in_thread)

    @contextlib.asynccontextmanager
    async def _beating(self, details: Sequence[Any]) -> AsyncIterator[None]:
        if activity.info().heartbeat_timeout is None:
            yield
            return

        async def beat() -> None:
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                self._outbound.next.heartbeat(*details)

        beating = asyncio.create_task(beat())
        try:
            yield
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating


async def leave_sticky_queue(client: Client) -> None:
    """Let any worker take the next task of this activity's workflow.

    The attempt before may have died with the worker that has the workflow in its cache: its sticky queue would be
    waited for once more. Where it lives it loses no more than its cache.
    """
    info = activity.info()
    execution = WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "")
    request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=execution)
    with contextlib.suppress(RPCError):
        await client.workflow_service.reset_sticky_task_queue(request, timeout=RESET_TIMEOUT)


def check_request(arguments: Sequence[Any]) -> EpisodeScope:
    """Return the scope of an activity.

    Refuse one that no workflow of ours asks for, or that names another workflow than the one that asks.

    Ids become parts of paths and of git refs.

    Raises:
        InvalidRequestError: an id has not our form, or is not that of the workflow.
    """
    workflow_id = activity.info().workflow_id
    scope = getattr(arguments[0], "scope", None) if len(arguments) == 1 else None
    if not workflow_id or not isinstance(scope, EpisodeScope):
        raise InvalidRequestError("activities run for a workflow only, with one request that names its scope")
    check_id(workflow_id)
    if scope.episode_id != workflow_id:
        raise InvalidRequestError(f"the request of {workflow_id} names another workflow: {scope.episode_id[:200]!r}")
    if scope.within:
        check_id(scope.within)
    if not Path(scope.workspace).is_absolute() or "\0" in scope.workspace:
        raise InvalidRequestError(f"the workspace {scope.workspace[:200]!r} is not an absolute path")
    return scope


def without_secrets(result: Any) -> Any:
    """Return what an activity answered, without secrets and personal data in its texts; ids stay as they are."""
    return scrub.model(result, EXACT) if isinstance(result, BaseModel) else result


def as_application_error(error: TightloopError) -> ApplicationError:
    """Return the Temporal failure for one of our errors; its type is the class name."""
    delay = error.retry_after if isinstance(error, PlannerUnavailableError) else None
    details: tuple[Any, ...] = error.homes if isinstance(error, WorkspaceElsewhereError) else ()
    if isinstance(error, DriftError):
        details = (error.drift,)
    return ApplicationError(
        scrub(error.message),
        *details,
        type=type(error).__name__,
        non_retryable=not error.retryable,
        next_retry_delay=delay,
    )
