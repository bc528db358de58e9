"""What an episode says of itself, for the ledger."""

from datetime import datetime

from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.value import shorten

MODEL_CHARACTERS = 120


def episode_snapshot(status: EpisodeStatus, *, parent: str, at: datetime) -> WorkflowSnapshot:
    """Return the row of an episode.

    Args:
        status: as the query answers it.
        parent: id of the workflow that started it, if any.
        at: now.
    """
    spent = status.spent
    return WorkflowSnapshot(
        id=status.episode_id,
        kind="episode",
        status=status.status,
        parent=parent,
        goal=status.goal,
        executor=status.executor,
        phase=status.phase.value,
        iteration=status.iteration,
        checks=status.checks,
        model=shorten(status.model, MODEL_CHARACTERS),
        cost_usd=spent.cost_usd,
        cost_known=not spent.unpriced_calls,
        tokens=None if spent.unreported_calls else spent.tokens,
        worked_s=spent.wall_time.total_seconds(),
        interventions=spent.interventions,
        run=status.runs,
        at=at,
        questions=tuple(question for question in status.questions if question.needs_person),
        details=status.model_dump(mode="json"),
    )
