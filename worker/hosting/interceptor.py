"""Activity interceptor. Handles lost attempts, request checks and failures."""

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
from tightloop.host.log import describe_error
from tightloop.safety.drift import DriftError
from tightloop.safety.seal import SealKind, check_id
from tightloop.value.scrub import scrub
from worker.hosting.presence import Presence
from worker.hosting.tenure import HostScope

logger = logging.getLogger("tightloop")

BEAT_SECONDS = 1.0
REMEMBERED = 256
"""Number of results that are kept for later attempts. This covers a busy worker's last few minutes."""
DESCRIBE_TIMEOUT = timedelta(seconds=5)
Key = tuple[str, str, str]


class Attempt:
    """An attempt at an activity. Must be created in the asyncio task that runs the attempt."""

    def __init__(self) -> None:
        self.info = activity.info()
        # The SDK's context, because threads and other tasks query the attempt too.
        self._context = contextvars.copy_context()

    @property
    def key(self) -> Key:
        """Key shared by all attempts of an activity."""
        return self.info.namespace, self.info.workflow_run_id or "", self.info.activity_id

    @property
    def cancellation(self) -> ActivityCancellationDetails | None:
        """Cancellation details from the SDK. None if the attempt has not been cancelled."""
        if not self._ask(activity.is_cancelled):
            return None
        return self._ask(activity.cancellation_details) or ActivityCancellationDetails()

    @property
    def is_lost(self) -> bool:
        """True if the attempt was cancelled only because of a missed heartbeat.

        Usually Temporal reports the missed heartbeat. If Temporal is unreachable, the SDK itself times out the
        attempt.
        """
        # Compared as a whole: any further flag, such as a requested cancellation, means that the work must stop.
        return self.cancellation in (
            ActivityCancellationDetails(not_found=True),
            ActivityCancellationDetails(timed_out=True),
            ActivityCancellationDetails(not_found=True, timed_out=True),
        )

    @property
    def is_shut_down(self) -> bool:
        return bool(self._ask(activity.is_worker_shutdown))

    def _ask(self, question: Callable[[], Any]) -> Any:
        # A copy, because a context cannot be entered twice, and threads may ask at the same time.
        return self._context.copy().run(question)


class Work:
    """The work of a running activity. Later attempts of the activity join it."""

    details: Sequence[Any] = ()
    """Details of the work's last heartbeat."""

    def __init__(self, attempt: Attempt, *, in_thread: bool) -> None:
        self.attempt, self._in_thread, self._is_unwanted = attempt, in_thread, False
        # Counted from the first attempt. Attempts that join later must not extend the time of the work.
        limit = attempt.info.start_to_close_timeout
        self._ends_by = time.monotonic() + limit.total_seconds() if limit else math.inf
        self.watch: asyncio.Task[None] | None = None
        self.task: asyncio.Task[Any]

    @property
    def is_late(self) -> bool:
        """True if the work has used up the time limit of one attempt."""
        return time.monotonic() > self._ends_by

    def cancellation(self) -> ActivityCancellationDetails | None:
        """Return the reason to stop the work, or None if the work should continue. Can be called from any thread."""
        attempt = self.attempt
        if self._is_unwanted or self.is_late:
            return attempt.cancellation or ActivityCancellationDetails(timed_out=True)
        return None if attempt.is_lost and not attempt.is_shut_down else attempt.cancellation

    def stop(self) -> None:
        self._is_unwanted = True
        if not self._in_thread:
            self.task.cancel()


class WorkRegistry:
    """The work that one worker is currently running."""

    def __init__(self, client: Client | None) -> None:
        """Store the client.

        It is used to check if a workflow is still waiting for work whose attempt was lost. If `client` is None,
        such work is stopped.
        """
        self._client = client
        self._running: dict[Key, Work] = {}
        self._results: OrderedDict[Key, Any] = OrderedDict()

    async def run(
        self, attempt: Attempt, perform: Callable[[Work], Awaitable[Any]], beat: Callable[..., None], *, in_thread: bool
    ) -> Any:
        """Run an activity's work, or join the work that an earlier attempt started.

        Args:
            attempt: the attempt that waits for the result.
            perform: starts the work.
            beat: sends a heartbeat for the attempt, with details of the work.
            in_thread: True if the work cannot be interrupted and has to poll for cancellation.

        Raises:
            CancelledError: Temporal gave up on the attempt. The work continues if another attempt may follow.
        """
        # The result may have been lost on its way to Temporal; the work must not run twice.
        if attempt.info.attempt > 1 and attempt.key in self._results:
            logger.info(
                "%s had already finished, so attempt %d reuses its result",
                attempt.info.activity_type,
                attempt.info.attempt,
            )
            return self._results[attempt.key]
        work = self._running.get(attempt.key)
        if work is None:
            work = self._begin(Work(attempt, in_thread=in_thread), perform)
        else:
            logger.info(
                "%s is still running, so attempt %d waits for its result",
                attempt.info.activity_type,
                attempt.info.attempt,
            )
            work.attempt = attempt
        try:
            await _wait(work, attempt, beat)
        except asyncio.CancelledError:
            if not attempt.is_lost:
                work.task.cancel()
                # Wait for the real end: the workflow takes this answer as proof that nothing uses the tree any more.
                await asyncio.wait({work.task})
        if work.task.done():
            return work.task.result()
        # Otherwise a later attempt has joined, and waits for the work.
        if work.attempt is attempt:
            work.watch = asyncio.create_task(self._watch(work))
        raise CancelledError("Temporal gave up on this attempt")

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
        # Retrieves the exception, so that asyncio does not log it if no attempt waits any more.
        if task.cancelled() or task.exception() is not None:
            return
        self._results[key] = task.result()
        while len(self._results) > REMEMBERED:
            self._results.popitem(last=False)

    async def _watch(self, work: Work) -> None:
        """Stop work whose attempt was lost if the workflow is no longer waiting for the result."""
        lost = work.attempt
        while work.attempt is lost and not work.task.done():
            if work.is_late or lost.is_shut_down or not await self._is_wanted(lost):
                if work.attempt is lost:
                    work.stop()
                return
            await asyncio.sleep(BEAT_SECONDS)

    async def _is_wanted(self, attempt: Attempt) -> bool:
        """Return whether the workflow is still waiting for the activity. Return True if Temporal is unreachable."""
        if self._client is None:
            return False
        execution = WorkflowExecution(workflow_id=attempt.info.workflow_id or "", run_id=attempt.key[1])
        request = DescribeWorkflowExecutionRequest(namespace=self._client.namespace, execution=execution)
        try:
            answer = await self._client.workflow_service.describe_workflow_execution(request, timeout=DESCRIBE_TIMEOUT)
        except RPCError as error:
            # Any other error says nothing about the workflow, and stopping the work could not be undone.
            return error.status is not RPCStatusCode.NOT_FOUND
        cancelled = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
        return any(
            pending.activity_id == attempt.info.activity_id and pending.state != cancelled
            for pending in answer.pending_activities
        )


async def _wait(work: Work, attempt: Attempt, beat: Callable[..., None]) -> None:
    """Send heartbeats until the work has ended or Temporal has given up on the attempt."""
    while not work.task.done() and not attempt.is_lost:
        await asyncio.wait({work.task}, timeout=BEAT_SECONDS)
        if work.task.done():
            return
        if attempt.info.heartbeat_timeout is not None:
            beat(*work.details)
        if work.is_late:
            work.stop()


RESET_TIMEOUT = timedelta(seconds=1)
"""Timeout of a reset. It equals the default of `worker.sticky_timeout_s`, because a slower reset would save nothing."""
TAKE_NOTHING = frozenset({"collect_leftovers"})
"""Activities that take no request. They do not access anything by name, and Temporal generates their workflow ids."""
EXACT = frozenset(
    "workspace path paths scope key name session_id host fingerprint episode_id graph source inputs episode "  # noqa: SIM905
    "bring_back".split()
)
"""Result fields that must not be scrubbed, because they are used as values and not only displayed."""


class ActivityInterceptor(Interceptor):
    """Interceptor for all of a worker's activities."""

    def __init__(
        self, home: HostScope | None = None, client: Client | None = None, presence: Presence | None = None
    ) -> None:
        """Store the host's scope, the client and the presence.

        If `home` is missing, all requests are accepted. If `client` is missing, attempts do not join the work of
        earlier attempts.
        """
        self.home, self.client, self.presence, self.works = home, client, presence, WorkRegistry(client)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self)


class _Outbound(ActivityOutboundInterceptor):
    """An outbound interceptor that remembers the details of an activity's last heartbeat."""

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
                # Heartbeats are sealed in the context of their activity, but not as its result.
                with sealing_as(SealKind.HEARTBEAT):
                    result = await self._do(input, scope)
                return result if worker.home is None else worker.home.bind(result)
            except TightloopError as error:
                logger.warning("%s: %s", info.activity_type, describe_error(error))
                raise as_application_error(error) from error

    async def _do(self, input: ExecuteActivityInput, scope: EpisodeScope | None) -> Any:
        """Check the request of an activity, then run the activity.

        If the activity has a heartbeat timeout, heartbeats are sent while it runs.
        """
        attempt = Attempt()
        # Repeat the previous attempt's details: they would be lost if this attempt died before its first own heartbeat.
        before = tuple(attempt.info.heartbeat_details)
        if (home := self._worker.home) is not None and scope is not None:
            async with self._send_heartbeats(before):
                await home.check(attempt.info.activity_type, scope)
                await home.check_epoch(attempt.info.activity_type, scope)

        async def perform(work: Work) -> Any:
            self._outbound.work, work.details = work, before
            return without_secrets(await self.next.execute_activity(input))

        in_thread = not inspect.iscoroutinefunction(input.fn)
        # Heartbeats bypass `_Outbound`, which would take the repeated details for new ones of the work.
        return await self._worker.works.run(attempt, perform, self._outbound.next.heartbeat, in_thread=in_thread)

    @contextlib.asynccontextmanager
    async def _send_heartbeats(self, details: Sequence[Any]) -> AsyncIterator[None]:
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
    """Allow any worker to take the next task of this activity's workflow.

    The worker that caches the workflow may have died with the previous attempt. Without this call, that
    worker's sticky queue would have to time out first. If the worker is still alive, it only loses its
    cache.
    """
    info = activity.info()
    execution = WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "")
    request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=execution)
    with contextlib.suppress(RPCError):
        await client.workflow_service.reset_sticky_task_queue(request, timeout=RESET_TIMEOUT)


def check_request(arguments: Sequence[Any]) -> EpisodeScope:
    """Check the request of an activity and return its scope.

    A workflow must have a valid id and may only make requests for itself, because ids become parts of
    paths and git refs.

    Raises:
        InvalidRequestError: an id is malformed or belongs to another workflow, or the workspace is not an
            absolute path.
    """
    workflow_id = activity.info().workflow_id
    scope = getattr(arguments[0], "scope", None) if len(arguments) == 1 else None
    if not workflow_id or not isinstance(scope, EpisodeScope):
        raise InvalidRequestError(
            "an activity must be started by a workflow, and must receive exactly one argument: a request that contains "
            "an episode scope"
        )
    check_id(workflow_id)
    if scope.episode_id != workflow_id:
        raise InvalidRequestError(
            f"workflow {workflow_id} sent a request with the id of another workflow: {scope.episode_id[:200]!r}"
        )
    if scope.within:
        check_id(scope.within)
    if not Path(scope.workspace).is_absolute() or "\0" in scope.workspace:
        raise InvalidRequestError(f"the workspace {scope.workspace[:200]!r} is not an absolute path")
    return scope


def without_secrets(result: Any) -> Any:
    """Remove secrets and personal data from the texts in a result. Ids are not changed."""
    return scrub.model(result, EXACT) if isinstance(result, BaseModel) else result


def as_application_error(error: TightloopError) -> ApplicationError:
    """Convert an error to a Temporal failure. The failure type is the name of the error's class."""
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
