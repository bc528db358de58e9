"""An installation's ledger, with queries across all projects."""

import base64
import json
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
)

from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.forwarding import LEVELS, Ancestor, inbox_items, shared_id
from tightloop.database.project import ProjectLedger
from tightloop.database.rows import ended_episodes, event_line, read_step, workflow_line
from tightloop.database.schema import Moment, checkpoints, events, projects, spending, steps, workflows
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ProjectNotFoundError
from tightloop.host import state_folder, state_home
from tightloop.host.identity import host_identity
from tightloop.ledger.metrics import MetricsFilter, MetricsReport, report_of
from tightloop.ledger.model import (
    EvidenceLine,
    InboxItem,
    ProjectLine,
    StepRow,
    WorkflowFilter,
    WorkflowLine,
    WorkflowPage,
)
from tightloop.loop.digest import Digest, digest_items
from tightloop.loop.model import LoopStatus
from tightloop.settings import Settings

PAGE_LIMIT = 500
EVENTS_LIMIT = 5_000
DIGEST_LINES = 200
LONG_AGO = datetime.min.replace(tzinfo=UTC)
_LISTED = [column for column in workflows.c if column.name != "details"]
"""Columns for lists. Details are omitted because they are long: reading 50 rows would take a megabyte."""


class Ledger:
    """Queries the ledger for the visible projects, and treats all others as nonexistent.

    Args:
        database: database that contains the rows.
        only: ids of the visible projects. None means all projects.
    """

    def __init__(self, database: Database, only: frozenset[str] | None = None) -> None:
        self._database = database
        self._only = only

    @property
    def database(self) -> Database:
        return self._database

    def of(self, project: str) -> ProjectLedger:
        """Return the ledger of a single project, for reading and writing.

        Raises:
            ProjectNotFoundError: the project is not visible.
        """
        return self.select_project(ProjectLine(id=project, name=""))

    def select_project(self, project: ProjectLine) -> ProjectLedger:
        """Return the ledger of a project whose name, workspace or host is known.

        Raises:
            ProjectNotFoundError: the project is not visible.
        """
        if self._only is not None and project.id not in self._only:
            raise _unknown_project(project.id)
        return ProjectLedger(self._database, project)

    def limit_to(self, projects: Iterable[str]) -> "Ledger":
        """Return a copy of this ledger that shows only these projects.

        Projects that are not visible in this ledger stay hidden.
        """
        visible = frozenset(projects)
        return Ledger(self._database, visible if self._only is None else visible & self._only)

    def projects(self) -> tuple[ProjectLine, ...]:
        """Return the projects, most recently active first."""
        with self._database.reading() as connection:
            lines = self._project_lines(connection, true())
        return tuple(sorted(lines, key=lambda line: (line.last_event or LONG_AGO, line.id), reverse=True))

    def names(self) -> dict[str, str]:
        """Return the project names by id, sorted by name."""
        query = select(projects.c.project, projects.c.name).where(self._sees(projects))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(projects.c.name, projects.c.project))
            return {row.project: row.name for row in rows}

    def project(self, project: str) -> ProjectLine:
        """Return a project with its latest activity.

        Raises:
            ProjectNotFoundError: the project is unknown or not visible.
        """
        with self._database.reading() as connection:
            lines = self._project_lines(connection, projects.c.project == project)
        if not lines:
            raise _unknown_project(project)
        return lines[0]

    def id_of(self, project: str, hosts: tuple[str, ...]) -> str:
        """Return the id that a host's project has in this database. See `forwarding.py`.

        `hosts` lists the host's names.
        """
        with self._database.reading() as connection:
            # The ledger of a single host has no other hosts, whatever names it had.
            is_own = connection.dialect.name == "sqlite"
            return project if is_own else shared_id(connection, projects, project, hosts)

    def workflows(self, filters: WorkflowFilter | None = None, *, cursor: str = "", limit: int = 50) -> WorkflowPage:
        """Return a page of workflows without their details. The most recently started workflow comes first.

        Args:
            filters: filters to apply. None means all workflows.
            cursor: cursor from the previous page.
            limit: number of workflows per page, at most `PAGE_LIMIT`.

        Raises:
            InvalidRequestError: the cursor is invalid.
        """
        limit = min(max(limit, 1), PAGE_LIMIT)
        sort_columns = (workflows.c.placed, workflows.c.id, workflows.c.project)
        query = select(*_LISTED).where(self._sees(workflows), *_conditions(filters or WorkflowFilter()))
        if cursor:
            at, *names = _read_cursor(cursor)
            # Keyset pagination: pages stay consistent while rows are added.
            # The literal needs the column's type, which converts it to the database's form of a time.
            query = query.where(tuple_(*sort_columns) < tuple_(literal(at, Moment), *names))
        # One row more than shown reveals whether another page follows.
        query = query.order_by(*(column.desc() for column in sort_columns)).limit(limit + 1)
        with self._database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        lines = tuple(workflow_line(row) for row in rows[:limit])
        return WorkflowPage(lines=lines, cursor=_cursor(rows[limit - 1]) if len(rows) > limit else "")

    def workflow(self, workflow_id: str) -> WorkflowLine:
        """Return an episode, plan or loop with its details.

        Raises:
            EpisodeNotFoundError: the workflow is unknown or not visible.
        """
        query = select(workflows).where(self._sees(workflows), workflows.c.id == workflow_id)
        with self._database.reading() as connection:
            # An id can exist in two projects if it was reused.
            row = connection.execute(query.order_by(workflows.c.at.desc()).limit(1)).mappings().first()
        if row is None:
            raise EpisodeNotFoundError(
                f"no such episode, plan or loop: {workflow_id!r}. List all of them with: tightloop list"
            )
        return workflow_line(row)

    def inbox(self, project: str = "") -> tuple[InboxItem, ...]:
        """Return everything that is waiting for a person, oldest first.

        The result contains open questions, and project plans that are waiting for `dispatch` or `verify`. If `project`
        is empty, all projects are included.
        """
        visible = (self._sees(workflows), workflows.c.project == project if project else true())
        query = select(*_LISTED).where(*visible, workflows.c.waiting_since.is_not(None))
        open_plans = select(workflows).where(
            *visible, workflows.c.kind == "loop", workflows.c.closed.is_(None), workflows.c.waiting_since.is_(None)
        )
        with self._database.reading() as connection:
            ready = connection.execute(open_plans).mappings().all()
            waiting = connection.execute(query.order_by(workflows.c.waiting_since, workflows.c.id)).mappings().all()
            ancestors = self._find_ancestors(connection, {row["parent"] for row in waiting if row["parent"]})
            plans = {row["id"] for row in waiting} | ancestors.keys()
            step_query = select(steps).where(self._sees(steps), steps.c.plan_id.in_(plans))
            rows = connection.execute(step_query).mappings().all() if plans else []
        return inbox_items(waiting, [read_step(row) for row in rows], ancestors, ready)

    def _find_ancestors(self, connection: Connection, ids: set[str]) -> dict[str, Ancestor]:
        """Return the plans with these ids, and their ancestors."""
        plans: dict[str, Ancestor] = {}
        for _ in range(LEVELS):
            if not ids:
                break
            # Plan details can be long; only those of project plans are needed.
            details = case((workflows.c.kind == "loop", workflows.c.details), else_="")
            query = select(workflows.c.id, workflows.c.parent, details.label("details"))
            for row in connection.execute(query.where(self._sees(workflows), workflows.c.id.in_(ids))):
                tasks = LoopStatus.model_validate_json(row.details).tasks if row.details else ()
                plans[row.id] = Ancestor(row.parent, tasks)
            ids = {plan.parent for plan in plans.values() if plan.parent} - plans.keys()
        return plans

    def checkpoints(self, workflow_id: str) -> tuple[CheckpointRecord, ...]:
        """Return an episode's checkpoints, ordered by number."""
        query = select(checkpoints.c.record).where(self._sees(checkpoints), checkpoints.c.workflow_id == workflow_id)
        with self._database.reading() as connection:
            texts = connection.scalars(query.order_by(checkpoints.c.project, checkpoints.c.number))
            return tuple(CheckpointRecord.model_validate_json(text) for text in texts)

    def steps(self, plan_id: str) -> tuple[StepRow, ...]:
        """Return a plan's steps, in the order of the plan."""
        query = select(steps).where(self._sees(steps), steps.c.plan_id == plan_id)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(steps.c.order, steps.c.step)).mappings()
            return tuple(read_step(row) for row in rows)

    def events(
        self, *, after: int = 0, limit: int = 500, workflow_id: str = "", project: str = ""
    ) -> tuple[EvidenceLine, ...]:
        """Return the events after a sequence number, oldest first. An empty filter matches all events."""
        query = select(events).where(self._sees(events), events.c.seq > after)
        if workflow_id:
            query = query.where(events.c.workflow_id == workflow_id)
        if project:
            query = query.where(events.c.project == project)
        query = query.order_by(events.c.seq).limit(min(max(limit, 1), EVENTS_LIMIT))
        with self._database.reading() as connection:
            return tuple(event_line(row) for row in connection.execute(query).mappings())

    def last_event(self) -> int:
        """Return the sequence number of the latest event, or 0 if there are no events."""
        with self._database.reading() as connection:
            return connection.execute(select(func.max(events.c.seq)).where(self._sees(events))).scalar() or 0

    def digest(self, project: str, since: datetime, until: datetime, *, is_newest: bool = True) -> Digest:
        """Summarize a project's activity in a time range. A plan's cost includes that of its children.

        Args:
            project: project id.
            since: start of the range.
            until: end of the range, exclusive.
            is_newest: also list open work. Only the current open work is known.

        Raises:
            ProjectNotFoundError: the project is unknown or not visible.
        """
        workspace = self.project(project).workspace
        # A project plan, its dispatch and its tasks are one job.
        jobs = select(workflows).where(workflows.c.project == project, workflows.c.parent == "").limit(DIGEST_LINES)
        ended = jobs.where(workflows.c.closed >= since, workflows.c.closed < until)
        worked = (events.c.project == project, events.c.kind == "iteration", events.c.at >= since, events.c.at < until)
        with self._database.reading() as connection:
            lines = connection.execute(ended.order_by(workflows.c.closed, workflows.c.id)).mappings().all()
            is_open = jobs.where(workflows.c.closed.is_(None)).order_by(workflows.c.placed, workflows.c.id)
            open_lines = connection.execute(is_open).mappings().all() if is_newest else []
            children = connection.execute(_open_children(project)).all() if open_lines else []
            iterations = connection.execute(select(func.count()).where(*worked)).scalar_one()
            cost = connection.execute(_cost_of(project, since, until)).scalar() or 0.0
        return Digest(
            project=project,
            workspace=workspace,
            since=since,
            until=until,
            items=digest_items(
                map(workflow_line, lines),
                _with_children(map(workflow_line, open_lines), children),
                self.inbox(project) if is_newest else (),
            ),
            iterations=iterations,
            cost_usd=cost,
        )

    def metrics(self, filters: MetricsFilter) -> MetricsReport:
        """Return the metrics report for the episodes that finished in a time range."""
        with self._database.reading() as connection:
            episodes = ended_episodes(connection, filters, self._sees(workflows))
        return report_of(filters, episodes)

    def _sees(self, table: Table) -> ColumnElement[bool]:
        return true() if self._only is None else table.c.project.in_(sorted(self._only))

    def _project_lines(self, connection: Connection, which: ColumnElement[bool]) -> list[ProjectLine]:
        # The index finds the latest event directly; a maximum would read all of them.
        newest = (
            select(events.c.at).where(events.c.project == projects.c.project).order_by(events.c.seq.desc()).limit(1)
        )
        query = select(projects, newest.scalar_subquery().label("last_event")).where(self._sees(projects), which)
        lines = {row["project"]: dict(row) for row in connection.execute(query).mappings()}
        waits = func.count(workflows.c.waiting_since)
        running = select(workflows.c.project, func.count(), waits).where(
            workflows.c.closed.is_(None), workflows.c.project.in_(lines)
        )
        for project, open_ones, waiting in connection.execute(running.group_by(workflows.c.project)):
            lines[project] |= {"running": open_ones, "waiting": waiting}
        return [ProjectLine.model_validate({**line, "id": project}) for project, line in lines.items()]


def _conditions(filters: WorkflowFilter) -> list[ColumnElement[bool]]:
    fields = {"project": filters.project, "kind": filters.kind, "status": filters.status}
    conditions: list[ColumnElement[bool]] = [workflows.c[name] == value for name, value in fields.items() if value]
    if filters.parent is not None:
        conditions.append(workflows.c.parent == filters.parent)
    if filters.text:
        columns = (workflows.c.id, workflows.c.goal)
        conditions.append(or_(*(column.icontains(filters.text, autoescape=True) for column in columns)))
    return conditions


def _cost_of(project: str, since: datetime, until: datetime) -> Select[Any]:
    # A run's own cost contains that of the children that have ended.
    parents = workflows.alias()
    row = and_(workflows.c.project == spending.c.project, workflows.c.id == spending.c.workflow_id)
    parent = and_(parents.c.project == spending.c.project, parents.c.id == workflows.c.parent)
    joined = spending.outerjoin(workflows, row).outerjoin(parents, parent)
    query = select(func.sum(spending.c.cost_usd)).select_from(joined)
    hours = (spending.c.hour >= since.replace(minute=0, second=0, microsecond=0), spending.c.hour < until)
    is_counted = or_(parents.c.id.is_(None), workflows.c.closed.is_(None))
    return query.where(spending.c.project == project, *hours, is_counted)


def _open_children(project: str) -> Select[Any]:
    columns = (workflows.c[name] for name in ("id", "parent", "cost_usd", "cost_known"))
    condition = (workflows.c.project == project, workflows.c.closed.is_(None), workflows.c.parent != "")
    return select(*columns).where(*condition)


def _with_children(lines: Iterable[WorkflowLine], children: Sequence[Any]) -> tuple[WorkflowLine, ...]:
    """Return open runs with their total cost, which includes the cost of their open children."""
    costs = {line.id: line for line in lines}
    parents = {child.id: child.parent for child in children}
    for child in children:
        root = child.parent
        # Bounded, because damaged rows could form a cycle.
        for _ in range(LEVELS):
            root = parents.get(root, root)
        if line := costs.get(root):
            is_known = line.cost_known and child.cost_known
            costs[root] = line.evolve(cost_usd=line.cost_usd + child.cost_usd, cost_known=is_known)
    return tuple(costs.values())


def _cursor(row: RowMapping) -> str:
    position = json.dumps([row["placed"].isoformat(), row["id"], row["project"]])
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[datetime, str, str]:
    try:
        # The padding was removed, because `=` would have to be escaped in a URL.
        at, workflow_id, project = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return datetime.fromisoformat(at), str(workflow_id), str(project)
    except (ValueError, TypeError, RecursionError):
        raise InvalidRequestError(
            f"cursor {cursor[:80]!r} does not belong to this list. Start again without a cursor"
        ) from None


def _unknown_project(project: str) -> ProjectNotFoundError:
    return ProjectNotFoundError(
        f"no such project: {project[:120]!r}. A project appears once its first episode or plan starts. Start one "
        "with: tightloop start"
    )


FILE = "ledger.db"
_OPENING = threading.Lock()
_OPEN: dict[Path, Database] = {}
"""Cache by path, because the environment may specify another state home later."""


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger for reading.

    If `database.url` is set, this is the PostgreSQL ledger. Otherwise, it is this host's ledger.

    Raises:
        SettingsError: `database.url` cannot be parsed.
    """
    url = settings.database.url.get_secret_value()
    return Ledger(postgres_database(url)) if url else local_ledger()


def local_ledger(home: Path | None = None) -> Ledger:
    """Return the ledger of this host, or of another state home."""
    return Ledger(local_database(home))


def local_database(home: Path | None = None) -> Database:
    """Return the database in a state home. It is cached per process."""
    path = (home or state_home()) / FILE
    # Two pools for one file would open twice the connections, and `close_ledgers` would miss one.
    with _OPENING:
        if path not in _OPEN:
            _OPEN[path] = sqlite_database(path)
        return _OPEN[path]


def open_project(workspace: Path, host: str = "") -> ProjectLedger:
    """Return this host's ledger for the project in `workspace`.

    Args:
        workspace: root of the project's working tree.
        host: configured name of this host. If empty, use the name in the state home.
    """
    line = ProjectLine(id="", name=workspace.name, workspace=str(workspace), host=host or host_identity().name)
    return open_state(state_folder(workspace), line)


def open_state(folder: Path, line: ProjectLine | None = None) -> ProjectLedger:
    """Return the ledger of the project with this state folder."""
    line = (line or ProjectLine(id="", name="")).evolve(id=folder.name)
    return local_ledger(folder.parent.parent).select_project(line)


def close_ledgers() -> None:
    """Close idle connections, so that the database files are complete without their write-ahead logs."""
    with _OPENING:
        for database in _OPEN.values():
            database.close()
