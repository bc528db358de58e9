"""Wraps every activity: sends heartbeats while it works and turns our errors into Temporal failures."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput, Interceptor

from tightloop.errors import PlannerUnavailableError, TightloopError
from tightloop.log import told
from tightloop.value.scrub import scrub

logger = logging.getLogger("tightloop")

BEAT_SECONDS = 1.0
EXACT = frozenset(
    "workspace path paths scope key name session_id host fingerprint episode_id graph source inputs episode".split()  # noqa: SIM905
)
"""Fields of results that are used as they are, not only shown."""


class ActivityInterceptor(Interceptor):
    """Wraps all activities of a worker."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap an activity."""
        return _Inbound(next)


class _Outbound(ActivityOutboundInterceptor):
    """Remembers the last details that the activity sent itself."""

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        super().__init__(next)
        self.details: Sequence[Any] = ()

    def heartbeat(self, *details: Any) -> None:
        self.details = details
        super().heartbeat(*details)


class _Inbound(ActivityInboundInterceptor):
    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._outbound = _Outbound(outbound)
        super().init(self._outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        # What the attempt before told must outlive this one too, should it die before it tells more.
        self._outbound.details = tuple(activity.info().heartbeat_details)
        try:
            async with self._beating(in_thread=not inspect.iscoroutinefunction(input.fn)):
                return without_secrets(await super().execute_activity(input))
        except TightloopError as error:
            logger.warning("%s: %s", activity.info().activity_type, told(error))
            raise as_application_error(error) from error

    @contextlib.asynccontextmanager
    async def _beating(self, *, in_thread: bool) -> AsyncIterator[None]:
        """Beat meanwhile, if the workflow wants that."""
        if activity.info().heartbeat_timeout is None:
            yield
            return
        beating = asyncio.create_task(self._beat(in_thread=in_thread))
        try:
            yield
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await beating

    async def _beat(self, *, in_thread: bool) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if in_thread:
                # The heartbeat of a threaded activity waits for the event loop: never call it from there.
                await asyncio.to_thread(activity.heartbeat, *self._outbound.details)
            else:
                activity.heartbeat(*self._outbound.details)


def without_secrets(result: Any) -> Any:
    """Return what an activity answered, without secrets and personal data in its texts; ids stay as they are."""
    return scrub.model(result, EXACT) if isinstance(result, BaseModel) else result


def as_application_error(error: TightloopError) -> ApplicationError:
    """Return the Temporal failure for one of our errors; its type is the class name."""
    delay = error.retry_after if isinstance(error, PlannerUnavailableError) else None
    return ApplicationError(
        scrub(error.message), type=type(error).__name__, non_retryable=not error.retryable, next_retry_delay=delay
    )
