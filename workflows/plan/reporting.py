"""What a plan shows: its status, its details in Temporal, and what waits in the workflows of its steps."""

from datetime import timedelta

from temporalio import workflow

from tightloop.ledger.model import WorkflowSnapshot
from tightloop.plan.child import StepStatus
from tightloop.plan.control import plan_details
from tightloop.plan.request import PlanPhase, PlanStatus, StepLine, StepPage
from tightloop.run.child import ChildNote, ChildWait
from tightloop.run.question import Question, QuestionKind
from tightloop.value import shorten
from workflows.plan.context import PlanContext
from workflows.plan.questions import THE_PLAN
from workflows.run.activities import ActivityRunner
from workflows.run.reporting import GOAL_CHARACTERS, Reporting, View

LINES_LIMIT = 100
PAGE_LINES = 500
NOTE_CHARACTERS = 300
SHOW_INTERVAL = timedelta(seconds=2)
"""Shortest time between two refreshes of the details; what a person waits for follows at once."""


class PlanView(View):
    """Shows a plan."""

    def __init__(self, context: PlanContext, activities: ActivityRunner) -> None:
        self._context, self._activities = context, activities

    @property
    def is_opened(self) -> bool:
        """Whether the graph is loaded."""
        return self._context.is_open

    @property
    def tells_parent(self) -> bool:
        """Whether a workflow around the plan wants to know what waits."""
        request = self._context.request
        return request.depth > 1 and not self._context.is_ending

    def hear(self, note: ChildNote) -> bool:
        """Take note of what waits in a workflow that a running step started. Returns whether it is one."""
        child = note.workflow_id
        attempt = next((one for one in self._context.running.values() if child in one.children), None)
        if attempt is None:
            return False
        before = attempt.waits.get(child, ())
        attempt.waits[child] = tuple(wait.evolve(step=attempt.name) for wait in note.waits)
        for wait in attempt.waits[child]:
            if wait not in before:
                self._context.log("waits", f"{wait.where}: {wait.what}", attempt.name)
        if before and not note.waits:
            self._context.log("goes on", child, attempt.name)
        # A step that waits gives its slot to another one.
        self._context.wake()
        return True

    def status(self) -> PlanStatus:
        """Return a snapshot."""
        context, progress, info = self._context, self._context.progress, workflow.info()
        paused = context.is_running and self.needs[1]
        lines = [self.line(name) for name in progress.failures]
        return PlanStatus(
            plan_id=context.id,
            run_id=info.run_id,
            title=context.title,
            workspace=context.request.workspace,
            status="paused" if paused else context.status,
            phase=progress.phase,
            revision=progress.revision,
            plan=progress.plan,
            counts=context.schedule.counts() if context.is_open else {},
            running=tuple(self.line(name) for name in list(self._context.running)[:LINES_LIMIT]),
            failed=tuple(line for line in lines if line.status is StepStatus.FAILED)[:LINES_LIMIT],
            questions=context.waiting[:LINES_LIMIT] if context.is_running else (),
            children=self.waits_within[:LINES_LIMIT],
            beliefs=progress.beliefs,
            spent=progress.spent,
            drifts=context.core.drifts,
            tree=progress.tree,
            proof=progress.proof,
            reason=context.reason,
            waits_for=self._activities.waits_for,
        )

    def steps(self, page: int) -> StepPage:
        """Return a page of the listing of steps, counted from 1."""
        if not self._context.is_open:
            return StepPage()
        schedule = self._context.schedule
        numbers = [number for number in range(len(schedule)) if not schedule.is_expanded(number)]
        pages = max(-(-len(numbers) // PAGE_LINES), 1)
        page = min(max(page, 1), pages)
        shown = numbers[(page - 1) * PAGE_LINES : page * PAGE_LINES]
        lines = tuple(self.line(schedule.name(number)) for number in shown)
        return StepPage(lines=lines, page=page, pages=pages, total=len(numbers))

    def row(self) -> WorkflowSnapshot:
        """Return the row for the ledger."""
        context, parent = self._context, workflow.info().parent
        status, request = self.status(), context.request
        return WorkflowSnapshot(
            id=status.plan_id,
            kind=context.kind,
            status=status.status,
            parent=parent.workflow_id if parent else "",
            goal=shorten(status.title or request.goal, GOAL_CHARACTERS),
            phase=status.phase.value,
            cost_usd=status.spent.cost_usd,
            run=self._context.progress.runs,
            at=workflow.now(),
            questions=status.questions,
            details=status.model_dump(mode="json"),
        )

    @property
    def needs(self) -> tuple[Question | None, bool]:
        """The question that matters most, and whether the plan goes on only with its answer."""
        context = self._context
        waiting = [question for question in context.waiting if not question.command]
        if not waiting:
            return None, False
        if blocking := next((question for question in waiting if question.blocks == THE_PLAN), None):
            return blocking, True
        failed = context.find(QuestionKind.FAILED_STEP)
        if failed and context.is_open and context.is_idle:
            return failed[0], True
        return waiting[0], False

    @property
    def waits_within(self) -> tuple[ChildWait, ...]:
        """What waits in the workflows of the steps that run."""
        return self._context.waits_within

    def line(self, name: str) -> StepLine:
        """Return a step as listings show it."""
        schedule = self._context.schedule if self._context.is_open else None
        number = schedule.find(name) if schedule is not None else None
        if schedule is None or number is None:
            return StepLine(id=name, status=StepStatus.PENDING)
        return StepLine(
            id=name,
            status=schedule.status(number),
            attempt=schedule.attempt(number),
            failure=self._context.progress.failures.get(name),
            summary=schedule.node(number).title,
        )

    def details(self) -> str:
        """Return the current details."""
        return plan_details(self.status(), self._context.progress.budget, pausing=bool(self._context.running))


class PlanReporting(Reporting):
    """Tells everybody who looks where the plan stands."""

    def __init__(self, context: PlanContext, view: PlanView) -> None:
        super().__init__(context, view, every=SHOW_INTERVAL)
        self._context = context

    def enter(self, phase: PlanPhase) -> None:
        """Begin a phase."""
        self._context.progress = self._context.progress.evolve(phase=phase)
        self.show()
