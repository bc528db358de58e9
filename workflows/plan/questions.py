"""What a plan asks people, and whom it alerts about it."""

from collections.abc import Callable, Iterable

from tightloop.episode.decisions import ACCEPT, ACCEPT_EFFECT, KEEP, UNDO, WORK, drift_question
from tightloop.ledger.alert import AlertKind, alert_kind
from tightloop.plan.child import StepFailure, StepStatus
from tightloop.run.question import Option, Question, QuestionKind
from tightloop.safety.drift import Drift
from workflows.plan.context import PlanContext

THE_PLAN = PlanContext.whole
FAILED_STEPS = "failed-steps"
"""The window of questions about failed steps: they can be answered together."""
NEED_NO_GRAPH = frozenset({QuestionKind.OPERATOR, QuestionKind.FATAL, QuestionKind.LIMIT})
"""They can be answered before the graph of the plan is loaded."""
APPROVALS = frozenset({QuestionKind.GATE, QuestionKind.POLICY, QuestionKind.CLARIFICATION})

RESUME = Option(name="resume", effect="steps start again; your edits of files are kept")
RETRY = Option(name="retry", effect="it is tried again; your edits of files are kept")
RETRY_STEP = RETRY.evolve(effect="it is tried again, with all its attempts; your edits of files are kept")
EXTEND = Option(name="extend", effect="each bound that is reached is raised by what the plan states for it")
CANCEL = Option(name="cancel", effect="the plan ends as cancelled")
SKIP = Option(name="skip", effect="the plan goes on as if the step had been skipped")
FAIL = Option(name="fail", effect="the step stays failed; the plan fails when nothing else is left to do")
REPLAN = Option(name="replan", effect="a planner changes the plan")
GO_TO_WORK = Option(name=WORK, effect="it is verified and proven again; your edits of files are kept")
ACCEPT_IT = Option(name=ACCEPT, effect=ACCEPT_EFFECT)
OPTION_NAMES = frozenset(
    {"approve", "reject", "resume", "retry", "extend", "cancel", "skip", "fail", "replan", WORK, ACCEPT, KEEP, UNDO}
)
_PAUSE_OPTIONS = {
    QuestionKind.OPERATOR: (RESUME, CANCEL),
    QuestionKind.LIMIT: (RESUME, CANCEL),
    QuestionKind.FATAL: (RETRY, CANCEL),
    QuestionKind.BUDGET: (EXTEND, CANCEL),
}


class PlanQuestions:
    """Asks people, once for each cause."""

    def __init__(self, context: PlanContext, show: Callable[[], None] = lambda: None) -> None:
        """`show` shows that the questions have changed."""
        self._context, self._show = context, show

    def pause(
        self, kind: QuestionKind, reason: str, *, by: str = "tightloop", step: str = "", alert: AlertKind | None = None
    ) -> None:
        """Let no step start until a person answers; one question of a kind is enough."""
        if self._context.find(kind):
            return
        options = _PAUSE_OPTIONS[kind]
        default = "" if kind is QuestionKind.BUDGET else options[0].name
        question = Question(
            id="", kind=kind, title=reason, options=options, default=default, blocks=THE_PLAN, by=by, step=step
        )
        self._ask("paused", question, alert)

    def ask_about_drift(self, drift: Drift) -> None:
        """Ask about files that somebody else changed, once for all steps that come upon them."""
        if self._context.find(QuestionKind.DRIFT) or self._context.progress.drift is not None:
            return
        self._ask("paused", drift_question(drift, blocks=THE_PLAN, cancel=CANCEL))

    def ask_about_failure(self, step: str, failure: StepFailure) -> None:
        """Ask what follows a failed step; what does not depend on it goes on."""
        question = Question(
            id="",
            kind=QuestionKind.FAILED_STEP,
            title=f"{step} failed: {failure.reason}",
            options=(RETRY_STEP, SKIP, FAIL, *self._replan),
            default=RETRY.name,
            blocks=step,
            step=step,
            window=FAILED_STEPS,
        )
        self._ask("asked", question)

    def ask_about_unmet(self, failed: str) -> None:
        """Ask what follows where all steps are done and the definition of done does not hold."""
        question = Question(
            id="",
            kind=QuestionKind.UNMET,
            title=f"the definition of done does not hold: {failed}",
            options=(RETRY, *self._replan, CANCEL),
            default=RETRY.name,
            blocks=THE_PLAN,
        )
        self._ask("paused", question)

    def ask_about_proof(self, title: str, evidence: tuple[str, ...]) -> None:
        """Ask what follows where the definition of done holds and something speaks against the proof."""
        question = Question(
            id="",
            kind=QuestionKind.PROOF,
            title=title,
            evidence=evidence,
            options=(GO_TO_WORK, ACCEPT_IT, *self._replan, CANCEL),
            default=GO_TO_WORK.name,
            blocks=THE_PLAN,
        )
        self._ask("paused", question)

    def ask_for_step(self, step: str, question: Question) -> None:
        """Ask what a step wants to know before it goes on."""
        # One with a command of its own is a moment that the plan was made for, not a pause.
        self._ask("waits", question.evolve(step=step, blocks="" if question.command else step))

    def close(self, questions: Iterable[Question]) -> None:
        """Take back what nobody needs to answer any more."""
        before = self._context.waiting
        self._context.close_questions(*(question.id for question in questions))
        if self._context.waiting != before:
            self._show()

    def find_outdated(self) -> tuple[Question, ...]:
        """Return what is about steps that are gone, or stand elsewhere since the plan was changed."""
        schedule = self._context.schedule
        stands = {QuestionKind.FAILED_STEP: StepStatus.FAILED, **dict.fromkeys(APPROVALS, StepStatus.WAITING)}

        def is_outdated(question: Question) -> bool:
            number = schedule.find(question.step)
            if question.kind in (QuestionKind.UNMET, QuestionKind.PROOF):
                return True
            return question.kind in stands and (number is None or schedule.status(number) is not stands[question.kind])

        return tuple(question for question in self._context.waiting if is_outdated(question))

    @property
    def _replan(self) -> tuple[Option, ...]:
        return (REPLAN,) if self._context.has_planner else ()

    def _ask(self, event: str, question: Question, alert: AlertKind | None = None) -> None:
        known = self._context.waiting
        is_told = any(question.window and one.window == question.window for one in known)
        opened = self._context.ask(question)
        by = f" (by {opened.by})" if opened.kind is QuestionKind.OPERATOR else ""
        self._context.log(event, f"{opened.kind.value}: {opened.title}{by}", opened.step)
        self._context.wake()
        self._show()
        # A plan waits for a limit of its own only where a watchdog pauses it.
        kind = alert or (AlertKind.OVERDUE if opened.kind is QuestionKind.LIMIT else alert_kind(opened))
        if kind is not None and not is_told and not opened.command:
            about = opened.step if opened.kind is QuestionKind.FAILED_STEP else opened.window or opened.step
            # What a plan's author named stays on this host: only options of ours go into an alert.
            options = tuple(name for name in opened.names if name in OPTION_NAMES)
            self._context.alerts.send(
                self._context.alert(kind, opened.title, about, question=opened.id, options=options)
            )
