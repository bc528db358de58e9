"""Plans, as the client sees them: their words, and how their end is read."""

from temporalio.exceptions import ApplicationError

from tightloop.client.answers import EpisodeSummary, summary_of
from tightloop.client.execution import COMPLETED, Execution, status_word
from tightloop.client.kind import Kind, ended_by
from tightloop.plan.request import PLAN_WORKFLOW_TYPE, PlanOutcome, PlanPhase, PlanResult, PlanStatus

PLAN_CLOSED_STATUSES = ("completed", "failed", "compensated", "cancelled", "terminated", "timed_out")


def _status_word(number: int, attribute: str) -> str:
    if number == COMPLETED:
        return "cancelled" if attribute == "cancelled" else "completed"
    word = status_word(number, attribute)
    return "compensated" if word == "failed" and attribute == "compensated" else word


def _summary(seen: Execution) -> EpisodeSummary:
    """Return the line of a plan in the list; it may wait for an approval while it runs."""
    return summary_of(seen, pause_kind=seen.pause_kind if seen.is_open else "")


def _outline(seen: Execution) -> PlanStatus:
    return PlanStatus(
        plan_id=seen.workflow_id,
        run_id=seen.run_id,
        title=seen.goal,
        workspace=seen.workspace,
        status=seen.status,
        pause_reason=seen.frozen or "",
        pause_advice=seen.unfreeze if seen.frozen is not None else "",
    )


def _closed_status(answered: PlanStatus, seen: Execution, result: PlanResult) -> PlanStatus:
    gone = seen.status in ("terminated", "timed_out")
    return answered.model_copy(
        update={
            "status": seen.status if gone else result.outcome.value.lower(),
            "phase": PlanPhase.CLOSED,
            "outcome": result.outcome,
            "reason": result.reason,
            "pause_reason": "",
            "pause_advice": "",
            "running": (),
            "waiting": (),
            "children": (),
            "asked": (),
            "counts": result.counts or answered.counts,
            "tree": result.tree or answered.tree,
            "spent": result.spent if result.counts else answered.spent,
            "revision": result.revision if result.counts else answered.revision,
        }
    )


def _failed_result(cause: BaseException, _seen: Execution) -> PlanResult:
    if isinstance(cause, ApplicationError) and cause.type == "PlanFailed" and cause.details:
        return PlanResult.model_validate(cause.details[0])
    by_hand, reason = ended_by(cause)
    return PlanResult(outcome=PlanOutcome.CANCELLED if by_hand else PlanOutcome.FAILED, reason=reason)


PLAN: Kind[PlanStatus, PlanResult] = Kind(
    noun="plan",
    workflow_type=PLAN_WORKFLOW_TYPE,
    command="tightloop plan",
    start_hint="tightloop plan run plan.yaml",
    go_on_hint="Run it again, with what is done taken over: tightloop plan run --again {id}",
    closed_statuses=PLAN_CLOSED_STATUSES,
    status_type=PlanStatus,
    result_type=PlanResult,
    status_word=_status_word,
    summary=_summary,
    outline=_outline,
    closed_status=_closed_status,
    failed_result=_failed_result,
)
