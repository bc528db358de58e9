"""Writes the steps of plans: thousands at once when a plan is opened, then one by one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from tightloop.database.rows import next_tick, read_step, step_row, upsert
from tightloop.database.schema import steps
from tightloop.ledger.model import StepRow, TrailEvent
from tightloop.plan.result import StepStatus

ASKED_AT_ONCE = 500


def write_steps(connection: Connection, project: str, rows: Iterable[StepRow]) -> list[TrailEvent]:
    """Keep steps as they are now, unless something newer is known; return the lines of the trail about changes."""
    lines: list[TrailEvent] = []
    changed: list[StepRow] = []
    for plan_id, wanted in _by_plan(rows).items():
        known = _known(connection, project, plan_id, [row.step for row in wanted])
        for row in wanted:
            before = known.get(row.step)
            now = row if before is None else _after(before, row)
            if now is None or now == before:
                continue
            known[row.step] = now
            changed.append(now)
            if before is None or (before.status, before.attempt) != (now.status, now.attempt):
                lines.append(_line(now))
    _write(connection, project, changed)
    return [line for line in lines if line.text]


def write_graph(connection: Connection, project: str, rows: Iterable[StepRow]) -> None:
    """Add the steps of a plan; of those that are known only title, place and needs are taken over."""
    for plan_id, wanted in _by_plan(rows).items():
        known = _known(connection, project, plan_id, [row.step for row in wanted])
        merged = [
            known[row.step].evolve(title=row.title, order=row.order, needs=row.needs) if row.step in known else row
            for row in wanted
        ]
        _write(connection, project, [row for row in merged if row != known.get(row.step)])


def settle_steps(connection: Connection, project: str, plan_id: str, statuses: Mapping[str, str], at: datetime) -> None:
    """Note where the steps of a plan that ended stand: those that are named, and others that were passed as done."""
    query = select(steps).where(steps.c.project == project, steps.c.plan_id == plan_id)
    known = {row["step"]: read_step(row) for row in connection.execute(query).mappings()}
    open_ones = [step for step, row in known.items() if row.status == StepStatus.PENDING.value]
    ends = dict.fromkeys(open_ones, StepStatus.COMPLETED.value) | dict(statuses)
    empty = StepRow(plan_id=plan_id, step="", status="")
    rows = [known.get(step, empty.evolve(step=step)).evolve(status=status) for step, status in ends.items()]
    _write(connection, project, [row.evolve(at=at) for row in rows if row != known.get(row.step)])


def _by_plan(rows: Iterable[StepRow]) -> dict[str, list[StepRow]]:
    found: dict[str, list[StepRow]] = defaultdict(list)
    for row in rows:
        found[row.plan_id].append(row)
    return found


def _known(connection: Connection, project: str, plan_id: str, names: list[str]) -> dict[str, StepRow]:
    found: dict[str, StepRow] = {}
    for start in range(0, len(names), ASKED_AT_ONCE):
        query = select(steps).where(steps.c.project == project, steps.c.plan_id == plan_id)
        query = query.where(steps.c.step.in_(names[start : start + ASKED_AT_ONCE]))
        found |= {row["step"]: read_step(row) for row in connection.execute(query).mappings()}
    return found


def _after(before: StepRow, row: StepRow) -> StepRow | None:
    """Return a known step with what is new about it; None: the news is old."""
    if row.at is not None and before.at is not None and row.at < before.at:
        return None
    # What a later row leaves out is still so.
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
            {**step_row(project, row), "changed": first + place} for place, row in enumerate(rows)
        ]
        upsert(connection, steps, numbered)


def _line(row: StepRow) -> TrailEvent:
    text = "" if row.status == StepStatus.PENDING.value else f"{row.step}: {row.status}, attempt {row.attempt}"
    key = f"step/{row.step}/{row.attempt}/{row.status}"
    return TrailEvent(episode_id=row.plan_id, kind="step", key=key, text=text, at=row.at)
