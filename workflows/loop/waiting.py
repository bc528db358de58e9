"""How a project's plan waits: for what runs, and for people only as long as the request allows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import workflow

from tightloop.loop.model import LoopState
from workflows.loop.context import LoopContext, LoopEnd
from workflows.shared.activities import ActivityOptions, ActivityRunner

A = TypeVar("A")
R = TypeVar("R")


class Waiting:
    """Waits, and ends the plan where a person wants that."""

    def __init__(self, context: LoopContext, activities: ActivityRunner) -> None:
        self._context, self._activities = context, activities

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a person.

        Raises:
            LoopEnd: the plan was cancelled, or nobody came in time.
        """
        limit = self._context.request.pause_timeout
        try:
            await workflow.wait_condition(
                lambda: holds() or self._context.cancelled is not None,
                timeout=limit,
                timeout_summary=f"waits for {what}",
            )
        except TimeoutError:
            raise LoopEnd(LoopState.CANCELLED, f"nobody sent {what} within {limit}") from None
        self.check()

    async def until_resumed(self) -> None:
        """Wait while the plan is paused.

        Raises:
            LoopEnd: as `until` does.
        """
        if self._context.is_paused:
            await self.until(lambda: not self._context.is_paused, "resume")

    def check(self) -> None:
        """End where a person wants that.

        Raises:
            LoopEnd: the plan was cancelled.
        """
        if self._context.cancelled is not None:
            raise LoopEnd(LoopState.CANCELLED, self._context.cancelled)

    async def run(self, method: Callable[[Any, A], Any], request: A, options: ActivityOptions) -> Any:
        """Run one activity, and stop it when the plan is cancelled.

        Raises:
            ActivityFailedError: it could not be run.
            LoopEnd: the plan was cancelled.
        """
        return await self.for_task(self._activities.run(method, request, options))

    async def for_task(self, work: Awaitable[R]) -> R:
        """Wait for what runs, and cancel it when the plan is cancelled; its end is waited for.

        Raises:
            LoopEnd: the plan was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            await workflow.wait_condition(lambda: task.done() or self._context.cancelled is not None)
        finally:
            if not task.done():
                task.cancel()
                await workflow.wait_condition(task.done)
        self.check()
        return await task
