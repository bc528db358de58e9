"""Episodes, as the client sees them: their words, and how their end is read."""

from temporalio.exceptions import ApplicationError

from tightloop.client.answers import EpisodeSummary, summary_of
from tightloop.client.execution import COMPLETED, Execution, status_word
from tightloop.client.kind import Kind, ended_by
from tightloop.episode import (
    WORKFLOW_TYPE,
    EpisodeOutcome,
    EpisodePhase,
    EpisodeResult,
    EpisodeStatus,
    Pause,
    PauseKind,
)

CLOSED_STATUSES = ("succeeded", "failed", "aborted", "cancelled", "terminated", "timed_out")


def _status_word(number: int, attribute: str) -> str:
    return "aborted" if number == COMPLETED and attribute == "aborted" else status_word(number, attribute)


def _summary(seen: Execution) -> EpisodeSummary:
    return summary_of(seen, pause_kind=seen.pause_kind if seen.status == "paused" else "")


def _outline(seen: Execution) -> EpisodeStatus:
    pause = None
    if seen.frozen is not None:
        pause = Pause(kind=PauseKind.OPERATOR, reason=seen.frozen, by="temporal", advice=seen.unfreeze)
    return EpisodeStatus(
        episode_id=seen.workflow_id,
        run_id=seen.run_id,
        status=seen.status,
        goal=seen.goal,
        workspace=seen.workspace,
        executor=seen.executor,
        iteration=seen.iteration,
        pause=pause,
    )


def _closed_status(answered: EpisodeStatus, seen: Execution, result: EpisodeResult) -> EpisodeStatus:
    by_outcome = seen.status in ("succeeded", "aborted")
    return answered.model_copy(
        update={
            "status": result.outcome.value.lower() if by_outcome else seen.status,
            "phase": EpisodePhase.CLOSED,
            "outcome": result.outcome,
            "reason": result.reason,
            "pause": None,
            "iteration": max(answered.iteration, result.iterations),
            "checkpoint_id": result.checkpoint_id or answered.checkpoint_id,
            "tree": result.tree or answered.tree,
            "checks": result.checks or answered.checks,
            "spent": result.spent if result.spent.iterations else answered.spent,
        }
    )


def _failed_result(cause: BaseException, seen: Execution) -> EpisodeResult:
    if isinstance(cause, ApplicationError) and cause.type == "EpisodeFailed" and cause.details:
        return EpisodeResult.model_validate(cause.details[0])
    by_hand, reason = ended_by(cause)
    outcome = EpisodeOutcome.ABORTED if by_hand else EpisodeOutcome.FAILED
    return EpisodeResult(outcome=outcome, reason=reason, iterations=seen.iteration)


EPISODE: Kind[EpisodeStatus, EpisodeResult] = Kind(
    noun="episode",
    workflow_type=WORKFLOW_TYPE,
    command="tightloop",
    start_hint='tightloop start "make the tests pass" --done "pytest -q"',
    go_on_hint="Go on from one of its checkpoints with: tightloop restore {id} CKPT, or tightloop fork {id} CKPT",
    closed_statuses=CLOSED_STATUSES,
    status_type=EpisodeStatus,
    result_type=EpisodeResult,
    status_word=_status_word,
    summary=_summary,
    outline=_outline,
    closed_status=_closed_status,
    failed_result=_failed_result,
)
