"""How a plan waits: for what runs, and for people only as long as the request allows."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from tightloop.plan.input import PlanInput
from tightloop.plan.model import OnPlanFailure

from workflows.plan_floor import PlanFloor
from workflows.plan_notice import Ended
from workflows.plan_steps import run_activity
from workflows.steps import Call, StepFailedError

NAMES_SHOWN = 5

A = TypeVar("A")
R = TypeVar("R")


class PlanWaiting(PlanFloor):
    """Waits, and counts the time that is work."""

    def __init__(self, request: PlanInput | None = None) -> None:
        """Begin with nothing that takes time."""
        super().__init__(request)
        self._busy_since: datetime | None = None
        self._resets_handled = 0

    def _take_notice(self) -> None:
        """Act on what was asked for meanwhile."""
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        if self._book.cancel is not None:
            raise Ended(self._book.cancel)
        if self._over is not None:
            raise self._over
        if self._resets > self._resets_handled:
            self._resets_handled = self._resets
            self._around.tell_again()
            self._log("reset", detail="the run was reset in Temporal; the next step that writes puts the files back")
            self._show(force=True)

    async def _next_event(self) -> None:
        """Wait until something is to be looked at; for people only as long as the request allows."""
        limit = self._patience()
        try:
            await workflow.wait_condition(
                lambda: self._woken, timeout=limit, timeout_summary="waits for a person" if limit else None
            )
        except TimeoutError:
            waits = self._book.pause.reason if self._book.pause else ", ".join(list(self._book.waiting)[:NAMES_SHOWN])
            policy = None if self._schedule is None else self._plan.graph.head.on_failure
            raise Ended(
                f"nobody answered within {self._request.pause_timeout}: {waits}",
                compensate=policy is OnPlanFailure.COMPENSATE,
            ) from None
        self._woken = False

    def _patience(self) -> timedelta | None:
        """Return how long to wait where only a person can go on."""
        if self._running or self._backing_off or self._side or self._alerting:
            return None
        since = [gate.since for gate in self._book.waiting.values() if gate.since is not None]
        if self._book.pause is not None and self._book.pause.since is not None:
            since.append(self._book.pause.since)
        begun = min(since, default=workflow.now())
        left = begun + self._request.pause_timeout - workflow.now()
        return max(left, timedelta(milliseconds=1))

    def _count_time(self) -> None:
        """Count the time in which something runs or backs off; waiting for people is not work."""
        now = workflow.now()
        if self._busy_since is not None:
            self._book.worked(now - self._busy_since)
        self._busy_since = now if self._running or self._backing_off or self._side else None

    async def _do(self, method: Callable[[Any, A], R], request: Callable[[], A], call: Call) -> R:
        """Run one activity; where it cannot be run, a person is waited for, then it is run again."""
        while True:
            try:
                return await self._unless_cancelled(method, request(), call)
            except StepFailedError as failure:
                self._begin_pause_for(failure)
                await self._until_resumed()

    async def _unless_cancelled(self, method: Callable[[Any, A], R], request: A, call: Call) -> R:
        """Run one activity, and stop it when the plan is cancelled."""
        task = asyncio.create_task(run_activity(method, request, call))
        try:
            await workflow.wait_condition(lambda: task.done() or self._book.cancel is not None)
        except asyncio.CancelledError:
            await _stopped(task)
            raise
        await _stopped(task)
        self._take_notice()
        return await task

    async def _until_resumed(self) -> None:
        while self._book.pause is not None:
            self._take_notice()
            await self._next_event()
        self._take_notice()


async def _stopped(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()
        await workflow.wait_condition(task.done)
