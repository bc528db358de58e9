"""Entries of the ledger that a host hands over."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, Table, func, select

from tightloop.database.engine import Database
from tightloop.database.project import drop_rows
from tightloop.database.rows import insert_missing, next_tick, questions_of, upsert
from tightloop.database.schema import (
    checkpoints,
    clock,
    days,
    events,
    freed,
    metrics,
    projects,
    spools,
    steps,
    workflows,
)
from tightloop.ledger.model import InboxItem, StepRow
from tightloop.loop.model import LoopTask
from tightloop.plan.child import StepStatus
from tightloop.run.question import Question

WINDOW = 500
"""Changes that are brought at once: bounds the memory, and how long other writers wait."""
REPLACED = (projects, workflows, checkpoints, steps, days, metrics, freed)
"""In the order in which they are written; lines of the trail are only added."""

Rows = dict[str, list[dict[str, Any]]]
"""By the name of the table."""


class Forwarder:
    """Brings the rows of one database to another. Safe beside another process that does the same."""

    def __init__(self, source: Database, target: Database, hosts: tuple[str, ...]) -> None:
        """Take the ledger of this host, the database that all hosts share, and this host's names, its own first."""
        self._source, self._target, self._hosts = source, target, hosts
        self._known: tuple[str, int] | None = None

    def forward(self) -> bool:
        """Bring the next changes; return whether there may be more.

        Raises:
            ServiceUnavailableError: one of the databases does not answer. Retryable.
            WorkspaceError: one of them is damaged, or at another migration than this code.
        """
        with self._source.reading() as connection:
            tick, origin = connection.execute(select(clock.c.tick, clock.c.origin)).one()
        if self._known == (origin, tick):
            return False
        with self._target.reading() as connection:
            begun = self._position(connection, origin)
            is_copy = begun is None and self._is_copy(connection, origin)
        # A ledger that was restored from a backup counts from an earlier number.
        since = begun if begun is not None and begun <= tick else tick if is_copy else 0
        upto, found, known = self._read(since)
        with self._target.writing() as connection:
            if self._position(connection, origin) == begun:
                _write(connection, found, known, self._hosts)
                row = {"origin": self._spool(origin), "changed": upto, "at": datetime.now(UTC)}
                upsert(connection, spools, [row])
        self._known = (origin, upto)
        return bool(upto < tick)

    def _position(self, connection: Connection, origin: str) -> int | None:
        """Return how far the changes have come there; None: never."""
        return connection.execute(select(spools.c.changed).where(spools.c.origin == self._spool(origin))).scalar()

    def _is_copy(self, connection: Connection, origin: str) -> bool:
        """Return whether another host has brought what this ledger has: its rows are not this host's to bring."""
        query = select(spools.c.origin).where(spools.c.origin.startswith(f"{origin}@", autoescape=True))
        names = {name for key in connection.scalars(query) for name in key.partition("@")[2].split("+")}
        return not names <= {*self._hosts}

    def _spool(self, origin: str) -> str:
        return f"{origin}@{'+'.join(self._hosts)}"

    def _read(self, since: int) -> tuple[int, Rows, list[dict[str, Any]]]:
        """Return the number of the last change of the next window, its rows by table, and all projects."""
        tables = (*REPLACED, events)
        with self._source.reading() as connection:
            tick: int = connection.execute(select(clock.c.tick)).scalar_one()
            # Most numbers are of rows that were changed again since.
            firsts = [
                connection.execute(select(func.min(table.c.changed)).where(table.c.changed > since)).scalar()
                for table in tables
            ]
            first = min((each for each in firsts if each is not None), default=None)
            if first is None:
                return tick, {}, []
            upto = min(tick, first + WINDOW)
            known = _rows(connection, projects, 0, tick)
            return upto, {table.name: _rows(connection, table, since, upto) for table in tables}, known


def _rows(connection: Connection, table: Table, since: int, upto: int) -> list[dict[str, Any]]:
    query = select(table).where(table.c.changed > since, table.c.changed <= upto).order_by(table.c.changed)
    return [dict(row) for row in connection.execute(query).mappings()]


def _write(connection: Connection, found: Rows, known: list[dict[str, Any]], hosts: tuple[str, ...]) -> None:
    count = sum(len(rows) for rows in found.values())
    if not count:
        return
    used = {row["project"] for rows in found.values() for row in rows}
    known = [row for row in known if row["project"] in used]
    # From here on no other host writes: what it has brought is seen below.
    tick = next_tick(connection, count + len(known))
    ids = {row["project"]: shared_id(connection, projects, row["project"], hosts) for row in known}
    named = {table: [row | {"project": ids[row["project"]]} for row in rows] for table, rows in found.items()}
    named[projects.name] = [row | {"host": hosts[0]} for row in named[projects.name]]
    # A project has its row, and with it its id, before its first other one.
    enrolled = [
        {**row, "project": ids[row["project"]], "host": hosts[0], "changed": tick + place}
        for place, row in enumerate(known)
    ]
    insert_missing(connection, projects, enrolled, "project")
    tick += len(known)
    for row in named[freed.name]:
        # What is still there of these was recorded later, and comes with this window or a later one.
        drop_rows(connection, row["project"], row["workflow_id"])
    for table in REPLACED:
        rows = [{**row, "changed": tick + place} for place, row in enumerate(named[table.name])]
        upsert(connection, table, rows)
        tick += len(rows)
    lines = [
        {name: value for name, value in row.items() if name != "seq"} | {"changed": tick + place}
        for place, row in enumerate(named[events.name])
    ]
    insert_missing(connection, events, lines, "project", "workflow_id", "key")


def shared_id(connection: Connection, table: Table, project: str, hosts: tuple[str, ...]) -> str:
    """Return the id that a project of a host has, or will have, in a database of several hosts.

    Args:
        connection: of that database.
        table: of its projects, with their hosts.
        project: its id on the host, made of its path.
        hosts: the names of the host, its own first; what it has under one of the others keeps its id.
    """
    own = [project, *(id_beside(project, host) for host in reversed(hosts))]
    query = select(table.c.project, table.c.host).where(table.c.project.in_(own))
    owners: dict[str, str] = dict(connection.execute(query).all())
    kept = [name for name in own if owners.get(name) in hosts]
    if kept:
        return kept[0]
    return id_beside(project, hosts[0]) if owners.get(project) else project


def id_beside(project: str, host: str) -> str:
    """Return the id of a project of a host beside one of another host that has the same path."""
    return f"{project}-{hashlib.sha256(host.encode()).hexdigest()[:8]}"


OPEN = frozenset({StepStatus.PENDING.value, StepStatus.RUNNING.value, StepStatus.WAITING.value})
"""Statuses of steps that still want to do something."""
LEVELS = 10
"""Bound on plans within plans."""


class Within(NamedTuple):
    """What the ledger knows of a workflow that started others."""

    parent: str
    tasks: tuple[LoopTask, ...] = ()
    """Of a project's plan."""


class Blocked(NamedTuple):
    """What waits for one answer."""

    held: int = 0
    loop: str = ""
    tasks: tuple[str, ...] = ()


def inbox_items(
    waiting: Iterable[RowMapping], steps: Iterable[StepRow], within: Mapping[str, Within]
) -> tuple[InboxItem, ...]:
    """Return the questions of workflows, oldest first.

    Args:
        waiting: rows of workflows.
        steps: of the plans among them, and of the plans around them.
        within: the plans and projects' plans around them, by id.
    """
    around = _Around(steps, within)
    items = [
        InboxItem(
            project=row["project"],
            workflow_id=row["id"],
            kind=row["kind"],
            goal=row["goal"],
            executor=row["executor"],
            iteration=row["iteration"],
            question=question,
            since=question.since or row["waiting_since"],
            blocks=blocked.held,
            loop=blocked.loop,
            tasks=blocked.tasks,
        )
        for row in waiting
        for question in questions_of(row)
        for blocked in (around.blocked(row["id"], row["parent"], question),)
    ]
    return tuple(
        sorted(
            items, key=lambda item: (item.since.timestamp() if item.since else 0.0, item.workflow_id, item.question.id)
        )
    )


class _Around:
    """The plans around workflows that wait."""

    def __init__(self, steps: Iterable[StepRow], within: Mapping[str, Within]) -> None:
        self._plans: dict[str, dict[str, StepRow]] = defaultdict(dict)
        self._started: dict[str, StepRow] = {}
        self._within = within
        for step in steps:
            self._plans[step.plan_id][step.step] = step
            if step.child_id:
                self._started[step.child_id] = step

    def blocked(self, workflow_id: str, parent: str, question: Question) -> Blocked:
        """Return what cannot go on before an answer; of a question that holds up nothing else, nothing."""
        if not question.blocks:
            return Blocked()
        count, task = 1, question.step
        if question.step:
            count += len(_dependents(question.step, self._plans.get(workflow_id, {})))
        for _ in range(LEVELS):
            above = self._within.get(parent)
            if above is None:
                break
            if above.tasks:
                task = next((one.task_id for one in above.tasks if one.run_id == workflow_id), task)
                waiting = _waiting_tasks(task, above.tasks)
                return Blocked(1 + len(waiting), parent, (task, *waiting)) if task else Blocked(count, parent)
            step = self._started.get(workflow_id)
            task = step.step if step is not None else ""
            count += len(_dependents(task, self._plans.get(parent, {})))
            workflow_id, parent = parent, above.parent
        return Blocked(count)


def _waiting_tasks(task: str, tasks: Iterable[LoopTask]) -> tuple[str, ...]:
    """Return the tasks of a project's plan that wait for one, directly or through others, in their order."""
    found = {task}
    known = tuple(tasks)
    for _ in known:
        found |= {one.task_id for one in known if not found.isdisjoint(one.dependencies)}
        # What depends on a task in conflict waits for the task that resolves it.
        found |= {one.conflict_of for one in known if one.task_id in found and one.conflict_of}
    return tuple(one.task_id for one in known if one.task_id in found - {task} and not one.state.has_ended)


def _dependents(step: str, graph: Mapping[str, StepRow]) -> tuple[str, ...]:
    """Return the open steps that need a step, directly or through others."""
    needed_by: dict[str, list[str]] = defaultdict(list)
    for row in graph.values():
        for need in row.needs:
            needed_by[need].append(row.step)
    found: set[str] = set()
    todo = [step]
    while todo:
        for name in needed_by[todo.pop()]:
            if name not in found and name != step:
                found.add(name)
                todo.append(name)
    return tuple(name for name in found if graph[name].status in OPEN)
