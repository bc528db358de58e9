"""Forwards a host's ledger to the shared database, and provides the inbox with the work that questions block."""

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
    events,
    freed,
    metrics,
    projects,
    spending,
    spools,
    steps,
    workflows,
)
from tightloop.ledger.model import InboxItem, StepRow
from tightloop.loop.model import LoopStatus, LoopTask
from tightloop.plan.child import StepStatus
from tightloop.run.question import Question

WINDOW = 500
"""Number of changes per transaction. It limits memory usage and the time that other writers wait."""
REPLACED = (projects, workflows, checkpoints, steps, spending, metrics, freed)
"""Tables whose rows are replaced by newer ones, in the order in which they are written. Events are only ever added."""

Rows = dict[str, list[dict[str, Any]]]
"""Rows by table name."""


class Forwarder:
    """Copies changed rows from one database to another. Several processes can run a forwarder concurrently.

    Args:
        source: this host's ledger.
        target: database shared by all hosts.
        hosts: names of this host, with its primary name first.
    """

    def __init__(self, source: Database, target: Database, hosts: tuple[str, ...]) -> None:
        self._source, self._target, self._hosts = source, target, hosts
        self._known: tuple[str, int] | None = None

    def forward(self) -> bool:
        """Forward the next batch of changes. Return True if there may be more changes.

        Raises:
            ServiceUnavailableError: a database does not respond. Retryable.
            WorkspaceError: a database is damaged or does not have the expected revision.
        """
        with self._source.reading() as connection:
            tick, origin = connection.execute(select(clock.c.tick, clock.c.origin)).one()
        # The common case, which should not query the shared database.
        if self._known == (origin, tick):
            return False
        with self._target.reading() as connection:
            position = self._position(connection, origin)
            is_copy = position is None and self._is_copy(connection, origin)
        # A ledger restored from a backup continues with earlier numbers.
        since = position if position is not None and position <= tick else tick if is_copy else 0
        upto, rows_by_table, project_rows = self._read(since)
        with self._target.writing() as connection:
            # Another process may have forwarded this window in the meantime.
            if self._position(connection, origin) == position:
                _write(connection, rows_by_table, project_rows, self._hosts)
                row = {"origin": self._spool(origin), "changed": upto, "at": datetime.now(UTC)}
                upsert(connection, spools, [row])
        self._known = (origin, upto)
        return bool(upto < tick)

    def _position(self, connection: Connection, origin: str) -> int | None:
        """Return this ledger's position in the target, or None if nothing has been forwarded yet."""
        return connection.execute(select(spools.c.changed).where(spools.c.origin == self._spool(origin))).scalar()

    def _is_copy(self, connection: Connection, origin: str) -> bool:
        """Return whether another host has already forwarded this ledger's content.

        If so, this host must not forward it again.
        """
        query = select(spools.c.origin).where(spools.c.origin.startswith(f"{origin}@", autoescape=True))
        names = {name for key in connection.scalars(query) for name in key.partition("@")[2].split("+")}
        return not names <= {*self._hosts}

    def _spool(self, origin: str) -> str:
        # A copied state home has the same origin; with the names of its host it has a position of its own.
        return f"{origin}@{'+'.join(self._hosts)}"

    def _read(self, since: int) -> tuple[int, Rows, list[dict[str, Any]]]:
        """Read the next batch of changes.

        Return the number of the last change, the changed rows by table, and all projects.
        """
        tables = (*REPLACED, events)
        with self._source.reading() as connection:
            tick: int = connection.execute(select(clock.c.tick)).scalar_one()
            # Skip ahead: most numbers belong to rows that changed again later.
            firsts = [
                connection.execute(select(func.min(table.c.changed)).where(table.c.changed > since)).scalar()
                for table in tables
            ]
            first = min((number for number in firsts if number is not None), default=None)
            if first is None:
                return tick, {}, []
            upto = min(tick, first + WINDOW)
            # All, because a changed row may belong to a project whose own row was forwarded long ago.
            project_rows = _rows(connection, projects, 0, tick)
            return upto, {table.name: _rows(connection, table, since, upto) for table in tables}, project_rows


def _rows(connection: Connection, table: Table, since: int, upto: int) -> list[dict[str, Any]]:
    query = select(table).where(table.c.changed > since, table.c.changed <= upto).order_by(table.c.changed)
    return [dict(row) for row in connection.execute(query).mappings()]


def _write(
    connection: Connection, rows_by_table: Rows, project_rows: list[dict[str, Any]], hosts: tuple[str, ...]
) -> None:
    count = sum(len(rows) for rows in rows_by_table.values())
    if not count:
        return
    used = {row["project"] for rows in rows_by_table.values() for row in rows}
    project_rows = [row for row in project_rows if row["project"] in used]
    # No other host writes from here on, and its rows are visible below.
    tick = next_tick(connection, count + len(project_rows))
    ids = {row["project"]: shared_id(connection, projects, row["project"], hosts) for row in project_rows}
    named = {table: [row | {"project": ids[row["project"]]} for row in rows] for table, rows in rows_by_table.items()}
    named[projects.name] = [row | {"host": hosts[0]} for row in named[projects.name]]
    # A project's row, which fixes its id, is written before its other rows.
    enrolled = [
        {**row, "project": ids[row["project"]], "host": hosts[0], "changed": tick + index}
        for index, row in enumerate(project_rows)
    ]
    insert_missing(connection, projects, enrolled, "project")
    tick += len(project_rows)
    for row in named[freed.name]:
        # Any rows that still exist were recorded later and arrive in this window or a later one.
        drop_rows(connection, row["project"], row["workflow_id"])
    for table in REPLACED:
        rows = [{**row, "changed": tick + index} for index, row in enumerate(named[table.name])]
        upsert(connection, table, rows)
        tick += len(rows)
    lines = [
        # The target numbers events in its own commit order.
        {name: value for name, value in row.items() if name != "seq"} | {"changed": tick + index}
        for index, row in enumerate(named[events.name])
    ]
    insert_missing(connection, events, lines, "project", "workflow_id", "key")


def shared_id(connection: Connection, table: Table, project: str, hosts: tuple[str, ...]) -> str:
    """Return the id of a host's project in a database that several hosts share.

    Args:
        connection: connection to the shared database.
        table: table of projects and their hosts.
        project: id of the project on the host, which is derived from its path.
        hosts: names of the host. Its own name comes first. A project stored under any of these names
            keeps its id.
    """
    # A project keeps the id under which it was first stored, also under an earlier name of the host.
    candidate_ids = [project, *(host_project_id(project, host) for host in reversed(hosts))]
    query = select(table.c.project, table.c.host).where(table.c.project.in_(candidate_ids))
    owners: dict[str, str] = dict(connection.execute(query).all())
    owned_ids = [name for name in candidate_ids if owners.get(name) in hosts]
    if owned_ids:
        return owned_ids[0]
    return host_project_id(project, hosts[0]) if owners.get(project) else project


def host_project_id(project: str, host: str) -> str:
    """Return the id of a project whose path also exists on another host."""
    return f"{project}-{hashlib.sha256(host.encode()).hexdigest()[:8]}"


OPEN = frozenset({StepStatus.PENDING.value, StepStatus.RUNNING.value, StepStatus.WAITING.value})
"""Statuses of steps that are not finished."""
LEVELS = 10
"""Maximum nesting depth of plans."""


class Ancestor(NamedTuple):
    """A plan in the ledger that contains other workflows."""

    parent: str
    tasks: tuple[LoopTask, ...] = ()
    """Tasks of a project plan."""


class Blocked(NamedTuple):
    """Work that cannot continue until a question is answered."""

    blocked_count: int = 0
    loop: str = ""
    tasks: tuple[str, ...] = ()


def inbox_items(
    waiting: Iterable[RowMapping],
    steps: Iterable[StepRow],
    ancestors: Mapping[str, Ancestor],
    plans: Iterable[RowMapping] = (),
) -> tuple[InboxItem, ...]:
    """Return the items that are waiting for a person, oldest first.

    Args:
        waiting: rows of the workflows that have open questions.
        steps: steps of these workflows and their ancestors.
        ancestors: ancestor plans by id.
        plans: rows of open project plans without questions. Plans that wait for `dispatch` or `verify`
            are listed.
    """
    finder = _Ancestry(steps, ancestors)
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
            blocks=blocked.blocked_count,
            loop=blocked.loop,
            tasks=blocked.tasks,
        )
        for row in waiting
        for question in questions_of(row)
        for blocked in (finder.find_blocked_work(row["id"], row["parent"], question),)
    ]
    items += [
        InboxItem(
            project=row["project"],
            workflow_id=row["id"],
            kind=row["kind"],
            goal=row["goal"],
            question=command,
            since=status.completed_at or status.created_at,
        )
        for row in plans
        if row["details"]
        for status in (LoopStatus.model_validate_json(row["details"]),)
        for command in (status.next_command,)
        if command is not None
    ]
    return tuple(
        sorted(
            items, key=lambda item: (item.since.timestamp() if item.since else 0.0, item.workflow_id, item.question.id)
        )
    )


class _Ancestry:
    """The plans that are ancestors of waiting workflows."""

    def __init__(self, steps: Iterable[StepRow], ancestors: Mapping[str, Ancestor]) -> None:
        self._plans: dict[str, dict[str, StepRow]] = defaultdict(dict)
        self._started: dict[str, StepRow] = {}
        self._ancestors = ancestors
        for step in steps:
            self._plans[step.plan_id][step.step] = step
            if step.child_id:
                self._started[step.child_id] = step

    def find_blocked_work(self, workflow_id: str, parent: str, question: Question) -> Blocked:
        """Return the work that is blocked by a question.

        The result is empty if no work is blocked.
        """
        if not question.blocks:
            return Blocked()
        count, task = 1, question.step
        if question.step:
            count += len(_dependents(question.step, self._plans.get(workflow_id, {})))
        # Bounded, because damaged rows could form a cycle.
        for _ in range(LEVELS):
            above = self._ancestors.get(parent)
            if above is None:
                break
            if above.tasks:
                task = next((loop_task.task_id for loop_task in above.tasks if loop_task.run_id == workflow_id), task)
                waiting = _waiting_tasks(task, above.tasks)
                return Blocked(1 + len(waiting), parent, (task, *waiting)) if task else Blocked(count, parent)
            step = self._started.get(workflow_id)
            task = step.step if step is not None else ""
            count += len(_dependents(task, self._plans.get(parent, {})))
            workflow_id, parent = parent, above.parent
        return Blocked(count)


def _waiting_tasks(task: str, tasks: Iterable[LoopTask]) -> tuple[str, ...]:
    """Return the unfinished tasks that depend directly or indirectly on a task, in order."""
    waiting_ids = {task}
    all_tasks = tuple(tasks)
    # Each round adds at least one task until nothing is left to add, so as many rounds as tasks are enough.
    for _ in all_tasks:
        waiting_ids |= {
            loop_task.task_id for loop_task in all_tasks if not waiting_ids.isdisjoint(loop_task.dependencies)
        }
        # Dependents of a task in conflict wait for the task that resolves it.
        waiting_ids |= {
            loop_task.conflict_of
            for loop_task in all_tasks
            if loop_task.task_id in waiting_ids and loop_task.conflict_of
        }
    return tuple(
        loop_task.task_id
        for loop_task in all_tasks
        if loop_task.task_id in waiting_ids - {task} and not loop_task.state.has_ended
    )


def _dependents(step: str, graph: Mapping[str, StepRow]) -> tuple[str, ...]:
    """Return the unfinished steps that depend directly or indirectly on a step."""
    needed_by: dict[str, list[str]] = defaultdict(list)
    for row in graph.values():
        for need in row.needs:
            needed_by[need].append(row.step)
    dependents: set[str] = set()
    todo = [step]
    while todo:
        for name in needed_by[todo.pop()]:
            if name not in dependents and name != step:
                dependents.add(name)
                todo.append(name)
    return tuple(name for name in dependents if graph[name].status in OPEN)
