"""How episodes and plans ended, and the little that is known of them without a worker."""

from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from tightloop.client.execution import Execution, Kind
from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeResult, EpisodeStatus
from tightloop.plan.request import PlanOutcome, PlanPhase, PlanResult, PlanStatus
from tightloop.question import Question, QuestionKind

Status = EpisodeStatus | PlanStatus
Result = EpisodeResult | PlanResult
STATUS_TYPES: dict[Kind, type[Status]] = {Kind.EPISODE: EpisodeStatus, Kind.PLAN: PlanStatus}
RESULT_TYPES: dict[Kind, type[Result]] = {Kind.EPISODE: EpisodeResult, Kind.PLAN: PlanResult}


def outline(seen: Execution) -> Status:
    """Return the status as far as Temporal itself knows it."""
    # Only Temporal itself can end its own pause: there is nothing to choose.
    evidence, kind = (seen.unfreeze,), QuestionKind.OPERATOR
    pause = Question(id="", kind=kind, title=seen.frozen, evidence=evidence, options=(), by="temporal")
    questions = (pause,) if seen.frozen else ()
    if seen.kind is Kind.PLAN:
        return PlanStatus.of(seen, plan_id=seen.id, title=seen.goal, questions=questions)
    return EpisodeStatus.of(seen, episode_id=seen.id, questions=questions)


def closed_status(answered: Status, seen: Execution, result: Result) -> Status:
    """Return the workflow's last status with what Temporal recorded of its end."""
    # Temporal ended these by itself: its word is more precise than the result that we make of it.
    by_temporal = seen.status in ("terminated", "timed_out") or (
        seen.kind is Kind.EPISODE and seen.status == "cancelled"
    )
    status = seen.status if by_temporal else result.outcome.value.lower()
    if isinstance(answered, PlanStatus) and isinstance(result, PlanResult):
        return answered.evolve(
            status=status,
            phase=PlanPhase.CLOSED,
            outcome=result.outcome,
            reason=result.reason,
            running=(),
            questions=(),
            children=(),
            counts=result.counts or answered.counts,
            tree=result.tree or answered.tree,
            spent=result.spent if result.counts else answered.spent,
            revision=result.revision if result.counts else answered.revision,
        )
    assert isinstance(answered, EpisodeStatus)
    assert isinstance(result, EpisodeResult)
    return answered.evolve(
        status=status,
        phase=EpisodePhase.CLOSED,
        outcome=result.outcome,
        reason=result.reason,
        questions=(),
        iteration=max(answered.iteration, result.iterations),
        checkpoint_id=result.checkpoint_id or answered.checkpoint_id,
        tree=result.tree or answered.tree,
        checks=result.checks or answered.checks,
        spent=result.spent if result.spent.iterations else answered.spent,
    )


def failed_result(cause: BaseException, seen: Execution) -> Result:
    """Return the result of a workflow that did not complete."""
    if isinstance(cause, ApplicationError) and cause.type in ("PlanFailed", "EpisodeFailed") and cause.details:
        return RESULT_TYPES[seen.kind].model_validate(cause.details[0])
    # Cancelling and terminating are done by hand. Both enums have these two values.
    outcome = "CANCELLED" if isinstance(cause, CancelledError | TerminatedError) else "FAILED"
    if isinstance(cause, CancelledError):
        reason = "cancelled in Temporal"
    elif isinstance(cause, TerminatedError):
        reason = f"terminated in Temporal: {cause.message}"
    elif isinstance(cause, TemporalTimeoutError):
        reason = "it ran into a time limit that was set in Temporal"
    else:
        reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
    if seen.kind is Kind.PLAN:
        return PlanResult(outcome=PlanOutcome(outcome), reason=reason)
    return EpisodeResult(outcome=EpisodeOutcome(outcome), reason=reason, iterations=seen.iteration)
