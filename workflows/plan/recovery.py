"""Recovery, compensation and revision."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.activity import PlanActivities
from activities.plan.requests import RevisedPlan, RevisePlanRequest, RunStepRequest
from tightloop.errors import InvalidRequestError
from tightloop.plan.child import StepFailure, StepResult, StepStatus
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.recovery import (
    Route,
    RouteAction,
    choose_route,
    find_revisions_breach,
    is_out_of_time,
    select_undo,
)
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.engine.state import UndoEntry
from tightloop.plan.failing import FailureClass
from tightloop.plan.progress import COMPENSATIONS_LIMIT
from tightloop.plan.request import PlanPhase
from tightloop.run.question import QuestionKind
from workflows.plan.context import ENDING, HARD_ATTEMPTS, PlanContext, PlanEnd
from workflows.plan.reporting import PlanQuestions, PlanReporting
from workflows.run.activities import ActivityFailedError, ActivityRunner
from workflows.run.kernel import ContinueAsNew

COMPENSATE_TIMEOUT = timedelta(minutes=30)


class Compensation:
    """Undoes attempts, starting with the latest attempt."""

    def __init__(
        self,
        context: PlanContext,
        reporting: PlanReporting,
        activities: ActivityRunner,
    ) -> None:
        self._context, self._reporting, self._activities = context, reporting, activities
        # asyncio's lock wakes waiters in FIFO order, in replay too.
        self._one_at_a_time = asyncio.Lock()

    async def start_alternate(self, name: str, steps: tuple[str, ...]) -> None:
        """Undo steps, then start the alternate of a failed step.

        No other step uses the tree during this time. The caller must first call `hold` on the plan, because
        otherwise the main loop could start a step. This method releases the hold.
        """
        context = self._context
        is_taken_back = False
        try:
            # Two steps that fail at the same time must not both start from the same tree.
            async with self._one_at_a_time:
                await workflow.wait_condition(
                    lambda: not any(attempt.touches_tree for attempt in self._context.running.values())
                )
                await self._undo_entries(select_undo(context.progress.undo, steps))
            is_taken_back = True
        finally:
            # A hold that is never released would stop the plan for good. The alternate needs a successful undo.
            context.release()
            number = context.schedule.find(name)
            if number is not None:
                context.schedule.fail(number, alternate=is_taken_back)

    async def undo_all(self) -> list[str]:
        """Undo all attempts. Return the reasons why attempts could not be undone.

        Raises:
            ContinueAsNew: the history is too long. The next run undoes the remaining attempts.
        """
        self._reporting.enter(PlanPhase.COMPENSATING)
        problems: list[str] = []
        for entry in select_undo(self._context.progress.undo):
            if self._context.attempts >= HARD_ATTEMPTS:
                raise ContinueAsNew
            problems += await self._undo_entries((entry,))
        return problems

    async def _undo_entries(self, entries: tuple[UndoEntry, ...]) -> list[str]:
        problems: list[str] = []
        for entry in entries:
            problem = await self._undo_attempt(entry)
            if problem:
                self._context.log("not undone", problem, entry.step)
                problems.append(f"{entry.step}: {problem}")
        return problems

    async def _undo_attempt(self, entry: UndoEntry) -> str:
        """Undo one attempt. Return the reason for a failure, or "" on success."""
        context = self._context
        request = RunStepRequest(scope=context.scope, expected_tree=context.progress.tree, **entry.model_dump())
        context.count_attempt()
        options = context.on_host(f"undo {entry.step}", COMPENSATE_TIMEOUT)
        try:
            answer = await self._activities.run(PlanActivities.compensate_step, request, options)
        except ActivityFailedError as error:
            return error.reason
        context.set_tree(answer.tree)
        context.log_drift(answer.drift, entry.step)
        by_step = context.schedule.find(answer.step) if answer.step else None
        if by_step is not None:
            context.schedule.record_compensation_step(by_step, completed=not answer.failure)
        if answer.failure:
            return answer.failure
        context.progress = context.progress.remove_undo(entry)
        number = context.schedule.find(entry.step)
        if number is not None:
            context.schedule.record_compensation(number)
        context.log("compensated", answer.summary, entry.step)
        done = (*context.progress.compensations, f"{entry.step}: {answer.summary}")[-COMPENSATIONS_LIMIT:]
        context.progress = context.progress.evolve(compensations=done)
        return ""


REVISE_TIMEOUT = timedelta(minutes=30)
STATUSES_LIMIT = 500
_FIXED = frozenset({StepStatus.COMPLETED, StepStatus.RECOVERED, StepStatus.RUNNING})


class Revisions:
    """Revises the plan, one revision at a time."""

    def __init__(
        self, context: PlanContext, questions: PlanQuestions, reporting: PlanReporting, activities: ActivityRunner
    ) -> None:
        self._context, self._questions, self._reporting = context, questions, reporting
        self._activities = activities
        self._one_at_a_time = asyncio.Lock()
        self._reviser: asyncio.Task[Any] | None = None
        """Task that is waiting for the `revise_plan` activity."""

    async def revise(self, source: str, rationale: str, by: str, *, trouble: str = "", after: str = "") -> str:
        """Revise the plan.

        If `source` is given, it becomes the new plan. Otherwise, the tasks found by the step `after` are
        added, or a planner revises the plan.

        Returns:
            A description of the changes.

        Raises:
            ApplicationError: the revision is refused. The message gives the reason, with the line and column.
        """
        context = self._context
        async with self._one_at_a_time:
            try:
                context.need_schedule()
                if context.is_ending:
                    raise InvalidRequestError(ENDING)
                problem = find_revisions_breach(context.progress.budget, context.progress.spent)
                if problem:
                    raise InvalidRequestError(problem)
                revised = await self._decide(source, rationale, by, trouble, after)
                # A planner's usage counts even if no revision came of it.
                context.progress = context.progress.count_usage(revised.usage, revised.api_calls)
            except (InvalidRequestError, ActivityFailedError) as error:
                # In an update handler only an `ApplicationError` reaches the caller; others fail the workflow task.
                reason = error.message if isinstance(error, InvalidRequestError) else error.reason
                raise self._make_refusal(reason) from error
            if revised.plan is None or revised.problem:
                raise self._make_refusal(revised.problem or "no revision was created")
            graph = Graph.unpack(revised.graph)
            bounds = context.revise(graph, revised, by_person=bool(source or after), of_itself=bool(after))
            revision = context.progress.revision
            context.log("revised", f"revision {revision} (by {by}): {rationale or revised.diff}")
            if bounds:
                context.log("budget", f"{bounds} (by {by})")
            outdated = self._questions.find_outdated_questions()
            if context.find_breach() is None:
                outdated += context.find(QuestionKind.BUDGET)
            if outdated:
                # Closing the last question ends a pause, in which people may have edited files.
                self._questions.close(outdated)
                context.keep_edits()
            context.wake()
            self._reporting.show()
            lines = [f"revision {revision} is now active. {revised.diff}".strip()]
            return "\n".join([*lines, f"budget: {bounds}"] if bounds else lines)

    def stop(self) -> None:
        """Cancel the running revision and refuse further revisions, because the plan is ending."""
        self._context.refuse_messages()
        if self._reviser is not None:
            self._reviser.cancel()

    def _make_refusal(self, problem: str) -> ApplicationError:
        self._context.log("refused", f"revision: {problem}")
        return ApplicationError(problem, type="InvalidRequestError", non_retryable=True)

    async def _decide(self, source: str, rationale: str, by: str, trouble: str, after: str) -> RevisedPlan:
        context = self._context
        schedule = context.need_schedule()
        # A revision must not change steps that have started, so nothing starts until it is decided.
        context.hold()
        self._reporting.enter(PlanPhase.REPLANNING)
        # This task runs the update handler. Cancelling it replies to the caller when the plan ends.
        self._reviser = asyncio.current_task()
        try:
            revised = await self._activities.run(
                PlanActivities.revise_plan,
                RevisePlanRequest(
                    scope=context.scope,
                    source=source,
                    rationale=rationale,
                    by=by,
                    fixed=fixed_steps(schedule),
                    statuses=begun_steps(schedule),
                    trouble=trouble,
                    after=after,
                    tasks=context.tasks if after else (),
                ),
                context.on_host(f"revision {context.progress.revision + 1}", REVISE_TIMEOUT),
            )
        except asyncio.CancelledError:
            if not context.is_ending:
                raise
            raise InvalidRequestError(ENDING) from None
        finally:
            self._reviser = None
            context.release()
            if context.progress.phase is PlanPhase.REPLANNING:
                self._reporting.enter(PlanPhase.RUNNING)
        # The activity may have succeeded although it was cancelled.
        if context.is_ending:
            raise InvalidRequestError(ENDING)
        return revised


def fixed_steps(schedule: Schedule) -> tuple[str, ...]:
    """Return the steps that a revision cannot change: completed and running steps and expanded templates."""
    return tuple(
        schedule.name(number)
        for number in range(len(schedule))
        if schedule.status(number) in _FIXED or schedule.is_expanded(number)
    )


def begun_steps(schedule: Schedule) -> dict[str, str]:
    """Return the status of each step that has begun.

    Completed steps come last, so that they are dropped first if there are too many steps.
    """
    numbers = [number for number in range(len(schedule)) if schedule.status(number) is not StepStatus.PENDING]
    numbers.sort(key=lambda number: schedule.status(number) is StepStatus.COMPLETED)
    return {schedule.name(number): schedule.status(number).value for number in numbers[:STATUSES_LIMIT]}


AUTOMATIC_REPLANS = 2
"""Maximum number of automatic replans caused by one step."""


async def sleep(seconds: float, summary: str) -> None:
    """Sleep on a workflow timer."""
    await workflow.sleep(seconds, summary=summary)


class Recovery:
    """Chooses and carries out the response to failures."""

    def __init__(
        self,
        context: PlanContext,
        questions: PlanQuestions,
        revisions: Revisions,
        compensation: Compensation,
        *,
        wait: Callable[[float, str], Awaitable[None]] = sleep,
    ) -> None:
        """Start with no recovery in progress.

        `wait` sleeps for a number of seconds and shows a summary in Temporal's UI.
        """
        self._context, self._questions = context, questions
        self._revisions, self._compensation, self._wait = revisions, compensation, wait
        self._backing_off: dict[str, asyncio.Task[None]] = {}

    @property
    def is_backing_off(self) -> bool:
        """True if a step is waiting for its next attempt."""
        return bool(self._backing_off)

    def cancel(self) -> None:
        """Cancel all tasks, because the plan is ending."""
        self._revisions.stop()
        self.stop_backing_off()
        for task in self._context.side_tasks:
            task.cancel()

    def stop_backing_off(self) -> None:
        """Cancel the timers of pending retries. The next run starts them again."""
        for task in self._backing_off.values():
            task.cancel()

    def restore(self) -> None:
        """Restart the waits that the previous run cancelled."""
        for name in self._context.progress.due:
            self._back_off(name)

    def fail(self, name: str, number: int, failure: StepFailure, *, attempt: int) -> None:
        """Choose and start the response to a failed attempt."""
        progress = self._context.progress.note_failure(name, failure)
        self._context.progress = progress
        self._context.log("failed", f"{failure.failure_class.value}: {failure.reason}", name)
        replan_count = progress.replans.get(name, 0)
        if self._context.revises_itself(name, failure):
            self._context.schedule.retry_later(number)
            self._run_aside(self._fail_over(name, failure))
            return
        # Attempts before a retry by a person do not count.
        attempt -= progress.earlier.get(name, 0)
        way = self._route(name, number, failure, attempt=attempt, may_replan=replan_count < AUTOMATIC_REPLANS)
        self._follow(name, number, failure, way)

    def _route(self, name: str, number: int, failure: StepFailure, *, attempt: int, may_replan: bool) -> Route:
        context, now = self._context, self._context.now()
        node, elapsed = context.schedule.node(number), now - context.progress.first_starts.get(name, now)
        if is_out_of_time(node, failure, attempt=attempt, elapsed=elapsed):
            why = f"the time box of {node.timebox_s or 0:g} s leaves no time for another attempt"
            context.log("timebox", f"attempt {attempt} of {node.retry.attempts} is the last one: {why}", name)
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
                # The time is part of the progress, because a timer does not survive continue-as-new.
                due_times = {**context.progress.due, name: context.now() + wait}
                context.progress = context.progress.evolve(due=due_times)
                self._back_off(name)
            case RouteAction.ALTERNATE if way.compensate:
                context.hold()
                self._run_aside(self._compensation.start_alternate(name, way.compensate))
            case RouteAction.ALTERNATE:
                schedule.fail(number, alternate=True)
            case RouteAction.SKIP:
                context.progress = context.progress.settle(name)
                schedule.finish(number, StepStatus.SKIPPED)
            case RouteAction.CONTINUE:
                schedule.fail(number, tolerated=True)
            case RouteAction.REPLAN:
                schedule.retry_later(number)
                self._run_aside(self._ask_planner(name, failure))
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
            await self._wait(wait, f"{name}: retry in {wait:g} s")
        del self._backing_off[name]
        if name not in context.progress.due:
            return
        due_times = {step: moment for step, moment in context.progress.due.items() if step != name}
        context.progress = context.progress.evolve(due=due_times)
        number = context.schedule.find(name)
        if number is not None and context.schedule.is_backing_off(number):
            context.schedule.resume(number)
        context.wake()

    def grow(self, name: str, result: StepResult) -> None:
        """Revise the plan with the findings of a step, then complete the step."""
        self._run_aside(self._complete_revised_step(name, result))

    async def _complete_revised_step(self, name: str, result: StepResult) -> None:
        context, problem = self._context, ""
        try:
            await self._revisions.revise("", result.summary, "tightloop", after=name)
        except ApplicationError as error:
            problem = error.message
        number = context.schedule.find(name)
        if number is None or context.is_ending:
            return
        if problem:
            failure = StepFailure(failure_class=FailureClass.LOGIC, reason=problem)
            catch_all = context.schedule.node(number).catch_all
            self.fail(name, number, catch_all.applied_to(failure) if catch_all else failure, attempt=1)
            return
        context.progress = context.progress.settle(name)
        context.schedule.finish(number, StepStatus.COMPLETED, counts=result.counts)
        context.log(StepStatus.COMPLETED.value, result.summary, name)

    async def _fail_over(self, name: str, failure: StepFailure) -> None:
        """Add a step that resolves a failure to the plan. If the revision is refused, the failed step fails."""
        context = self._context
        try:
            await self._revisions.revise("", f"{name} failed: {failure.mode}", "tightloop", after=name)
        except ApplicationError:
            workflow.logger.warning("could not add a step to fix the failure of %s", name)
        number = context.schedule.find(name)
        if number is not None and not context.is_ending:
            # If no step was added, the step has no alternate and simply fails.
            context.schedule.fail(number, alternate=True)

    async def _ask_planner(self, name: str, failure: StepFailure) -> None:
        """Ask a planner to revise the plan after a failure. If the revision fails, try the next response."""
        context = self._context
        replans = context.progress.replans
        # Counted before the request, or a planner that always fails would be asked without end.
        context.progress = context.progress.evolve(replans={**replans, name: replans.get(name, 0) + 1})
        trouble = f"step {name} failed ({failure.failure_class.value}): {failure.reason}"
        is_revised = True
        try:
            await self._revisions.revise("", "a step failed", "tightloop", trouble=trouble)
        except ApplicationError:
            is_revised = False
        number = context.schedule.find(name)
        # While the planner worked, a person or another revision may have moved the step on.
        if number is None or not context.schedule.is_backing_off(number) or context.is_ending:
            return
        if is_revised:
            context.schedule.resume(number)
        else:
            # As if it were the last attempt, so that the route is not another retry.
            last = context.schedule.node(number).retry.attempts
            self._follow(name, number, failure, self._route(name, number, failure, attempt=last, may_replan=False))

    def _run_aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._context.side_tasks[task] = None
        task.add_done_callback(self._finish_aside)

    def _finish_aside(self, task: asyncio.Task[None]) -> None:
        self._context.side_tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The step that the task worked for would wait forever, so an unexpected error ends the plan.
            self._context.end_with(PlanEnd(f"{type(error).__name__}: {error}"))
        self._context.wake()
