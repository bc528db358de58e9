"""Changing a plan that runs: another text is checked, stored and used at once, or refused with the reason."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError

from activities.plan.activity import PlanActivities
from activities.plan.requests import RevisedPlan, RevisePlanRequest
from tightloop.errors import InvalidRequestError
from tightloop.plan.engine.breaker import find_revisions_breach
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.request import PlanPhase
from tightloop.plan.result import StepStatus
from tightloop.question import QuestionKind
from workflows.plan.context import ENDING, PlanContext
from workflows.plan.questions import PlanQuestions
from workflows.plan.reporting import PlanReporting
from workflows.shared.activities import ActivityFailedError, ActivityRunner

REVISE_TIMEOUT = timedelta(minutes=30)
STATUSES_LIMIT = 500
_FIXED = frozenset({StepStatus.COMPLETED, StepStatus.RECOVERED, StepStatus.COMPENSATED, StepStatus.RUNNING})


class Revisions:
    """Makes one revision after another."""

    def __init__(
        self, context: PlanContext, questions: PlanQuestions, reporting: PlanReporting, activities: ActivityRunner
    ) -> None:
        self._context, self._questions, self._reporting = context, questions, reporting
        self._activities = activities
        self._one_at_a_time = asyncio.Lock()
        self._reviser: asyncio.Task[Any] | None = None
        """Waits for the activity that decides on a revision."""

    async def revise(self, source: str, rationale: str, by: str, *, trouble: str = "") -> str:
        """Change the plan to another text; without one a planner writes it.

        Returns:
            What is different, in words.

        Raises:
            ApplicationError: it is refused; the message says why, with line and column.
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
                revised = await self._decide(source, rationale, by, trouble)
                # What a planner asked for was paid, also where nothing came of it.
                context.progress.count_usage(revised.usage, revised.api_calls)
            except (InvalidRequestError, ActivityFailedError) as error:
                reason = error.message if isinstance(error, InvalidRequestError) else error.reason
                raise self._refused(reason) from error
            if revised.plan is None or revised.problem:
                raise self._refused(revised.problem or "no revision was made")
            bounds = context.revise(Graph.unpack(revised.graph), revised, by_person=bool(source))
            revision = context.progress.revision
            context.log("revised", detail=f"revision {revision} (by {by}): {rationale or revised.diff}")
            if bounds:
                context.log("budget", detail=f"{bounds} (by {by})")
            outdated = self._questions.find_outdated()
            if context.find_breach() is None:
                outdated += self._questions.find(QuestionKind.BUDGET)
            if outdated:
                self._questions.close(outdated)
                context.keep_edits()
            context.wake()
            self._reporting.show()
            said = [f"revision {revision} is in force. {revised.diff}".strip()]
            return "\n".join([*said, f"budget: {bounds}"] if bounds else said)

    def stop(self) -> None:
        """Refuse the revision that is being decided on, and those that follow: the plan ends."""
        self._context.refuse_messages()
        if self._reviser is not None:
            self._reviser.cancel()

    def _refused(self, problem: str) -> ApplicationError:
        self._context.log("refused", detail=f"revision: {problem}")
        return ApplicationError(problem, type="InvalidRequestError", non_retryable=True)

    async def _decide(self, source: str, rationale: str, by: str, trouble: str) -> RevisedPlan:
        context = self._context
        schedule, progress = context.need_schedule(), context.progress
        # What has started may not change under it, so nothing more starts until the revision is decided on.
        context.hold()
        self._reporting.enter(PlanPhase.REPLANNING)
        # The update's own task: when the plan ends, the caller is told that, and not left without an answer.
        self._reviser = asyncio.current_task()
        try:
            revised = await self._activities.run(
                PlanActivities.revise_plan,
                RevisePlanRequest(
                    scope=context.scope(),
                    source=source,
                    rationale=rationale,
                    by=by,
                    fixed=fixed_steps(schedule),
                    statuses=begun_steps(schedule),
                    trouble=trouble,
                ),
                context.on_host(f"revision {progress.revision + 1}", REVISE_TIMEOUT),
            )
        except asyncio.CancelledError:
            if not context.is_ending:
                raise
            raise InvalidRequestError(ENDING) from None
        finally:
            self._reviser = None
            context.release()
            if progress.phase is PlanPhase.REPLANNING:
                self._reporting.enter(PlanPhase.RUNNING)
        if context.is_ending:
            raise InvalidRequestError(ENDING)
        return revised


def fixed_steps(schedule: Schedule) -> tuple[str, ...]:
    """Return the steps that are completed or run, and the templates that became steps."""
    return tuple(
        schedule.name(number)
        for number in range(len(schedule))
        if schedule.status(number) in _FIXED or schedule.is_expanded(number)
    )


def begun_steps(schedule: Schedule) -> dict[str, str]:
    """Return where steps stand that have begun, those that need a planner's eye first."""
    begun = [number for number in range(len(schedule)) if schedule.status(number) is not StepStatus.PENDING]
    begun.sort(key=lambda number: schedule.status(number) is StepStatus.COMPLETED)
    return {schedule.name(number): schedule.status(number).value for number in begun[:STATUSES_LIMIT]}
