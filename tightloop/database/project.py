"""A project's ledger, with the rows that activities write and read back."""

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
from tightloop.database.schema import checkpoints, events, freed, metrics, projects, spending, steps, workflows
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id
from tightloop.ledger.metrics import Metric
from tightloop.ledger.model import FREED, KEPT, RELEASED, ProjectLine, StepRow, TrailEvent, WorkflowSnapshot
from tightloop.value import shorten
from tightloop.value.scrub import scrub

FREED_TEXT = "tightloop gc deleted its data on this host"


class ProjectLedger:
    """Read-write access to a project's rows. All methods are idempotent.

    Args:
        database: database that contains the rows.
        project: id and known fields of the project. An empty workspace or host does not change the
            recorded value.
    """

    def __init__(self, database: Database, project: ProjectLine) -> None:
        self._database = database
        self._line = project
        self._project = project.id

    def record_checkpoint(self, episode_id: str, key: str, record: CheckpointRecord) -> CheckpointRecord:
        """Store a checkpoint under the next number in its episode. Numbers start at 0.

        If the key already exists, return the record that was stored first.

        Raises:
            StorageFullError: the disk is full.
            WorkspaceError: the database is damaged, or was written by a newer version.
            ServiceUnavailableError: the database was still locked when the timeout expired. Retryable.
        """
        condition = (checkpoints.c.project == self._project, checkpoints.c.workflow_id == episode_id)
        # A workflow refers to the checkpoint once this returns, and it cannot be rebuilt from the history.
        with self._writing(durable=True) as connection:
            stored_record = connection.execute(
                select(checkpoints.c.record).where(*condition, checkpoints.c.key == key)
            ).scalar()
            # Temporal may run an activity again whose result was lost.
            if stored_record is not None:
                return CheckpointRecord.model_validate_json(stored_record)
            # Safe, because the transaction started as a writer: nobody else can take the number.
            last = connection.execute(select(func.max(checkpoints.c.number)).where(*condition)).scalar()
            number = 0 if last is None else last + 1
            new_record = record.evolve(id=checkpoint_id(number), title=scrub(record.title))
            row = {"workflow_id": episode_id, "number": number, "key": key, "record": new_record.model_dump_json()}
            connection.execute(
                checkpoints.insert(), {"project": self._project, **row, "changed": next_tick(connection)}
            )
            return new_record

    def adopt(self, records: Sequence[tuple[str, int, str, str]]) -> None:
        """Add checkpoints that were recorded elsewhere. Existing checkpoints are kept.

        Each record consists of the episode, number, key and JSON.
        """
        names = ("project", "workflow_id", "number", "key", "record", "changed")
        with self._writing() as connection:
            first = next_tick(connection, len(records))
            rows: list[dict[str, Any]] = [
                dict(zip(names, (self._project, *row, first + n), strict=True)) for n, row in enumerate(records)
            ]
            insert_missing(connection, checkpoints, rows)

    def is_recorded(self, episode_id: str, key: str) -> bool:
        """Return whether a checkpoint is stored under this key."""
        condition = (checkpoints.c.project == self._project, checkpoints.c.workflow_id == episode_id)
        with self._database.reading() as connection:
            query = select(checkpoints.c.number).where(*condition, checkpoints.c.key == key)
            return connection.execute(query).first() is not None

    def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return all checkpoints of an episode, ordered by number."""
        query = select(checkpoints.c.record).order_by(checkpoints.c.number)
        query = query.where(checkpoints.c.project == self._project, checkpoints.c.workflow_id == episode_id)
        with self._database.reading() as connection:
            return tuple(CheckpointRecord.model_validate_json(text) for text in connection.scalars(query))

    def add_event(self, event: TrailEvent) -> None:
        """Add an event, once per key. The time defaults to now."""
        with self._writing() as connection:
            self._add(connection, [event])

    def events(self, episode_id: str) -> tuple[TrailEvent, ...]:
        """Return an episode's events, oldest first."""
        query = select(events).order_by(events.c.seq)
        query = query.where(events.c.project == self._project, events.c.workflow_id == episode_id)
        with self._database.reading() as connection:
            return tuple(event_line(row) for row in connection.execute(query).mappings())

    def record(self, snapshot: WorkflowSnapshot) -> None:
        """Store a workflow snapshot unless a newer one is already stored.

        Events are added for a changed status, for new questions, and for questions that were answered or
        became obsolete.
        """
        condition = (workflows.c.project == self._project, workflows.c.id == snapshot.id)
        with self._writing() as connection:
            stored = connection.execute(select(workflows).where(*condition)).mappings().first()
            # Activities can overlap: a late retry must not overwrite a newer snapshot.
            if stored is not None and (stored["at"], stored["run"]) > (snapshot.at, snapshot.run):
                return
            # Before the row is replaced: its stored cost tells what was spent since.
            book(connection, self._project, snapshot.id, at=snapshot.at, cost_usd=snapshot.cost_usd)
            row = workflow_row(self._project, snapshot)
            if stored is not None:
                # Fields that a later snapshot omits keep their values.
                kept_fields = ("parent", "goal", "executor", "model", "started", "details")
                row |= {name: row[name] or stored[name] for name in kept_fields}
                row["placed"] = snapshot.started or stored["placed"]
            # An unchanged row gets no change number, so that it is not forwarded again.
            unchanged = stored is not None and all(stored[name] == value for name, value in row.items())
            if not unchanged:
                upsert(connection, workflows, [{**row, "changed": next_tick(connection)}])
            before = names_of(questions_of(stored)) if stored is not None else {}
            now = names_of(() if snapshot.closed else snapshot.questions)
            is_news = stored is None or stored["status"] != snapshot.status
            # A loop records its own events, such as `plan_dispatched`.
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
        """Update the progress of a recorded workflow without adding an event. Older data is dropped."""
        condition = (workflows.c.project == self._project, workflows.c.id == workflow_id, workflows.c.at < at)
        with self._writing() as connection:
            if connection.execute(select(workflows.c.id).where(*condition)).first() is None:
                return
            book(connection, self._project, workflow_id, at=at, cost_usd=cost_usd)
            values = {"iteration": iteration, "checks": checks, "cost_usd": cost_usd, "at": at}
            connection.execute(update(workflows).where(*condition).values(**values, changed=next_tick(connection)))

    def add_metrics(self, measured: Iterable[Metric]) -> None:
        """Store measured values. For each kind and key, the newest value is kept."""
        with self._writing() as connection:
            write_metrics(connection, self._project, measured)

    def record_steps(self, rows: Iterable[StepRow]) -> None:
        """Record the current state of plan steps, and an event for each change. Older data is dropped."""
        with self._writing() as connection:
            self._add(connection, write_steps(connection, self._project, rows))

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add the steps of a started or revised plan without adding events. Recorded progress is kept."""
        with self._writing() as connection:
            write_graph(connection, self._project, rows)

    def close_steps(self, plan_id: str, statuses: Mapping[str, str], *, at: datetime) -> None:
        """Store the final statuses of a plan's steps. Other pending steps are marked as completed."""
        with self._writing() as connection:
            settle_steps(connection, self._project, plan_id, statuses, at)

    def last_activity(self) -> tuple[dict[str, datetime], frozenset[str]]:
        """Return each workflow's last activity, and the workflows whose rows have since been deleted."""
        last: dict[str, datetime] = {}
        freed_ids: set[str] = set()
        query = select(events.c.workflow_id, events.c.kind, events.c.at).order_by(events.c.seq)
        # Keeping and releasing are not activity: a released workflow is as old as before.
        query = query.where(events.c.project == self._project, events.c.kind.not_in((KEPT, RELEASED)))
        with self._database.reading() as connection:
            for key, kind, at in connection.execute(query):
                last[key] = at
                (freed_ids.add if kind == FREED else freed_ids.discard)(key)
        return last, frozenset(freed_ids)

    def mark(self, workflow_id: str, *, protect: bool) -> None:
        """Protect a workflow's data from `tightloop gc`, or remove that protection."""
        kind, text = (
            (KEPT, "protected from tightloop gc") if protect else (RELEASED, "no longer protected from tightloop gc")
        )
        self.add_event(TrailEvent(episode_id=workflow_id, kind=kind, text=text))

    def list_protected_ids(self) -> frozenset[str]:
        """Return the workflows that are protected from `tightloop gc`."""
        query = select(events.c.workflow_id, events.c.kind).order_by(events.c.seq)
        query = query.where(events.c.project == self._project, events.c.kind.in_((KEPT, RELEASED)))
        with self._database.reading() as connection:
            last: dict[str, str] = dict(connection.execute(query).all())
        return frozenset(key for key, kind in last.items() if kind == KEPT)

    def kept_records(self) -> Iterator[tuple[str, str]]:
        """Yield the episode id and JSON of each checkpoint."""
        query = select(checkpoints.c.workflow_id, checkpoints.c.record).where(checkpoints.c.project == self._project)
        with self._database.reading() as connection:
            yield from ((key, text) for key, text in connection.execute(query))

    def counted_rows(self, ids: Iterable[str]) -> int:
        """Return the number of checkpoints, steps and workflow rows of these workflows."""
        id_set = frozenset(ids)
        count = 0
        with self._database.reading() as connection:
            for table, column in ((checkpoints, "workflow_id"), (steps, "plan_id"), (workflows, "id")):
                query = select(table.c[column]).where(table.c.project == self._project)
                count += sum(key in id_set for key in connection.scalars(query))
        return count

    def free(self, ids: Iterable[str]) -> None:
        """Delete the rows of workflows. One event is recorded for each workflow."""
        # One transaction each, so that other writers never wait for all of them.
        for key in sorted(ids):
            with self._writing() as connection:
                drop_rows(connection, self._project, key)
                tick, now = next_tick(connection), datetime.now(UTC)
                upsert(connection, freed, [{"project": self._project, "workflow_id": key, "changed": tick}])
                line = TrailEvent(episode_id=key, kind=FREED, text=FREED_TEXT, key=f"{FREED}/{now:%s}", at=now)
                self._add(connection, [line])
        # Once, after all: it truncates the write-ahead log.
        self._database.shrink()

    @contextlib.contextmanager
    def _writing(self, *, durable: bool = False) -> Iterator[Connection]:
        with self._database.writing(durable=durable) as connection:
            # Before any other row of the project, so that readers never meet an unknown project.
            stored_row = (
                connection.execute(select(projects).where(projects.c.project == self._project)).mappings().first()
            )
            stored_values = dict(stored_row) if stored_row is not None else {}
            row = {
                "project": self._project,
                "name": self._line.name or stored_values.get("name", "") or self._project,
                "workspace": self._line.workspace or stored_values.get("workspace", ""),
                "host": self._line.host or stored_values.get("host", ""),
            }
            if stored_row is None or any(stored_values[name] != value for name, value in row.items()):
                upsert(connection, projects, [{**row, "changed": next_tick(connection)}])
            yield connection

    def _add(self, connection: Connection, lines: Iterable[TrailEvent]) -> None:
        rows = [
            {
                "project": self._project,
                "workflow_id": line.episode_id,
                "kind": line.kind,
                "text": shorten(scrub(line.text), TEXT_CHARACTERS),
                # A unique key prevents duplicates when the event is forwarded to another database.
                "key": line.key or uuid4().hex,
                "at": line.at or datetime.now(UTC),
            }
            for line in lines
        ]
        if rows:
            first = next_tick(connection, len(rows))
            numbered = [{**row, "changed": first + index} for index, row in enumerate(rows)]
            insert_missing(connection, events, numbered, "project", "workflow_id", "key")


def drop_rows(connection: Connection, project: str, workflow_id: str) -> None:
    """Delete all rows of a workflow."""
    for table, column in (
        (workflows, "id"),
        (checkpoints, "workflow_id"),
        (steps, "plan_id"),
        (events, "workflow_id"),
        (spending, "workflow_id"),
        (metrics, "workflow_id"),
    ):
        connection.execute(delete(table).where(table.c.project == project, table.c[column] == workflow_id))


def _status_event(snapshot: WorkflowSnapshot) -> TrailEvent:
    key = f"status/{snapshot.run}/{snapshot.at.isoformat()}"
    reason = snapshot.details.get("reason", "")
    text = reason if isinstance(reason, str) else ""
    return TrailEvent(episode_id=snapshot.id, kind=snapshot.status.lower(), key=key, text=text, at=snapshot.at)
