"""How a plan waits: for what runs, and for people only as long as the request allows."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

from tightloop.plan.document.plan import OnPlanFailure
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.dispatch import Dispatch
from workflows.plan.questions import PlanQuestions
from workflows.plan.reporting import PlanReporting
from workflows.shared.activities import ActivityFailedError, ActivityOptions, ActivityRunner
from workflows.shared.alerts import Alerts

NAMES_SHOWN = 5

A = TypeVar("A")
R = TypeVar("R")


class Waiting:
    """Waits, and meanwhile does what people ask for."""

    def __init__(
        self,
        context: PlanContext,
        dispatch: Dispatch,
        questions: PlanQuestions,
        alerts: Alerts,
        reporting: PlanReporting,
        activities: ActivityRunner,
    ) -> None:
        self._context, self._dispatch, self._alerts, self._reporting = context, dispatch, alerts, reporting
        self._questions, self._activities = questions, activities
        self._is_reset = False

    def on_reset(self, _seed: int) -> None:
        """Mark that the run was reset. This runs outside the workflow's event loop: only a mark may be left here."""
        self._is_reset = True

    def check(self) -> None:
        """Act on what was asked for meanwhile.

        Raises:
            PlanEnd: the plan has to end.
            asyncio.CancelledError: it was cancelled in Temporal.
        """
        context = self._context
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        if context.progress.cancel is not None:
            raise PlanEnd(context.progress.cancel)
        if context.end is not None:
            raise context.end
        if self._is_reset:
            self._is_reset = False
            context.log("reset", detail="the run was reset in Temporal; the next step that writes puts the files back")
            self._reporting.tell_again()

    async def next_event(self) -> None:
        """Wait until something is to be looked at; for people only as long as the request allows.

        Raises:
            PlanEnd: nobody answered in time.
        """
        context, limit = self._context, self._patience()
        try:
            await workflow.wait_condition(
                lambda: context.is_woken, timeout=limit, timeout_summary="waits for a person" if limit else None
            )
        except TimeoutError:
            waiting = self._questions.waiting[:NAMES_SHOWN]
            names = ", ".join(question.step or question.title for question in waiting)
            raise PlanEnd(
                f"nobody answered within {context.request.pause_timeout}: {names}",
                compensate=context.failure_policy is OnPlanFailure.COMPENSATE,
            ) from None
        context.sleep()

    async def run(self, method: Callable[[Any, A], R], request: Callable[[], A], options: ActivityOptions) -> R:
        """Run one activity; where it cannot be run, a person is asked, then it is run again."""
        while True:
            try:
                return await self.run_once(method, request(), options)
            except ActivityFailedError as failure:
                self._dispatch.pause_for(failure)
                while self._questions.is_paused:
                    self.check()
                    await self.next_event()
                self.check()

    async def run_once(self, method: Callable[[Any, A], R], request: A, options: ActivityOptions) -> R:
        """Run one activity, and stop it when the plan is cancelled.

        Raises:
            ActivityFailedError: it could not be run.
        """
        task = asyncio.create_task(self._activities.run(method, request, options))
        try:
            await workflow.wait_condition(lambda: task.done() or self._context.progress.cancel is not None)
        finally:
            # Cancelling is only asked for: the next activity must not begin beside this one.
            if not task.done():
                task.cancel()
                await workflow.wait_condition(task.done)
        self.check()
        return await task

    def _patience(self) -> timedelta | None:
        """Return how long to wait where only a person can go on."""
        if self._dispatch.is_busy or self._alerts.is_sending:
            return None
        now = self._context.now()
        since = min((one.since for one in self._questions.waiting if one.since is not None), default=now)
        left = since + self._context.request.pause_timeout - now
        return max(left, timedelta(milliseconds=1))
