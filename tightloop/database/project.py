"""The ledger of one project: what activities write, and what they read again."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, delete, func, select, update

from tightloop.database.engine import Database
from tightloop.database.rows import (
    TEXT_CHARACTERS,
    answer_times,
    book,
    event_line,
    insert_missing,
    names_of,
    next_tick,
    questions_of,
    settle_steps,
    upsert,
    workflow_row,
    write_graph,
    write_metrics,
    write_steps,
)
from tightloop.database.schema import checkpoints, days, events, freed, metrics, projects, steps, workflows
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id
from tightloop.ledger.metrics import Metric
from tightloop.ledger.model import FREED, KEPT, RELEASED, ProjectLine, StepRow, TrailEvent, WorkflowSnapshot
from tightloop.value import shorten
from tightloop.value.scrub import scrub

FREED_TEXT = "what it kept on this host was freed: tightloop gc"


class ProjectLedger:
    """Writes and reads the rows of one project. All methods are idempotent."""

    def __init__(self, database: Database, project: ProjectLine) -> None:
        """Take the database and what is known of the project; an empty workspace or host leaves what is recorded."""
        self._database = database
        self._line = project
        self._project = project.id

    def record_checkpoint(self, episode_id: str, key: str, record: CheckpointRecord) -> CheckpointRecord:
        """Give the record the next number of its episode (from 0) and keep it.

        The same key returns the record that was kept first.

        Raises:
            StorageFullError: no room is left.
            WorkspaceError: the database is damaged, or was written by a newer version.
            ServiceUnavailableError: somebody else was busy with it for the whole time. Retryable.
        """
        here = (checkpoints.c.project == self._project, checkpoints.c.workflow_id == episode_id)
        with self._writing(durable=True) as connection:
            known = connection.execute(select(checkpoints.c.record).where(*here, checkpoints.c.key == key)).scalar()
            if known is not None:
                return CheckpointRecord.model_validate_json(known)
            last = connection.execute(select(func.max(checkpoints.c.number)).where(*here)).scalar()
            number = 0 if last is None else last + 1
            kept = record.evolve(id=checkpoint_id(number), title=scrub(record.title))
            row = {"workflow_id": episode_id, "number": number, "key": key, "record": kept.model_dump_json()}
            connection.execute(
                checkpoints.insert(), {"project": self._project, **row, "changed": next_tick(connection)}
            )
            return kept

    def adopt(self, records: Sequence[tuple[str, int, str, str]]) -> None:
        """Add checkpoints that were recorded elsewhere, each as episode, number, key and JSON; known ones stay."""
        names = ("project", "workflow_id", "number", "key", "record", "changed")
        with self._writing() as connection:
            first = next_tick(connection, len(records))
            rows: list[dict[str, Any]] = [
                dict(zip(names, (self._project, *row, first + n), strict=True)) for n, row in enumerate(records)
            ]
            insert_missing(connection, checkpoints, rows)

    def is_recorded(self, episode_id: str, key: str) -> bool:
        """Return whether a checkpoint was kept under this key."""
        here = (checkpoints.c.project == self._project, checkpoints.c.workflow_id == episode_id)
        with self._database.reading() as connection:
            query = select(checkpoints.c.number).where(*here, checkpoints.c.key == key)
            return connection.execute(query).first() is not None

    def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return all checkpoints of an episode, by number."""
        query = select(checkpoints.c.record).order_by(checkpoints.c.number)
        query = query.where(checkpoints.c.project == self._project, checkpoints.c.workflow_id == episode_id)
        with self._database.reading() as connection:
            return tuple(CheckpointRecord.model_validate_json(text) for text in connection.scalars(query))

    def add_event(self, event: TrailEvent) -> None:
        """Add a line to the trail, once per key; without a time it gets the present one."""
        with self._writing() as connection:
            self._add(connection, [event])

    def events(self, episode_id: str) -> tuple[TrailEvent, ...]:
        """Return the trail of an episode, oldest first."""
        query = select(events).order_by(events.c.seq)
        query = query.where(events.c.project == self._project, events.c.workflow_id == episode_id)
        with self._database.reading() as connection:
            return tuple(event_line(row) for row in connection.execute(query).mappings())

    def record(self, snapshot: WorkflowSnapshot) -> None:
        """Keep what a workflow says of itself, unless something newer is known.

        A change of the status becomes a line of the trail, and so does each question that opens, or is not asked any
        more: it was answered, or nobody needs to answer it.
        """
        here = (workflows.c.project == self._project, workflows.c.id == snapshot.id)
        with self._writing() as connection:
            known = connection.execute(select(workflows).where(*here)).mappings().first()
            if known is not None and (known["at"], known["run"]) > (snapshot.at, snapshot.run):
                return
            book(connection, self._project, snapshot.id, at=snapshot.at, cost_usd=snapshot.cost_usd)
            row = workflow_row(self._project, snapshot)
            if known is not None:
                # What a later snapshot leaves out is still so.
                kept = ("parent", "goal", "executor", "model", "started", "details")
                row |= {name: row[name] or known[name] for name in kept}
                row["placed"] = snapshot.started or known["placed"]
            unchanged = known is not None and all(known[name] == value for name, value in row.items())
            if not unchanged:
                upsert(connection, workflows, [{**row, "changed": next_tick(connection)}])
            before = names_of(questions_of(known)) if known is not None else {}
            now = names_of(() if snapshot.closed else snapshot.questions)
            is_news = known is None or known["status"] != snapshot.status
            # A loop writes its own lines, such as `plan_dispatched`.
            lines = [_status_event(snapshot)] if is_news and snapshot.kind != "loop" else []
            lines += [
                TrailEvent(
                    episode_id=snapshot.id, kind="asked", key=f"asked/{name}", text=question.title, at=snapshot.at
                )
                for name, question in now.items()
                if name not in before
            ]
            lines += [
                TrailEvent(
                    episode_id=snapshot.id, kind="settled", key=f"settled/{name}", text=question.title, at=snapshot.at
                )
                for name, question in before.items()
                if name not in now and not snapshot.closed
            ]
            self._add(connection, lines)
            settled = (question for name, question in before.items() if name not in now and not snapshot.closed)
            write_metrics(connection, self._project, answer_times(snapshot, settled))

    def progress(self, workflow_id: str, *, iteration: int, checks: str, cost_usd: float, at: datetime) -> None:
        """Note how far a recorded workflow is, without a line of the trail; older news is dropped."""
        here = (workflows.c.project == self._project, workflows.c.id == workflow_id, workflows.c.at < at)
        with self._writing() as connection:
            if connection.execute(select(workflows.c.id).where(*here)).first() is None:
                return
            book(connection, self._project, workflow_id, at=at, cost_usd=cost_usd)
            values = {"iteration": iteration, "checks": checks, "cost_usd": cost_usd, "at": at}
            connection.execute(update(workflows).where(*here).values(**values, changed=next_tick(connection)))

    def add_metrics(self, measured: Iterable[Metric]) -> None:
        """Keep what was measured of workflows; of two values with the same kind and key the newer one stays."""
        with self._writing() as connection:
            write_metrics(connection, self._project, measured)

    def record_steps(self, rows: Iterable[StepRow]) -> None:
        """Keep steps of plans as they are now; older news is dropped, and each change becomes a line of the trail."""
        with self._writing() as connection:
            self._add(connection, write_steps(connection, self._project, rows))

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add the steps of a plan that was opened or revised, without lines of the trail; what was done stays."""
        with self._writing() as connection:
            write_graph(connection, self._project, rows)

    def close_steps(self, plan_id: str, statuses: Mapping[str, str], *, at: datetime) -> None:
        """Note where the steps of a plan that ended stand; those that are not named were passed as done."""
        with self._writing() as connection:
            settle_steps(connection, self._project, plan_id, statuses, at)

    def last_activity(self) -> tuple[dict[str, datetime], frozenset[str]]:
        """Return when each workflow last did something, by id, and those whose rows were freed since."""
        last: dict[str, datetime] = {}
        gone: set[str] = set()
        query = select(events.c.workflow_id, events.c.kind, events.c.at).order_by(events.c.seq)
        # Marking something is not work on it: once released, it is as old as it was before.
        query = query.where(events.c.project == self._project, events.c.kind.not_in((KEPT, RELEASED)))
        with self._database.reading() as connection:
            for key, kind, at in connection.execute(query):
                last[key] = at
                (gone.add if kind == FREED else gone.discard)(key)
        return last, frozenset(gone)

    def mark(self, workflow_id: str, *, kept: bool) -> None:
        """Keep what a workflow left from `tightloop gc`, or release it."""
        kind, text = (KEPT, "kept from tightloop gc") if kept else (RELEASED, "tightloop gc may free it again")
        self.add_event(TrailEvent(episode_id=workflow_id, kind=kind, text=text))

    def marked(self) -> frozenset[str]:
        """Return the workflows that are kept from `tightloop gc`."""
        query = select(events.c.workflow_id, events.c.kind).order_by(events.c.seq)
        query = query.where(events.c.project == self._project, events.c.kind.in_((KEPT, RELEASED)))
        with self._database.reading() as connection:
            last: dict[str, str] = dict(connection.execute(query).all())
        return frozenset(key for key, kind in last.items() if kind == KEPT)

    def kept_records(self) -> Iterator[tuple[str, str]]:
        """Yield the episode and the JSON of each checkpoint."""
        query = select(checkpoints.c.workflow_id, checkpoints.c.record).where(checkpoints.c.project == self._project)
        with self._database.reading() as connection:
            yield from ((key, text) for key, text in connection.execute(query))

    def counted_rows(self, ids: Iterable[str]) -> int:
        """Return how many checkpoints, steps, and workflows there are of these."""
        wanted = frozenset(ids)
        found = 0
        with self._database.reading() as connection:
            for table, column in ((checkpoints, "workflow_id"), (steps, "plan_id"), (workflows, "id")):
                query = select(table.c[column]).where(table.c.project == self._project)
                found += sum(key in wanted for key in connection.scalars(query))
        return found

    def free(self, ids: Iterable[str]) -> None:
        """Remove the rows of workflows; one line of the trail says so of each."""
        for key in sorted(ids):
            with self._writing() as connection:
                drop_rows(connection, self._project, key)
                tick, now = next_tick(connection), datetime.now(UTC)
                upsert(connection, freed, [{"project": self._project, "workflow_id": key, "changed": tick}])
                line = TrailEvent(episode_id=key, kind=FREED, text=FREED_TEXT, key=f"{FREED}/{now:%s}", at=now)
                self._add(connection, [line])
        self._database.shrink()

    @contextlib.contextmanager
    def _writing(self, *, durable: bool = False) -> Iterator[Connection]:
        with self._database.writing(durable=durable) as connection:
            found = connection.execute(select(projects).where(projects.c.project == self._project)).mappings().first()
            known = dict(found) if found is not None else {}
            row = {
                "project": self._project,
                "name": self._line.name or known.get("name", "") or self._project,
                "workspace": self._line.workspace or known.get("workspace", ""),
                "host": self._line.host or known.get("host", ""),
            }
            if found is None or any(known[name] != value for name, value in row.items()):
                upsert(connection, projects, [{**row, "changed": next_tick(connection)}])
            yield connection

    def _add(self, connection: Connection, lines: Iterable[TrailEvent]) -> None:
        rows = [
            {
                "project": self._project,
                "workflow_id": line.episode_id,
                "kind": line.kind,
                "text": shorten(scrub(line.text), TEXT_CHARACTERS),
                # Where it is brought to another database it must not come twice.
                "key": line.key or uuid4().hex,
                "at": line.at or datetime.now(UTC),
            }
            for line in lines
        ]
        if rows:
            first = next_tick(connection, len(rows))
            numbered = [{**row, "changed": first + place} for place, row in enumerate(rows)]
            insert_missing(connection, events, numbered, "project", "workflow_id", "key")


def drop_rows(connection: Connection, project: str, workflow_id: str) -> None:
    """Remove everything about a workflow."""
    for table, column in (
        (workflows, "id"),
        (checkpoints, "workflow_id"),
        (steps, "plan_id"),
        (events, "workflow_id"),
        (days, "workflow_id"),
        (metrics, "workflow_id"),
    ):
        connection.execute(delete(table).where(table.c.project == project, table.c[column] == workflow_id))


def _status_event(snapshot: WorkflowSnapshot) -> TrailEvent:
    key = f"status/{snapshot.run}/{snapshot.at.isoformat()}"
    reason = snapshot.details.get("reason", "")
    text = reason if isinstance(reason, str) else ""
    return TrailEvent(episode_id=snapshot.id, kind=snapshot.status.lower(), key=key, text=text, at=snapshot.at)
