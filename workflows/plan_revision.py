"""Changing a plan that runs: another text is checked, stored and taken up at once, or refused with the reason."""

import asyncio
from datetime import timedelta
from typing import Any

from activities.plan.activity import PlanActivities
from activities.plan.requests import RevisedPlan, RevisePlanRequest
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from tightloop.control import Remark
from tightloop.episode import PauseKind
from tightloop.errors import InvalidRequestError
from tightloop.plan.book import Book
from tightloop.plan.budgeting import changed_bounds, taken_up
from tightloop.plan.engine.breaker import revisions_breach
from tightloop.plan.engine.graph import Graph
from tightloop.plan.engine.revision import carry_over
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PlanPhase
from tightloop.plan.result import StepStatus

from workflows.plan_notice import PlanNotices
from workflows.plan_steps import run_activity
from workflows.steps import Call, StepFailedError

REVISE_TIMEOUT = timedelta(minutes=30)
STATUSES_LIMIT = 500
BOUNDS_OF_REVISIONS = "bounds-of-revisions"
ENDING = "the plan is ending and takes no more messages"
_FIXED = frozenset({StepStatus.COMPLETED, StepStatus.RECOVERED, StepStatus.COMPENSATED, StepStatus.RUNNING})


class PlanRevisions(PlanNotices):
    """Takes up new revisions."""

    def __init__(self, request: PlanInput | None = None) -> None:
        """Begin with no revision under way."""
        super().__init__(request)
        self._revising = asyncio.Lock()
        self._reviser: asyncio.Task[Any] | None = None
        """Waits for the activity that decides on a revision."""

    async def _revise(self, source: str, rationale: str, by: str, *, trouble: str = "") -> str:
        """Take up another text of the plan; without one a planner writes it. Return what is different.

        Raises:
            ApplicationError: it is refused; the message says why, with line and column.
        """
        async with self._revising:
            try:
                self._refuse_another_revision()
                revised = await self._revised(source, rationale, by, trouble)
                # What a planner asked for was paid, also where nothing came of it.
                if revised.api_calls:
                    self._book.spent = self._book.spent.with_usage(revised.usage, revised.api_calls)
            except (InvalidRequestError, StepFailedError) as error:
                reason = error.message if isinstance(error, InvalidRequestError) else error.reason
                raise self._refused(reason) from error
            if revised.plan is None or revised.problem:
                raise self._refused(revised.problem or "no revision was made")
            bounds = self._take_up(revised, by_person=bool(source))
            self._log("revised", detail=f"revision {self._book.revision} (by {by}): {rationale or revised.diff}")
            if bounds:
                self._log("budget", detail=f"{bounds} (by {by})")
            self._go_on_within(bounds)
            said = [f"revision {self._book.revision} is taken up. {revised.diff}".strip()]
            return "\n".join([*said, f"budget: {bounds}"] if bounds else said)

    def _refuse_another_revision(self) -> None:
        if self._schedule is None:
            raise InvalidRequestError("the plan is not open yet; send it again in a moment")
        if self._ending:
            raise InvalidRequestError(ENDING)
        problem = revisions_breach(self._book.budget, self._book.spent)
        if problem:
            raise InvalidRequestError(problem)

    def _refused(self, problem: str) -> ApplicationError:
        self._log("refused", detail=f"revision: {problem}")
        return ApplicationError(problem, type="InvalidRequestError", non_retryable=True)

    async def _revised(self, source: str, rationale: str, by: str, trouble: str) -> RevisedPlan:
        # What has started may not change under it, so nothing more starts until the revision is decided on.
        self._holds += 1
        self._enter(PlanPhase.REPLANNING)
        self._reviser = asyncio.current_task()
        try:
            revised = await run_activity(
                PlanActivities.revise_plan,
                RevisePlanRequest(
                    scope=self._scope(),
                    source=source,
                    rationale=rationale,
                    by=by,
                    fixed=self._fixed(),
                    statuses=self._statuses(),
                    trouble=trouble,
                ),
                Call(f"revision {self._book.revision + 1}", REVISE_TIMEOUT, self._request.queues.workspace),
            )
        except asyncio.CancelledError:
            if not self._ending:
                raise
            raise InvalidRequestError(ENDING) from None
        finally:
            self._holds -= 1
            self._reviser = None
            if self._book.phase is PlanPhase.REPLANNING:
                self._enter(PlanPhase.RUNNING)
            self._wake()
        if self._ending:
            raise InvalidRequestError(ENDING)
        return revised

    def _stop_revising(self) -> None:
        """Refuse the revision that is being decided on: the plan ends."""
        self._ending = True
        if self._reviser is not None:
            self._reviser.cancel()

    def _fixed(self) -> tuple[str, ...]:
        """Return the steps that are completed or run, and the templates that became steps."""
        schedule = self._schedule
        if schedule is None:
            return ()
        return tuple(
            schedule.name(number)
            for number in range(len(schedule))
            if schedule.status(number) in _FIXED or schedule.grown(number)
        )

    def _statuses(self) -> dict[str, str]:
        """Return where steps stand that have begun, those that need a planner's eye first."""
        schedule = self._schedule
        if schedule is None:
            return {}
        begun = [number for number in range(len(schedule)) if schedule.status(number) is not StepStatus.PENDING]
        begun.sort(key=lambda number: schedule.status(number) is StepStatus.COMPLETED)
        return {schedule.name(number): schedule.status(number).value for number in begun[:STATUSES_LIMIT]}

    def _take_up(self, revised: RevisedPlan, *, by_person: bool) -> str:
        """Go on with another graph; completed steps and those that run keep their place.

        Return which bounds are others now, in words.
        """
        old = self._schedule
        if old is None:
            return ""
        graph = Graph.unpack(revised.graph)
        before = self._book
        state = carry_over(old.graph, before.save(old), graph, revised.changed)
        self._book = Book(state)
        self._book.plan, self._book.revision = revised.plan, before.revision + 1
        self._book.spent = before.spent.model_copy(update={"revisions": before.spent.revisions + 1})
        budget = taken_up(before.budget, old.graph.head.budget, graph.head.budget, by_person=by_person)
        # Histories from before have revisions whose bounds were not looked at.
        changed = budget != before.budget and workflow.patched(BOUNDS_OF_REVISIONS)
        self._book.budget = budget if changed else before.budget
        self._book.suppose(graph.head.hypotheses)
        self._title = graph.head.title or graph.head.plan_id
        self._schedule = Schedule(graph, state)
        self._forget_what_is_gone()
        if self._book.pause is not None and self._book.pause.kind == PauseKind.RESPONSE:
            self._end_pause(Remark())
        self._show_attention()
        self._wake()
        return changed_bounds(before.budget, self._book.budget)

    def _go_on_within(self, bounds: str) -> None:
        """End a pause for a bound that a revision raised far enough."""
        pause = self._book.pause
        if bounds and pause is not None and pause.kind == PauseKind.BUDGET and self._breach() is None:
            self._end_pause(Remark())

    def _forget_what_is_gone(self) -> None:
        book, schedule = self._book, self._schedule
        if schedule is None:
            return

        def stands(name: str, status: StepStatus) -> bool:
            number = schedule.find(name)
            return number is not None and schedule.status(number) is status

        book.waiting = {name: gate for name, gate in book.waiting.items() if stands(name, StepStatus.WAITING)}
        book.asked = [name for name in book.asked if stands(name, StepStatus.FAILED)]
        book.failures = {name: why for name, why in book.failures.items() if schedule.find(name) is not None}
        book.wanted = [name for name in book.wanted if stands(name, StepStatus.PENDING)]
