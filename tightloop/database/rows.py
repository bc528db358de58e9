"""Rows of the tables, and the models that they stand for."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, RowMapping, Table, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tightloop.database.schema import clock, days, workflows
from tightloop.ledger.model import EvidenceLine, StepRow, WorkflowLine, WorkflowSnapshot
from tightloop.question import Question
from tightloop.value import shorten
from tightloop.value.scrub import scrub

TEXT_CHARACTERS = 2_000
GOAL_CHARACTERS = 200
_ADVANCE = update(clock).values(tick=clock.c.tick + bindparam("count"))
_TICK = select(clock.c.tick)
_QUESTIONS = TypeAdapter(tuple[Question, ...])


def next_tick(connection: Connection, count: int = 1) -> int:
    """Return the first of so many new change numbers; the caller's transaction writes."""
    connection.execute(_ADVANCE, {"count": count})
    last: int = connection.execute(_TICK).scalar_one()
    return last - count + 1


def upsert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows, or replace those with the same primary key."""
    if rows:
        connection.execute(_upsert(table, connection.dialect.name), rows)


def insert_missing(connection: Connection, table: Table, rows: list[dict[str, Any]], *keys: str) -> None:
    """Insert rows, but for those whose keys are there; without names any unique key counts."""
    if rows:
        connection.execute(_insert_missing(table, connection.dialect.name, keys), rows)


# Building them for each call took a third of the time of a write.
@cache
def _upsert(table: Table, dialect: str) -> Any:
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(table)
    keys = table.primary_key.columns.keys()
    replaced = {name: statement.excluded[name] for name in table.columns.keys() if name not in keys}  # noqa: SIM118
    return statement.on_conflict_do_update(index_elements=keys, set_=replaced)


@cache
def _insert_missing(table: Table, dialect: str, keys: tuple[str, ...]) -> Any:
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing(index_elements=keys or None)


def workflow_row(project: str, snapshot: WorkflowSnapshot) -> dict[str, Any]:
    """Return the row of a snapshot, but for its change number. What has ended asks nothing."""
    asked = () if snapshot.closed else snapshot.questions
    return {
        **snapshot.model_dump(exclude={"questions", "details", "goal"}),
        "project": project,
        "goal": shorten(scrub(snapshot.goal), GOAL_CHARACTERS),
        "placed": snapshot.started or snapshot.at,
        "waiting_since": min((question.since or snapshot.at for question in asked), default=None),
        "questions": json.dumps(scrubbed(_QUESTIONS.dump_python(asked, mode="json"))) if asked else "",
        "details": json.dumps(scrubbed(snapshot.details)) if snapshot.details else "",
    }


def scrubbed(value: Any) -> Any:
    """Return JSON without secrets and personal data in its texts: it may leave this host."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {name: scrubbed(one) for name, one in value.items()}
    return [scrubbed(one) for one in value] if isinstance(value, list | tuple) else value


def workflow_line(row: RowMapping) -> WorkflowLine:
    """Return what a row says; without its details where they were not read."""
    fields = {name: value for name, value in row.items() if name in WorkflowLine.model_fields}
    return WorkflowLine(
        **{
            **fields,
            "questions": questions_of(row),
            "details": json.loads(row["details"]) if row.get("details") else {},
        }
    )


def questions_of(row: RowMapping) -> tuple[Question, ...]:
    """Return what a workflow asks."""
    return _QUESTIONS.validate_json(row["questions"]) if row["questions"] else ()


def step_row(project: str, step: StepRow) -> dict[str, Any]:
    """Return the row of a step, but for its change number."""
    return {**step.model_dump(), "title": scrub(step.title), "project": project, "needs": json.dumps(step.needs)}


def read_step(row: RowMapping) -> StepRow:
    """Return what a row says of a step."""
    return StepRow.model_validate({**row, "needs": json.loads(row["needs"] or "[]")})


def event_line(row: RowMapping) -> EvidenceLine:
    """Return a line of the trail."""
    return EvidenceLine(
        seq=row["seq"],
        project=row["project"],
        episode_id=row["workflow_id"],
        kind=row["kind"],
        text=row["text"],
        key=row["key"],
        at=row["at"],
    )


def day_of(moment: datetime) -> date:
    """Return the day of a moment, in UTC."""
    return moment.astimezone(UTC).date()


def book(connection: Connection, project: str, workflow_id: str, *, at: datetime, cost_usd: float) -> None:
    """Add what a workflow spent since it was last heard of to the day."""
    known = connection.execute(
        select(workflows.c.cost_usd).where(workflows.c.project == project, workflows.c.id == workflow_id)
    ).scalar()
    spent = cost_usd - (known or 0.0)
    if spent <= 0:
        return
    here = (days.c.project == project, days.c.workflow_id == workflow_id, days.c.day == day_of(at))
    before = connection.execute(select(days.c.cost_usd).where(*here)).scalar() or 0.0
    row = {"project": project, "workflow_id": workflow_id, "day": day_of(at), "cost_usd": before + spent}
    upsert(connection, days, [{**row, "changed": next_tick(connection)}])


def names_of(questions: Iterable[Question]) -> dict[str, Question]:
    """Return questions by their ids."""
    return {question.id: question for question in questions}
