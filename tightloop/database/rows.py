"""The ledger's row conversion and write statements."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, bindparam, case, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tightloop.database.engine import Database
from tightloop.database.schema import clock, events, metrics, spending, steps, workflows
from tightloop.episode.control import FALLBACK_MARK
from tightloop.episode.model import EpisodeOutcome
from tightloop.ledger.metrics import EndedEpisode, Metric, MetricKind, MetricsFilter
from tightloop.ledger.model import UNKNOWN, EvidenceLine, StepRow, TrailEvent, WorkflowLine, WorkflowSnapshot
from tightloop.plan.child import StepStatus
from tightloop.run.outcome import is_plain_success
from tightloop.run.question import Question, QuestionKind
from tightloop.value import shorten
from tightloop.value.scrub import scrub

TEXT_CHARACTERS = 2_000
GOAL_CHARACTERS = 200
_ADVANCE = update(clock).values(tick=clock.c.tick + bindparam("count"))
_TICK = select(clock.c.tick)
_QUESTIONS = TypeAdapter(tuple[Question, ...])


def next_tick(connection: Connection, count: int = 1) -> int:
    """Reserve `count` change numbers in a write transaction and return the first number."""
    # Updated before it is read, so that the row is locked and no other writer gets the same numbers.
    connection.execute(_ADVANCE, {"count": count})
    last: int = connection.execute(_TICK).scalar_one()
    return last - count + 1


def upsert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows, replacing existing rows with the same primary key."""
    if rows:
        connection.execute(_upsert(table, connection.dialect.name), rows)


def insert_missing(connection: Connection, table: Table, rows: list[dict[str, Any]], *keys: str) -> None:
    """Insert rows, skipping rows that violate the uniqueness of `keys`.

    If no keys are given, skip rows that violate any unique key.
    """
    if rows:
        connection.execute(_insert_missing(table, connection.dialect.name, keys), rows)


# Building the statements for each call took a third of the time of a write.
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
    """Return the row for a snapshot without its change number. A closed workflow has no open questions."""
    open_questions = () if snapshot.closed else snapshot.questions
    return {
        **snapshot.model_dump(exclude={"questions", "details", "goal"}),
        "project": project,
        "goal": shorten(scrub(snapshot.goal), GOAL_CHARACTERS),
        "placed": snapshot.started or snapshot.at,
        "waiting_since": min((question.since or snapshot.at for question in open_questions), default=None),
        "questions": json.dumps(scrub_json(_QUESTIONS.dump_python(open_questions, mode="json")))
        if open_questions
        else "",
        "details": json.dumps(scrub_json(snapshot.details)) if snapshot.details else "",
    }


def scrub_json(value: Any) -> Any:
    """Scrub all strings in JSON data, because the data may leave this host."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {name: scrub_json(item) for name, item in value.items()}
    return [scrub_json(item) for item in value] if isinstance(value, list | tuple) else value


def workflow_line(row: RowMapping) -> WorkflowLine:
    """Convert a ledger row to a workflow line. Without the details column, the details are empty."""
    fields = {name: value for name, value in row.items() if name in WorkflowLine.model_fields}
    return WorkflowLine(
        **{
            **fields,
            "questions": questions_of(row),
            "details": json.loads(row["details"]) if row.get("details") else {},
        }
    )


def questions_of(row: RowMapping) -> tuple[Question, ...]:
    return _QUESTIONS.validate_json(row["questions"]) if row["questions"] else ()


def step_row(project: str, step: StepRow) -> dict[str, Any]:
    """Return the row for a plan step without its change number."""
    return {**step.model_dump(), "title": scrub(step.title), "project": project, "needs": json.dumps(step.needs)}


def read_step(row: RowMapping) -> StepRow:
    return StepRow.model_validate({**row, "needs": json.loads(row["needs"] or "[]")})


def event_line(row: RowMapping) -> EvidenceLine:
    return EvidenceLine(
        seq=row["seq"],
        project=row["project"],
        episode_id=row["workflow_id"],
        kind=row["kind"],
        text=row["text"],
        key=row["key"],
        at=row["at"],
    )


def book(connection: Connection, project: str, workflow_id: str, *, at: datetime, cost_usd: float) -> None:
    """Add the money that a workflow has spent since its last snapshot to its total for the hour."""
    booked_cost = connection.execute(
        select(workflows.c.cost_usd).where(workflows.c.project == project, workflows.c.id == workflow_id)
    ).scalar()
    spent = cost_usd - (booked_cost or 0.0)
    # A restore or reset can lower the total; money that was spent stays counted.
    if spent <= 0:
        return
    key = {"project": project, "workflow_id": workflow_id, "hour": at.replace(minute=0, second=0, microsecond=0)}
    condition = (spending.c[name] == value for name, value in key.items())
    before = connection.execute(select(spending.c.cost_usd).where(*condition)).scalar() or 0.0
    upsert(connection, spending, [{**key, "cost_usd": before + spent, "changed": next_tick(connection)}])


def names_of(questions: Iterable[Question]) -> dict[str, Question]:
    return {question.id: question for question in questions}


# Below SQLite's limit of values per statement.
ASKED_AT_ONCE = 500


def write_steps(connection: Connection, project: str, rows: Iterable[StepRow]) -> list[TrailEvent]:
    """Store the current state of steps and return the events for the changes. Older data is dropped."""
    lines: list[TrailEvent] = []
    changed: list[StepRow] = []
    for plan_id, plan_rows in _by_plan(rows).items():
        stored_steps = _load_steps(connection, project, plan_id, [row.step for row in plan_rows])
        for row in plan_rows:
            before = stored_steps.get(row.step)
            now = row if before is None else _after(before, row)
            if now is None or now == before:
                continue
            # A batch can contain several states of one step.
            stored_steps[row.step] = now
            changed.append(now)
            if before is None or (before.status, before.attempt) != (now.status, now.attempt):
                lines.append(_line(now))
    _write(connection, project, changed)
    return [line for line in lines if line.text]


def write_graph(connection: Connection, project: str, rows: Iterable[StepRow]) -> None:
    """Add a plan's steps. For existing steps, update only the title, order and dependencies."""
    for plan_id, plan_rows in _by_plan(rows).items():
        stored_steps = _load_steps(connection, project, plan_id, [row.step for row in plan_rows])
        merged = [
            stored_steps[row.step].evolve(title=row.title, order=row.order, needs=row.needs)
            if row.step in stored_steps
            else row
            for row in plan_rows
        ]
        _write(connection, project, [row for row in merged if row != stored_steps.get(row.step)])


def settle_steps(connection: Connection, project: str, plan_id: str, statuses: Mapping[str, str], at: datetime) -> None:
    """Store the final statuses of a plan's steps. Other pending steps are marked as completed."""
    query = select(steps).where(steps.c.project == project, steps.c.plan_id == plan_id)
    stored_steps = {row["step"]: read_step(row) for row in connection.execute(query).mappings()}
    open_ones = [step for step, row in stored_steps.items() if row.status == StepStatus.PENDING.value]
    ends = dict.fromkeys(open_ones, StepStatus.COMPLETED.value) | dict(statuses)
    empty = StepRow(plan_id=plan_id, step="", status="")
    rows = [stored_steps.get(step, empty.evolve(step=step)).evolve(status=status) for step, status in ends.items()]
    _write(connection, project, [row.evolve(at=at) for row in rows if row != stored_steps.get(row.step)])


def _by_plan(rows: Iterable[StepRow]) -> dict[str, list[StepRow]]:
    rows_by_plan: dict[str, list[StepRow]] = defaultdict(list)
    for row in rows:
        rows_by_plan[row.plan_id].append(row)
    return rows_by_plan


def _load_steps(connection: Connection, project: str, plan_id: str, names: list[str]) -> dict[str, StepRow]:
    loaded_steps: dict[str, StepRow] = {}
    for start in range(0, len(names), ASKED_AT_ONCE):
        query = select(steps).where(steps.c.project == project, steps.c.plan_id == plan_id)
        query = query.where(steps.c.step.in_(names[start : start + ASKED_AT_ONCE]))
        loaded_steps |= {row["step"]: read_step(row) for row in connection.execute(query).mappings()}
    return loaded_steps


def _after(before: StepRow, row: StepRow) -> StepRow | None:
    """Merge new data into a stored step. Return None if the data is older."""
    if row.at is not None and before.at is not None and row.at < before.at:
        return None
    # Fields that a later row omits keep their values.
    return row.evolve(
        child_id=row.child_id or before.child_id,
        needs=row.needs or before.needs,
        title=row.title or before.title,
        order=row.order or before.order,
    )


def _write(connection: Connection, project: str, rows: list[StepRow]) -> None:
    if rows:
        first = next_tick(connection, len(rows))
        numbered: list[dict[str, Any]] = [
            {**step_row(project, row), "changed": first + index} for index, row in enumerate(rows)
        ]
        upsert(connection, steps, numbered)


def _line(row: StepRow) -> TrailEvent:
    text = "" if row.status == StepStatus.PENDING.value else f"{row.step}: {row.status}, attempt {row.attempt}"
    key = f"step/{row.step}/{row.attempt}/{row.status}"
    return TrailEvent(episode_id=row.plan_id, kind="step", key=key, text=text, at=row.at)


def write_metrics(connection: Connection, project: str, measured: Iterable[Metric]) -> None:
    """Store measured values, unless newer ones are already stored."""
    for metric in measured:
        row = {"project": project, "workflow_id": metric.workflow_id, "kind": metric.kind.value, "key": metric.key}
        key_conditions = (metrics.c[name] == value for name, value in row.items())
        stored_at = connection.execute(select(metrics.c.at).where(*key_conditions)).scalar()
        if stored_at is not None and stored_at > metric.at:
            continue
        values = {"value": metric.value, "at": metric.at, "metadata": json.dumps(scrub_json(metric.metadata))}
        upsert(connection, metrics, [{**row, **values, "changed": next_tick(connection)}])


def answer_times(snapshot: WorkflowSnapshot, settled: Iterable[Question]) -> Iterator[Metric]:
    """Yield the number of seconds that each settled question waited for an answer."""
    if snapshot.status == EpisodeOutcome.FAILED.value.lower():
        return  # closed by a timeout, not by an answer
    for question in settled:
        if question.since is not None and question.kind is not QuestionKind.OPERATOR:
            seconds = max((snapshot.at - question.since).total_seconds(), 0.0)
            yield Metric(
                workflow_id=snapshot.id,
                kind=MetricKind.ANSWER_S,
                value=seconds,
                at=snapshot.at,
                key=question.id,
                metadata={"kind": question.kind.value},
            )


def ended_episodes(
    connection: Connection, filters: MetricsFilter, is_visible: ColumnElement[bool]
) -> list[EndedEpisode]:
    """Return the finished episodes that match a filter.

    Args:
        connection: connection to the database.
        filters: time range and filter.
        is_visible: condition on `workflows` that selects the visible projects.
    """
    which = (workflows.c.kind == "episode", is_visible, *_conditions(filters))
    query = select(metrics.c.project, metrics.c.workflow_id, metrics.c.value)
    query = query.select_from(workflows.join(metrics, _of_episode()))
    # Read apart from the sums, because the median needs each answer.
    answers: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in connection.execute(query.where(metrics.c.kind == MetricKind.ANSWER_S.value, *which)):
        answers[row.project, row.workflow_id].append(row.value)
    return [_episode(row, answers) for row in connection.execute(_episodes(which))]


def _episode(row: Sequence[Any], answers: Mapping[tuple[str, str], Iterable[float]]) -> EndedEpisode:
    # Positional: attribute lookups would cost time in each of thousands of rows.
    (
        project,
        workflow_id,
        executor,
        model,
        closed,
        status,
        qualifier,
        iterations,
        tokens,
        cost,
        cost_known,
        *measured_values,
        hits,
    ) = row
    worked_s, interventions, safety_findings, bandit_findings, coverage, searches = measured_values
    return EndedEpisode(
        project=project,
        executor=executor.partition(FALLBACK_MARK)[0],
        model=model,
        closed=closed,
        succeeded=None if status == UNKNOWN else is_plain_success(status, qualifier),
        iterations=iterations,
        tokens=tokens,
        cost_usd=cost if cost_known else None,
        worked_s=worked_s,
        interventions=interventions,
        safety_findings=safety_findings,
        bandit_findings=bandit_findings,
        changed_line_coverage=coverage,
        memory_searches=searches,
        memory_hits=int(hits or 0),
        answers_s=tuple(answers.get((project, workflow_id), ())),
    )


def _episodes(which: Iterable[ColumnElement[bool]]) -> Any:
    of_kind = {kind: case((metrics.c.kind == kind.value, metrics.c.value)) for kind in MetricKind}
    row = workflows.c
    columns = (
        row.project, row.id, row.executor, row.model, row.closed, row.status, row.qualifier, row.iteration,
        row.tokens, row.cost_usd, row.cost_known, row.worked_s, row.interventions,
    )  # fmt: skip
    # One pass over the metrics; a subquery per kind would read them five times.
    sums = (
        func.sum(of_kind[MetricKind.SAFETY_FINDINGS]),
        func.sum(of_kind[MetricKind.BANDIT_FINDINGS]),
        func.sum(of_kind[MetricKind.CHANGED_LINE_COVERAGE]),
        func.count(of_kind[MetricKind.MEMORY_HIT]),
        func.sum(of_kind[MetricKind.MEMORY_HIT]),
    )
    joined = workflows.outerjoin(metrics, _of_episode())
    return select(*columns, *sums).select_from(joined).where(*which).group_by(row.project, row.id)


def _of_episode() -> ColumnElement[bool]:
    return and_(metrics.c.project == workflows.c.project, metrics.c.workflow_id == workflows.c.id)


def _conditions(filters: MetricsFilter) -> Iterator[ColumnElement[bool]]:
    yield workflows.c.closed >= filters.since
    yield workflows.c.closed < filters.until
    if filters.project:
        yield workflows.c.project == filters.project
    if filters.executor:
        stands_in = workflows.c.executor.startswith(f"{filters.executor}{FALLBACK_MARK}", autoescape=True)
        yield or_(workflows.c.executor == filters.executor, stands_in)
    if filters.model:
        yield workflows.c.model == filters.model


def put_in_order(database: Database, written: Iterable[tuple[int, int, float]]) -> None:
    """Renumber events in chronological order.

    Args:
        database: the ledger's database.
        written: batches of events, each with its first number, last number and time.
    """
    at = {seq: (moment, seq) for first, last, moment in written for seq in range(first, last + 1)}
    with database.writing(durable=True) as connection:
        there = [seq for seq in connection.scalars(select(events.c.seq).order_by(events.c.seq)) if seq in at]
        moves = [
            {"old": old, "new": new}
            for old, new in zip(sorted(there, key=lambda seq: at[seq]), there, strict=True)
            if old != new
        ]
        if moves:
            # Move via unused negative numbers, because sequence numbers are unique at all times.
            away = update(events).where(events.c.seq == bindparam("old")).values(seq=-bindparam("new"))
            connection.execute(away, moves)
            connection.execute(update(events).where(events.c.seq < 0).values(seq=-events.c.seq))
