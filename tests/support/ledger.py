"""Rows of a ledger for tests."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import update

from tightloop.database.ledger import local_database
from tightloop.database.schema import events
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.run.question import Option, Question, QuestionKind

START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)


def snapshot(name: str, minute: float = 0, **changes: Any) -> WorkflowSnapshot:
    """Return what an episode that started at `START` says of itself so many minutes later."""
    fields: dict[str, Any] = {
        "id": name,
        "kind": "episode",
        "status": "running",
        "goal": f"goal of {name}",
        "at": START + timedelta(minutes=minute),
        "started": START,
    }
    return WorkflowSnapshot.model_validate(fields | changes)


def question(name: str = "q1", minute: float = 0, **changes: Any) -> Question:
    """Return a question that is asked since so many minutes after `START`."""
    fields: dict[str, Any] = {
        "id": name,
        "kind": QuestionKind.PERMISSION,
        "title": f"Allow {name}?",
        "options": (Option(name="allow"), Option(name="deny")),
        "blocks": "the episode",
        "since": START + timedelta(minutes=minute),
    }
    return Question(**(fields | changes))


def backdate(home: Path, workflow_id: str, at: datetime) -> None:
    """Let a workflow have done its last thing then."""
    with local_database(home).writing() as connection:
        connection.execute(update(events).where(events.c.workflow_id == workflow_id).values(at=at))
