"""What a plan shows: its status, its details in Temporal, and what waits in the workflows of its steps."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from temporalio import workflow

from tightloop.ledger.model import WorkflowSnapshot
from tightloop.plan.child import WAITS_LIMIT, ChildNote, ChildWait, StepNote, StepStatus, waits_of
from tightloop.plan.control import plan_details
from tightloop.plan.request import PlanPhase, PlanStatus, StepLine, StepPage
from tightloop.question import QuestionKind
from tightloop.value import shorten
from workflows.plan.attempts import Attempt
from workflows.plan.context import PlanContext
from workflows.plan.questions import THE_PLAN
from workflows.shared.questions import Questions
from workflows.shared.reporting import GOAL_CHARACTERS, ParentNotice, Recording, Reporter, Seen, StepNotice

LINES_LIMIT = 100
PAGE_LINES = 500
NOTE_CHARACTERS = 300
SHOW_INTERVAL = timedelta(seconds=2)
"""Shortest time between two refreshes of the details; what a person waits for follows at once."""


class PlanReporting:
    """Tells people where the plan stands."""

    def __init__(
        self,
        context: PlanContext,
        questions: Questions,
        running: Mapping[str, Attempt],
        is_idle: Callable[[], bool],
        parent: ParentNotice,
    ) -> None:
        """Begin with nothing shown; `is_idle` tells whether nothing is left to do without an answer."""
        self._context, self._questions, self._running = context, questions, running
        self._is_idle, self._parent = is_idle, parent
        self._steps = StepNotice() if context.request.notes_steps else None
        self._child_waits: dict[str, tuple[ChildWait, ...]] = {}
        kind, paused = self._attention()
        self._reporter = Reporter(self._details, called_for=kind, paused=paused, every=SHOW_INTERVAL)
        self._recording = Recording(
            lambda: context.request.queues.home or context.request.queues.workspace,
            context.scope,
            self._seen,
            self._row,
        )

    def hear(self, note: ChildNote) -> None:
        """Take note of what waits in a workflow that a running step started."""
        child = note.workflow_id
        step = next((attempt.name for attempt in self._running.values() if child in attempt.children), None)
        if step is None:
            return
        before = self._child_waits.get(child, ())
        self._child_waits[child] = tuple(wait.evolve(step=step) for wait in note.waits)
        for wait in self._child_waits[child]:
            if wait not in before:
                self._context.log("waits", step, f"{wait.where}: {wait.what}")
        if before and not note.waits:
            self._context.log("goes on", step, child)
        self.show()

    def tell_again(self) -> None:
        """Tell the plan around this one again what waits here: the run was reset."""
        self._parent.tell_again()
        self.show()
        if self._context.is_open:
            self._recording.show_again()

    def enter(self, phase: PlanPhase) -> None:
        """Begin a phase."""
        self._context.set_phase(phase)
        self.show()

    def show(self, *, at_once: bool = True) -> None:
        """Show where the plan stands, and for what a person is needed; unless `at_once` only once in a while."""
        context = self._context
        self._child_waits = self._heard()
        within = self._waits_within()
        self.note_steps()
        is_within = context.request.depth > 1 or context.request.notes_steps
        if is_within and context.status == "running" and not context.is_ending:
            self._parent.tell((*waits_of(context.plan_id, self._questions.waiting), *within)[:WAITS_LIMIT])
        if at_once and context.status == "running":
            kind, paused = self._attention()
            self._reporter.call_for(kind, paused=paused)
        else:
            self._reporter.show(at_once=at_once)
        # A plan that ends is recorded by what closes its workspace.
        if context.is_open and context.status == "running":
            self._recording.show()

    @property
    def last(self) -> WorkflowSnapshot:
        """How the plan ended, for the ledger."""
        return self._row().evolve(closed=workflow.now())

    async def settle(self) -> None:
        """Wait a little for what the ledger is being told."""
        await self._recording.settle()

    def note_steps(self) -> None:
        """Tell the loop around this plan where the steps stand, where it wants to know."""
        if self._steps is None or not self._context.is_open or self._context.is_ending:
            return
        schedule, progress = self._context.schedule, self._context.progress
        notes = []
        for number in range(len(schedule)):
            name = schedule.name(number)
            failure = progress.failures.get(name)
            notes.append(
                StepNote(
                    step=name,
                    status=schedule.status(number),
                    attempt=schedule.attempt(number),
                    reason=shorten(failure.reason, NOTE_CHARACTERS) if failure is not None else "",
                )
            )
        self._steps.tell(notes)

    def close(self) -> None:
        """Show how the plan ended."""
        self._reporter.close(self._context.status)

    def refuse(self, *, is_new: bool) -> None:
        """Show that the plan could not begin."""
        self._reporter.refuse(is_new=is_new)

    def snapshot(self) -> PlanStatus:
        """Return where the plan stands."""
        context, progress, info = self._context, self._context.progress, workflow.info()
        paused = context.status == "running" and self._attention()[1]
        lines = [self._line(name) for name in progress.failures]
        return PlanStatus(
            plan_id=context.plan_id,
            run_id=info.run_id,
            title=context.title,
            workspace=context.request.workspace,
            status="paused" if paused else context.status,
            phase=progress.phase,
            revision=progress.revision,
            plan=progress.plan,
            counts=context.schedule.counts() if context.is_open else {},
            running=tuple(self._line(name) for name in list(self._running)[:LINES_LIMIT]),
            failed=tuple(line for line in lines if line.status is StepStatus.FAILED)[:LINES_LIMIT],
            questions=self._questions.waiting[:LINES_LIMIT] if context.status == "running" else (),
            children=self._waits_within()[:LINES_LIMIT],
            beliefs=progress.beliefs,
            spent=progress.spent,
            drifts=progress.drifts,
            tree=progress.tree,
            proof=progress.proof,
            reason=context.reason,
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
        lines = tuple(self._line(schedule.name(number)) for number in shown)
        return StepPage(lines=lines, page=page, pages=pages, total=len(numbers))

    def _seen(self) -> Seen:
        status = "paused" if self._attention()[1] else self._context.status
        return (status, *(question.id for question in self._questions.waiting))

    def _row(self) -> WorkflowSnapshot:
        status, parent, request = self.snapshot(), workflow.info().parent, self._context.request
        return WorkflowSnapshot(
            id=status.plan_id,
            kind="plan",
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

    def _attention(self) -> tuple[str, bool]:
        """Return the kind of the question that matters most, and whether the plan goes on only with an answer."""
        waiting = self._questions.waiting
        if not waiting:
            return "", False
        blocking = next((question for question in waiting if question.blocks == THE_PLAN), None)
        if blocking is not None:
            return blocking.kind.value, True
        failed = any(question.kind is QuestionKind.FAILED_STEP for question in waiting)
        if failed and self._context.is_open and self._is_idle():
            return QuestionKind.FAILED_STEP.value, True
        return waiting[0].kind.value, False

    @property
    def answer_elsewhere(self) -> str:
        """Where an answer is to be sent that nothing of the plan itself waits for, as a sentence."""
        waits = self._waits_within()
        if not waits:
            return f"Where it stands: tightloop status {self._context.plan_id}"
        example = f"tightloop answer {waits[0].workflow_id} {waits[0].question.names[0]}"
        where = ", ".join(dict.fromkeys(wait.workflow_id for wait in waits))
        return f"What its steps started waits: {where}. Answer there, for example: {example}"

    def _waits_within(self) -> tuple[ChildWait, ...]:
        """Return what waits in the workflows of the steps that run."""
        return tuple(wait for waits in self._heard().values() for wait in waits)

    def _heard(self) -> dict[str, tuple[ChildWait, ...]]:
        if not self._child_waits:
            return {}
        started = [child for attempt in self._running.values() for child in attempt.children]
        return {child: self._child_waits[child] for child in started if child in self._child_waits}

    def _line(self, name: str) -> StepLine:
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

    def _details(self) -> str:
        return plan_details(self.snapshot(), self._context.progress.budget, pausing=bool(self._running))
