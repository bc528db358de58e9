"""What follows failures of steps: another try, an alternate, a person, a planner, or the end."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from tightloop.plan.engine.recovery import Route, RouteAction, choose_route, is_out_of_time
from tightloop.plan.result import StepFailure, StepStatus
from workflows.plan.compensation import Compensation
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.questions import PlanQuestions
from workflows.plan.revisions import Revisions

AUTOMATIC_REPLANS = 2
"""How often a planner is asked because of one step."""


async def sleep(seconds: float, summary: str) -> None:
    """Wait on a timer of the workflow."""
    await workflow.sleep(seconds, summary=summary)


class Recovery:
    """Finds the way out of failures."""

    def __init__(
        self,
        context: PlanContext,
        questions: PlanQuestions,
        revisions: Revisions,
        compensation: Compensation,
        *,
        wait: Callable[[float, str], Awaitable[None]] = sleep,
    ) -> None:
        """Begin with nothing under way; `wait` waits for some seconds, with a summary for Temporal's own UI."""
        self._context, self._questions = context, questions
        self._revisions, self._compensation, self._wait = revisions, compensation, wait
        self._backing_off: dict[str, asyncio.Task[None]] = {}
        self._beside: dict[asyncio.Task[None], None] = {}
        """What is done beside the loop, and has to end before the plan or its run may; in the order of its begin."""

    @property
    def is_backing_off(self) -> bool:
        """Whether a step waits for its next attempt."""
        return bool(self._backing_off)

    @property
    def is_beside(self) -> bool:
        """Whether something is done beside the loop."""
        return bool(self._beside)

    def cancel(self) -> None:
        """Stop everything: the plan ends."""
        self._revisions.stop()
        self.stop_backing_off()
        for task in self._beside:
            task.cancel()

    def stop_backing_off(self) -> None:
        """End the waits for next attempts; the next run begins them again."""
        for task in self._backing_off.values():
            task.cancel()

    def restore(self) -> None:
        """Wait for the next attempts that the previous run was waiting for."""
        for name in list(self._context.progress.due):
            self._back_off(name)

    def fail(self, name: str, number: int, failure: StepFailure, *, attempt: int) -> None:
        """Find the way out of a failed attempt."""
        progress = self._context.progress
        progress.note_failure(name, failure)
        self._context.log("failed", name, f"{failure.failure_class.value}: {failure.reason}")
        asked = progress.replans.get(name, 0)
        attempt -= progress.earlier.get(name, 0)
        way = self._route(name, number, failure, attempt=attempt, may_replan=asked < AUTOMATIC_REPLANS)
        self._follow(name, number, failure, way)

    def _route(self, name: str, number: int, failure: StepFailure, *, attempt: int, may_replan: bool) -> Route:
        context, now = self._context, self._context.now()
        node, elapsed = context.schedule.node(number), now - context.progress.first_starts.get(name, now)
        if is_out_of_time(node, failure, attempt=attempt, elapsed=elapsed):
            why = f"its time box of {node.timebox_s or 0:g} s leaves no time for another"
            context.log("timebox", name, f"attempt {attempt} of {node.retry.attempts} is the last: {why}")
        return choose_route(
            node,
            failure,
            attempt=attempt,
            elapsed=elapsed,
            replan_allowed=may_replan and context.has_planner and not context.request.dry_run,
            on_plan_failure=context.schedule.graph.head.on_failure,
        )

    def _follow(self, name: str, number: int, failure: StepFailure, way: Route) -> None:
        context, schedule = self._context, self._context.schedule
        match way.action:
            case RouteAction.RETRY:
                schedule.retry_later(number)
                wait = timedelta(seconds=max(way.after_s, failure.retry_after_s or 0.0))
                context.progress.due[name] = context.now() + wait
                self._back_off(name)
            case RouteAction.ALTERNATE if way.compensate:
                context.hold()
                self._do_beside(self._compensation.go_another_way(name, way.compensate))
            case RouteAction.ALTERNATE:
                schedule.fail(number, alternate=True)
            case RouteAction.SKIP:
                context.progress.settle(name)
                schedule.finish(number, StepStatus.SKIPPED)
            case RouteAction.REPLAN:
                schedule.retry_later(number)
                self._do_beside(self._ask_planner(name, failure))
            case RouteAction.ASK:
                schedule.fail(number)
                self._questions.ask_about_failure(name, failure)
            case RouteAction.FAIL:
                schedule.fail(number)
            case RouteAction.ABORT | RouteAction.COMPENSATE:
                schedule.fail(number)
                compensate = way.action is RouteAction.COMPENSATE
                context.end_with(PlanEnd(f"{name}: {failure.reason}", compensate=compensate))
        context.wake()

    def _back_off(self, name: str) -> None:
        self._backing_off[name] = asyncio.create_task(self._until_due(name))

    async def _until_due(self, name: str) -> None:
        context = self._context
        wait = (context.progress.due[name] - context.now()).total_seconds()
        if wait > 0:
            await self._wait(wait, f"{name}: try again after {wait:g} s")
        del self._backing_off[name]
        if context.progress.due.pop(name, None) is None:
            return
        number = context.schedule.find(name)
        if number is not None and context.schedule.is_backing_off(number):
            context.schedule.resume(number)
        context.wake()

    async def _ask_planner(self, name: str, failure: StepFailure) -> None:
        """Have the plan changed because of a failure; without a planner go the next way."""
        context = self._context
        context.progress.replans[name] = context.progress.replans.get(name, 0) + 1
        trouble = f"step {name} failed ({failure.failure_class.value}): {failure.reason}"
        is_revised = True
        try:
            await self._revisions.revise("", "a step failed", "tightloop", trouble=trouble)
        except ApplicationError:
            is_revised = False
        number = context.schedule.find(name)
        if number is None or not context.schedule.is_backing_off(number) or context.is_ending:
            return
        if is_revised:
            context.schedule.resume(number)
        else:
            last = context.schedule.node(number).retry.attempts
            self._follow(name, number, failure, self._route(name, number, failure, attempt=last, may_replan=False))

    def _do_beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside[task] = None
        task.add_done_callback(self._end_beside)

    def _end_beside(self, task: asyncio.Task[None]) -> None:
        self._beside.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.end_with(PlanEnd(f"{type(error).__name__}: {error}"))
        self._context.wake()
