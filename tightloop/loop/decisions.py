"""What the loop does next: another iteration, success, or a pause for a person, and why."""

from enum import StrEnum

from tightloop.alignment import Finding, told, unanswered
from tightloop.budget import breaches
from tightloop.check import Verification
from tightloop.episode import EpisodeRequest, EpisodeState, Pause, PauseKind
from tightloop.executor import LIMIT_STRIKES, ExecutorReport, ExecutorStatus, Question, QuestionKind
from tightloop.failure import Failure, FailureClass, signature
from tightloop.planning import PlanOutcome, PlanVerdict
from tightloop.value import Value, shorten


class Step(StrEnum):
    """What the loop does next."""

    CONTINUE = "continue"
    SUCCEED = "succeed"
    PAUSE = "pause"


class Decision(Value):
    """What the loop does next, and why."""

    step: Step
    pause: Pause | None = None


CONTINUE = Decision(step=Step.CONTINUE)
SUCCEED = Decision(step=Step.SUCCEED)

ADVICE = {
    PauseKind.OPERATOR: "resume when you are ready; edits you made meanwhile are kept",
    PauseKind.BUDGET: 'give more with top_up, such as {"iterations": 5}, or abort',
    PauseKind.REPEAT_ERROR: (
        'mend the cause or tell the planner with respond, such as "use the other parser", or restore a checkpoint'
    ),
    PauseKind.FATAL: "mend what the reason names, then resume",
    PauseKind.LIMIT: "resume when the limit has passed",
    PauseKind.DEVIATION: (
        "look at the diff; resume to accept it, restore a checkpoint to undo it, or respond with guidance"
    ),
    PauseKind.ALIGNMENT: "respond with what may be done, amend_goal, or abort",
    PauseKind.PLANNER_GAVE_UP: "mend it yourself or respond with guidance; or use another planner",
    PauseKind.RESPONSE: "answer the question",
}

QUESTION_ADVICE = {
    QuestionKind.PERMISSION: 'answer "allow" or "deny"; a bare resume lets the executor ask again',
    QuestionKind.WORK: 'do the work in the workspace, then resume, or answer "done", "failed: why" or "refused: why"',
}


def paused(kind: PauseKind, reason: str, *, by: str = "tightloop") -> Decision:
    """Return the decision to wait for a person."""
    return Decision(step=Step.PAUSE, pause=Pause(kind=kind, reason=shorten(reason, 600), by=by, advice=ADVICE[kind]))


def asked(question: Question) -> Decision:
    """Return the decision to wait for a person's answer."""
    reason = f"{question.title}: {question.detail}" if question.detail else question.title
    pause = Pause(
        kind=PauseKind.RESPONSE,
        reason=shorten(reason, 600),
        by="the executor",
        advice=QUESTION_ADVICE[question.kind],
        question=question,
    )
    return Decision(step=Step.PAUSE, pause=pause)


def guard_rails(state: EpisodeState) -> Decision:
    """Decide whether another iteration may begin: every bound of the budget is checked here."""
    found = breaches(state.budget, state.spent)
    if found:
        return paused(PauseKind.BUDGET, "the budget is spent: " + ", ".join(str(breach) for breach in found))
    return CONTINUE


def after_planning(outcome: PlanOutcome, overruled: tuple[str, ...] = ()) -> Decision:
    """Decide what a planner's answer leads to; a malformed one is a failed iteration, not a pause.

    What a person allowed before (`overruled`) is not asked for again.
    """
    if outcome.verdict is PlanVerdict.GAVE_UP:
        return paused(PauseKind.PLANNER_GAVE_UP, outcome.reason or "the planner gave up without a reason")
    if outcome.findings:
        return _aligned(unanswered(outcome.findings, overruled))
    if not outcome.aligned:
        return paused(PauseKind.ALIGNMENT, outcome.reason or "the planner's alignment check says no")
    return CONTINUE


def _aligned(findings: tuple[Finding, ...]) -> Decision:
    """Return the decision to wait for a person where anything was found."""
    if not findings:
        return CONTINUE
    reason, advice = told(findings)
    pause = Pause(kind=PauseKind.ALIGNMENT, reason=shorten(reason, 600), by="tightloop", advice=advice)
    return Decision(step=Step.PAUSE, pause=pause)


def plan_stands(state: EpisodeState, outcome: PlanOutcome) -> bool:
    """Return whether a plan that a person had to look at is carried out: they allowed it, and said nothing else."""
    planned = outcome.verdict in (PlanVerdict.PLANNED, PlanVerdict.CLAIMS_DONE)
    return planned and not state.notes and bool(outcome.findings) and not unanswered(outcome.findings, state.overruled)


def change_stands(state: EpisodeState, decision: Decision) -> bool:
    """Return whether the checks still hold for a change that a person had to look at and let stand."""
    looked_at = decision.pause is not None and decision.pause.kind is PauseKind.ALIGNMENT
    return looked_at and not state.notes and state.checked_tree == state.tree


def after_execution(state: EpisodeState, report: ExecutorReport) -> Decision:
    """Decide whether the work can be verified, or a person is needed first."""
    if report.status is ExecutorStatus.NEEDS_PERSON and report.question is not None:
        return asked(report.question)
    if report.status in (ExecutorStatus.FATAL, ExecutorStatus.NEEDS_PERSON):
        why = report.error or report.summary or f"it ended with {report.status.value} and does not say why"
        return paused(PauseKind.FATAL, f"the executor cannot work: {why}")
    if report.status is ExecutorStatus.LIMIT_HIT and state.limit_strikes >= LIMIT_STRIKES:
        evidence = report.limit.evidence if report.limit else report.summary
        return paused(PauseKind.LIMIT, f"{state.limit_strikes} limits in a row: {evidence or 'no text'}")
    return CONTINUE


def failure_of(state: EpisodeState, verification: Verification | None, *, changed: bool) -> Failure | None:
    """Return what went wrong in this iteration, the first cause only; None if nothing did."""
    if state.plan_verdict is PlanVerdict.MALFORMED:
        return Failure(
            kind=FailureClass.PLANNER,
            signature=signature("planner", "malformed"),
            summary=state.plan_title or "the planner's answer could not be used",
            iteration=state.iteration,
        )
    status = state.executor_status
    if status is not None and status not in (ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE):
        return Failure(
            kind=FailureClass.EXECUTOR,
            signature=signature("executor", status.value, state.executor_error),
            summary=f"executor {status.value}: {state.executor_error}".rstrip(": "),
            iteration=state.iteration,
        )
    if verification is not None and not verification.green:
        names = ", ".join(str(check) for check in verification.failed[:3]) or "no check ran"
        return Failure(
            kind=FailureClass.CHECK,
            signature=verification.signature,
            summary=f"{verification.failed_count} of {verification.total} checks fail: {names}",
            iteration=state.iteration,
        )
    if not changed and not is_complete(state):
        return Failure(
            kind=FailureClass.EXECUTOR,
            signature=signature("nothing changed"),
            summary="the iteration changed nothing and the planner does not call the goal met",
            iteration=state.iteration,
        )
    return None


def is_complete(state: EpisodeState) -> bool:
    """Return whether the goal is met: executed checks are green, and they mean something.

    Green checks mean something when they were red at first, or when the planner calls the goal met;
    a claim without green checks never counts.
    """
    return state.checks_green and (state.baseline_red or state.plan_final)


def after_tracking(state: EpisodeState, request: EpisodeRequest) -> Decision:
    """Decide at the end of an iteration: success, a person, or another iteration.

    What has to be looked at comes first: also green checks may have been reached in a wrong way.
    """
    found = _aligned(unanswered(state.findings, state.overruled))
    if found.step is Step.PAUSE:
        return found
    if is_complete(state):
        return SUCCEED
    streak = state.failures
    if streak.last is not None and streak.count >= request.repeat_error_limit:
        return paused(PauseKind.REPEAT_ERROR, f"the same error {streak.count} times in a row: {streak.last.summary}")
    if state.low_streak >= request.deviation_limit:
        return paused(
            PauseKind.DEVIATION, f"{state.low_streak} iterations in a row left their course: {state.reflect_detail}"
        )
    return CONTINUE


def may_continue_as_new(
    state: EpisodeState, request: EpisodeRequest, *, iterations_in_run: int, suggested: bool
) -> bool:
    """Return whether the run shall be followed by a new one; asked between iterations only."""
    return state.pause is None and (suggested or iterations_in_run >= request.iterations_per_run)
