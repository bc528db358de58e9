"""A plan's questions and status."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from temporalio import workflow

from tightloop.checks.setup import INSTALL, Setup, setup_question
from tightloop.episode.decisions import ACCEPT_FILES, ASKED_FOR_CHANGE, KEEP, UNDO, WORK, about_change, drift_question
from tightloop.ledger.alert import AlertKind, alert_kind
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.plan.child import StepFailure, StepStatus
from tightloop.plan.control import plan_details
from tightloop.plan.engine.state import APPROVE, REJECT
from tightloop.plan.request import PlanOutcome, PlanPhase, PlanStatus, StepLine, StepPage
from tightloop.run.question import ChildNote, ChildWait, Option, OptionGroup, Question, QuestionKind
from tightloop.safety.approval import ShownChange
from tightloop.safety.drift import Drift
from tightloop.value import shorten
from workflows.plan.context import PlanContext
from workflows.run.activities import ActivityRunner
from workflows.run.reporting import GOAL_CHARACTERS, Reporting, StatusKey, View

THE_PLAN = PlanContext.whole
NAMES_SHOWN = 5
FAILED_STEPS = "failed-steps"
"""Window for the questions about failed steps, which can be answered together."""
NEED_NO_GRAPH = frozenset({QuestionKind.OPERATOR, QuestionKind.FATAL, QuestionKind.LIMIT})
"""Kinds of questions that can be answered before the graph is loaded."""
APPROVALS = frozenset({QuestionKind.GATE, QuestionKind.POLICY, QuestionKind.CLARIFICATION})

RESUME = Option(
    name="resume",
    effect="Resume the plan and start its remaining steps. Running steps continue, and your edits to files are kept.",
)
RETRY = Option(name="retry", effect="retry the failed work and keep your file edits")
RETRY_STEP = RETRY.evolve(effect="retry the step with a fresh set of attempts, and keep your file edits")
EXTEND = Option(name="extend", effect="raise each exhausted limit by the amount specified in the plan, and continue")
CANCEL = Option(
    name="cancel",
    effect="Stop the running steps and end the plan. Completed steps are undone if on_failure is compensate.",
    group=OptionGroup.STOP,
)
SKIP = Option(name="skip", effect="skip the step and continue with the plan", group=OptionGroup.ACCEPT)
CHECK_AGAIN = RETRY.evolve(
    effect="Run the definition of done again. You can edit files first, and your edits are kept."
)
FAIL = Option(
    name="fail",
    effect="leave the step failed (the plan fails when no other step can run)",
    group=OptionGroup.STOP,
)
REPLAN = Option(name="replan", effect="let a planner revise the plan")
GO_TO_WORK = Option(
    name=WORK,
    effect="Edit files before you run the proof again. Otherwise it will fail the same way.",
)
_OPTIONS = (RESUME, RETRY, EXTEND, CANCEL, SKIP, FAIL, REPLAN, GO_TO_WORK, ACCEPT_FILES, ASKED_FOR_CHANGE)
OPTION_NAMES = frozenset({APPROVE, REJECT, KEEP, UNDO, INSTALL, *(option.name for option in _OPTIONS)})
_PAUSE_OPTIONS = {
    QuestionKind.OPERATOR: (RESUME, CANCEL),
    QuestionKind.LIMIT: (RESUME, CANCEL),
    QuestionKind.FATAL: (RETRY, CANCEL),
    QuestionKind.BUDGET: (EXTEND, CANCEL),
}


class PlanQuestions:
    """Opens a plan's questions. Only one question is opened per cause."""

    def __init__(self, context: PlanContext, show: Callable[[], None] = lambda: None) -> None:
        """Store `show`, which publishes changes to the questions."""
        self._context, self._show = context, show

    def pause(
        self, kind: QuestionKind, reason: str, *, by: str = "tightloop", step: str = "", alert: AlertKind | None = None
    ) -> None:
        """Ask a question that prevents steps from starting. Only one question of each kind can be open."""
        if self._context.find(kind):
            return
        options = _PAUSE_OPTIONS[kind]
        # A bare `resume` must not raise a budget.
        default = "" if kind is QuestionKind.BUDGET else options[0].name
        question = Question(
            id="", kind=kind, title=reason, options=options, default=default, blocks=THE_PLAN, by=by, step=step
        )
        self._ask("paused", question, alert)

    def ask_about_drift(self, drift: Drift) -> None:
        """Ask about files that were changed externally. One question covers all affected steps."""
        if self._context.find(QuestionKind.DRIFT) or self._context.progress.drift is not None:
            return
        self._ask("paused", drift_question(drift, blocks=THE_PLAN, cancel=CANCEL))

    def ask_about_setup(self, setup: Setup) -> None:
        """Ask whether to run the command that installs the project's packages."""
        self._ask("paused", setup_question(setup, blocks=THE_PLAN, cancel=CANCEL))

    def ask_about_failure(self, step: str, failure: StepFailure) -> None:
        """Ask how to handle a failed step. Steps that do not depend on the failed step continue."""
        question = Question(
            id="",
            kind=QuestionKind.FAILED_STEP,
            title=f"{step} failed: {failure.reason}",
            options=(RETRY_STEP, self._skip(step), FAIL, *self._replan),
            blocks=step,
            step=step,
            window=FAILED_STEPS,
        )
        self._ask("asked", question)

    def ask_about_unmet(self, failed: str) -> None:
        """Ask how to continue when all steps are done but the definition of done is not met."""
        question = Question(
            id="",
            kind=QuestionKind.UNMET,
            title=f"the definition of done is not met: {failed}",
            options=(CHECK_AGAIN, *self._replan, CANCEL),
            default=CHECK_AGAIN.name,
            blocks=THE_PLAN,
        )
        self._ask("paused", question)

    def ask_about_proof(self, title: str, evidence: tuple[str, ...], change: ShownChange | None) -> None:
        """Ask how to continue if the definition of done is met but the proof has findings."""
        question = Question(
            id="",
            kind=QuestionKind.PROOF,
            title=title,
            evidence=evidence,
            options=(GO_TO_WORK, ACCEPT_FILES, *self._replan, CANCEL),
            default=GO_TO_WORK.name,
            blocks=THE_PLAN,
        )
        self._ask("paused", about_change(question, change))

    def ask_for_step(self, step: str, question: Question) -> None:
        """Ask a question that a step raised."""
        # A question with a command of its own is a planned wait (`dispatch`, `verify`), not a pause.
        self._ask("waits", question.evolve(step=step, blocks="" if question.command else step))

    def close(self, questions: Iterable[Question]) -> None:
        """Close questions that no longer need an answer."""
        before = self._context.waiting
        self._context.close_questions(*(question.id for question in questions))
        if self._context.waiting != before:
            self._show()

    def find_outdated_questions(self) -> tuple[Question, ...]:
        """Return questions about steps that a revision removed or whose status has changed."""
        schedule = self._context.schedule
        stands = {QuestionKind.FAILED_STEP: StepStatus.FAILED, **dict.fromkeys(APPROVALS, StepStatus.WAITING)}

        def is_outdated(question: Question) -> bool:
            number = schedule.find(question.step)
            if question.kind in (QuestionKind.UNMET, QuestionKind.PROOF):
                return True
            return question.kind in stands and (number is None or schedule.status(number) is not stands[question.kind])

        return tuple(question for question in self._context.waiting if is_outdated(question))

    def _skip(self, step: str) -> Option:
        """Return the option to skip a step.

        The option lists the other steps that will be skipped because they depend on this step.
        """
        schedule = self._context.schedule
        number = schedule.find(step)
        names = [] if number is None else schedule.list_skipped_with(number)
        if not names:
            return SKIP
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        others = ", ".join(names[:NAMES_SHOWN]) + more
        return SKIP.evolve(effect=f"skip the step and the steps that need it ({others}), and continue the plan")

    @property
    def _replan(self) -> tuple[Option, ...]:
        return (REPLAN,) if self._context.has_planner else ()

    def _ask(self, event: str, question: Question, alert: AlertKind | None = None) -> None:
        open_questions = self._context.waiting
        # Questions of a window are answered together, so the first one's alert is enough.
        is_told = any(question.window and other.window == question.window for other in open_questions)
        opened = self._context.ask(question)
        by = f" (by {opened.by})" if opened.kind is QuestionKind.OPERATOR else ""
        self._context.log(event, f"{opened.kind.value}: {opened.title}{by}", opened.step)
        self._context.wake()
        self._show()
        # Within a plan, only a watchdog's pause raises a LIMIT question.
        kind = alert or (AlertKind.OVERDUE if opened.kind is QuestionKind.LIMIT else alert_kind(opened))
        if kind is not None and not is_told and not opened.command:
            subject = opened.step if opened.kind is QuestionKind.FAILED_STEP else opened.window or opened.step
            # Option names written by a plan's author may be confidential, so alerts list only built-in ones.
            options = tuple(name for name in opened.names if name in OPTION_NAMES)
            self._context.alerts.send(
                self._context.alert(kind, opened.title, subject, question=opened.id, options=options)
            )


LINES_LIMIT = 100
PAGE_LINES = 500
NOTE_CHARACTERS = 300
SHOW_INTERVAL = timedelta(seconds=2)
"""Minimum time between two refreshes of the details. Questions are shown immediately."""


class PlanView(View):
    """The views of a plan: status, step pages, details and ledger row."""

    def __init__(self, context: PlanContext, activities: ActivityRunner) -> None:
        self._context, self._activities = context, activities

    @property
    def is_opened(self) -> bool:
        """True if the graph is loaded."""
        return self._context.is_open

    @property
    def tells_parent(self) -> bool:
        """True if the open questions are reported to the parent plan."""
        request = self._context.request
        return request.depth > 1 and not self._context.is_ending

    def record_child_waits(self, note: ChildNote) -> bool:
        """Record the open questions of a child workflow.

        Return False if no running step started the child.
        """
        child = note.workflow_id
        attempt = next((entry for entry in self._context.running.values() if child in entry.children), None)
        if attempt is None:
            return False
        before = attempt.waits.get(child, ())
        attempt.waits[child] = tuple(wait.evolve(step=attempt.name) for wait in note.waits)
        for wait in attempt.waits[child]:
            if wait not in before:
                self._context.log("waits", f"{wait.where}: {wait.what}", attempt.name)
        if before and not note.waits:
            self._context.log("continues", child, attempt.name)
        # A waiting step gives up its slot, so the main loop may start another one.
        self._context.wake()
        return True

    def status(self) -> PlanStatus:
        """Return a snapshot of the plan."""
        context, progress, info = self._context, self._context.progress, workflow.info()
        paused = context.is_running and self.needs[1]
        lines = [self.line(name) for name in progress.failures]
        is_closed = not context.is_running
        return PlanStatus.of(
            progress,
            plan_id=context.id,
            run_id=info.run_id,
            title=context.title,
            workspace=context.request.workspace,
            status="paused" if paused else context.status,
            phase=PlanPhase.CLOSED if is_closed else progress.phase,
            outcome=PlanOutcome(context.status.upper()) if is_closed else None,
            counts=context.schedule.counts() if context.is_open else {},
            running=tuple(self.line(name) for name in list(self._context.running)[:LINES_LIMIT]),
            failed=tuple(line for line in lines if line.status is StepStatus.FAILED)[:LINES_LIMIT],
            questions=context.waiting[:LINES_LIMIT] if context.is_running else (),
            children=self.waits_within[:LINES_LIMIT],
            unattended=context.request.unattended,
            drifts=context.core.drifts,
            delivered=context.core.delivered,
            worktree=context.core.worktree,
            scenarios=progress.evidence.scenarios if progress.evidence else 0,
            qualifier=context.qualifier,
            reason=context.reason,
            files_changed=context.files_changed,
            waits_for=self._activities.waits_for,
        )

    def steps(self, page: int) -> StepPage:
        """Return one page of the steps. Pages are numbered from 1."""
        if not self._context.is_open:
            return StepPage()
        schedule = self._context.schedule
        numbers = [number for number in range(len(schedule)) if not schedule.is_expanded(number)]
        pages = max(-(-len(numbers) // PAGE_LINES), 1)
        page = min(max(page, 1), pages)
        page_numbers = numbers[(page - 1) * PAGE_LINES : page * PAGE_LINES]
        lines = tuple(self.line(schedule.name(number)) for number in page_numbers)
        return StepPage(lines=lines, page=page, pages=pages, total=len(numbers))

    def row(self) -> WorkflowSnapshot:
        """Return the ledger row of this run."""
        context, parent = self._context, workflow.info().parent
        status, request = self.status(), context.request
        return WorkflowSnapshot.of(
            status,
            id=status.plan_id,
            kind=context.kind,
            parent=parent.workflow_id if parent else "",
            goal=shorten(status.title or request.goal, GOAL_CHARACTERS),
            phase=status.phase.value,
            cost_usd=status.spent.cost_usd,
            cost_known=not status.spent.unpriced_calls,
            tokens=status.spent.tokens,
            worked_s=status.spent.wall_time.total_seconds(),
            run=self._context.progress.runs,
            at=workflow.now(),
            details=status.model_dump(mode="json"),
        )

    @property
    def needs(self) -> tuple[Question | None, bool]:
        """The most important open question, and whether the plan is blocked until it is answered."""
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
        """Open questions in the child workflows of running steps."""
        return self._context.waits_within

    def line(self, name: str) -> StepLine:
        """Return the row for a step in a listing."""
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
        """Return the current details as Markdown."""
        return plan_details(self.status(), self._context.progress.budget, pausing=bool(self._context.running))


class PlanReporting(Reporting):
    """Publishes the state of a plan."""

    def __init__(self, context: PlanContext, view: PlanView) -> None:
        super().__init__(context, view, every=SHOW_INTERVAL)
        self._context = context

    def enter(self, phase: PlanPhase) -> None:
        """Enter a phase and publish it."""
        self._context.progress = self._context.progress.evolve(phase=phase)
        self.show()

    def _visible_state(self) -> StatusKey:
        context = self._context
        # A record for each step would triple the events of a plan. At rest, nothing else would record the last steps.
        counts = context.schedule.counts() if context.is_open and context.waiting else {}
        at_rest = () if counts.get(StepStatus.RUNNING) else (f"{name} {count}" for name, count in counts.items())
        return (*super()._visible_state(), *at_rest)
