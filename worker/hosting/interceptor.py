"""Wraps every activity: checks its request, sends heartbeats, and turns our errors into Temporal failures."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput, Interceptor

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
from tightloop.safety.identity import check_id
from tightloop.safety.seal import SealKind
from tightloop.value.scrub import scrub
from worker.hosting.attempts import BEAT_SECONDS, Attempt, Work, Works
from worker.hosting.home import Home
from worker.hosting.presence import Presence

logger = logging.getLogger("tightloop")

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
        self._home, self._client, self._presence, self._works = home, client, presence, Works(client)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap an activity."""
        return _Inbound(next, self._home, self._client, self._presence, self._works)


class _Outbound(ActivityOutboundInterceptor):
    """Remembers the last details that the activity sent itself."""

    work: Work | None = None

    def heartbeat(self, *details: Any) -> None:
        if self.work is not None:
            self.work.details = details
        super().heartbeat(*details)


class _Inbound(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,
        home: Home | None,
        client: Client | None,
        presence: Presence | None,
        works: Works,
    ) -> None:
        super().__init__(next)
        self._home, self._client, self._presence, self._works = home, client, presence, works

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = _Outbound(outbound)
        super().init(self._outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        with self._presence.working_for(info.workflow_id or "") if self._presence else contextlib.nullcontext():
            if self._client is not None and info.attempt > 1:
                await leave_sticky_queue(self._client)
            try:
                takes_nothing = not input.args and info.activity_type in TAKE_NOTHING
                scope = None if takes_nothing else check_request(input.args)
                # Heartbeats are sealed in the context of the activity that sends them; its result is not a heartbeat.
                with sealing_as(SealKind.HEARTBEAT):
                    result = await self._do(input, scope)
                return result if self._home is None else self._home.bind(result)
            except TightloopError as error:
                logger.warning("%s: %s", info.activity_type, told(error))
                raise as_application_error(error) from error

    async def _do(self, input: ExecuteActivityInput, scope: EpisodeScope | None) -> Any:
        """Check the request, then do the work; send heartbeats meanwhile, if the workflow wants that."""
        attempt = Attempt()
        # What the attempt before told must outlive this one too, should it die before it tells more.
        before = tuple(attempt.info.heartbeat_details)
        if self._home is not None and scope is not None:
            async with self._beating(before):
                await self._home.check(attempt.info.activity_type, scope)
                await self._home.check_epoch(attempt.info.activity_type, scope)

        async def perform(work: Work) -> Any:
            self._outbound.work, work.details = work, before
            return without_secrets(await self.next.execute_activity(input))

        in_thread = not inspect.iscoroutinefunction(input.fn)
        return await self._works.do(attempt, perform, self._outbound.next.heartbeat, in_thread=in_thread)

    @contextlib.asynccontextmanager
    async def _beating(self, details: Sequence[Any]) -> AsyncIterator[None]:
        if activity.info().heartbeat_timeout is None:
            yield
            return
        beating = asyncio.create_task(self._beat(details))
        try:
            yield
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating

    async def _beat(self, details: Sequence[Any]) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._outbound.next.heartbeat(*details)


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
