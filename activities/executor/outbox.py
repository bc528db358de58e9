"""Outbox in a SQLite file in the state folder of a project."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from activities.artifacts.stores import borrow_connection
from activities.executor.port import DeliveryError, DeliveryState, OutboxEntry
from tightloop.database.engine import use_wal
from tightloop.errors import StorageFullError
from tightloop.executor.model import ExecutorReport
from tightloop.host import state_folder
from tightloop.value import ArtifactRef

SCHEMA_VERSION = 1
BUSY_S = 15.0
"""Maximum time to wait for another process that is writing."""

_SCHEMA = (
    """
    CREATE TABLE delivery (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        episode_id TEXT NOT NULL,
        iteration INTEGER NOT NULL,
        order_ref TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('queued', 'claimed', 'reported')),
        queued_at REAL NOT NULL,
        reported_at REAL,
        report TEXT,
        CHECK ((state = 'reported') = (report IS NOT NULL))
    ) STRICT
    """,
    "CREATE INDEX delivery_episode ON delivery (episode_id, number)",
    """
    CREATE TABLE claim (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL REFERENCES delivery (key),
        claimed_at REAL NOT NULL,
        base_tree TEXT NOT NULL,
        pid INTEGER NOT NULL,
        broke_off TEXT NOT NULL DEFAULT ''
    ) STRICT
    """,
    "CREATE INDEX claim_key ON claim (key)",
)
_SELECT = """
    SELECT key, episode_id, iteration, order_ref, state, report,
           (SELECT count(*) FROM claim WHERE claim.key = delivery.key) AS claims,
           coalesce((SELECT base_tree FROM claim WHERE claim.key = delivery.key ORDER BY number LIMIT 1), '')
               AS base_tree,
           coalesce((SELECT broke_off FROM claim WHERE claim.key = delivery.key ORDER BY number DESC LIMIT 1), '')
               AS broke_off
    FROM delivery
"""


def open_outbox(workspace: Path) -> "Outbox":
    """Return the outbox of the project in `workspace`."""
    return Outbox(state_folder(workspace) / "outbox.db")


class Outbox:
    """A durable record of the deliveries on the executor's host, stored in one file.

    Each call uses its own connection and is durable when it returns. The outbox can be used by several
    threads and processes on one host. Times are seconds since 1970.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, key: str, episode_id: str, iteration: int, order: ArtifactRef) -> None:
        """Queue a delivery. Idempotent for the same key: the first order is kept."""
        with self._transaction() as connection:
            connection.execute(
                # A retried `hand_off` may render another order; the first one may already be at work.
                "INSERT INTO delivery (key, episode_id, iteration, order_ref, state, queued_at) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (key, episode_id, iteration, order.model_dump_json(), DeliveryState.QUEUED, time.time()),
            )

    def get(self, key: str) -> OutboxEntry | None:
        """Return the outbox entry of a delivery, or None if the delivery was never queued."""
        with self._transaction() as connection:
            row = connection.execute(f"{_SELECT} WHERE key = ?", (key,)).fetchone()
        return None if row is None else _read_row(row)

    def claim(self, key: str, base_tree: str) -> None:
        """Durably record the start of a delivery and its base tree. Call this before acting.

        Raises:
            DeliveryError: the key was never queued or has already been reported.
        """
        with self._transaction() as connection:
            # In one transaction with the claim, so that no report can come in between.
            if _existing(connection, key).state is DeliveryState.REPORTED:
                raise DeliveryError(
                    f"delivery {key!r} has already been reported and must not be processed again. Read the report"
                )
            connection.execute("UPDATE delivery SET state = ? WHERE key = ?", (DeliveryState.CLAIMED, key))
            connection.execute(
                "INSERT INTO claim (key, claimed_at, base_tree, pid) VALUES (?, ?, ?, ?)",
                (key, time.time(), base_tree, os.getpid()),
            )

    def break_off(self, key: str, reason: str) -> None:
        """Durably record why the last attempt at a claimed delivery ended without a report."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE claim SET broke_off = ? WHERE number = (SELECT max(number) FROM claim WHERE key = ?)",
                (reason, key),
            )

    def report(self, key: str, report: ExecutorReport) -> None:
        """Durably record the report of a delivery. Recording an identical report again has no effect.

        Raises:
            DeliveryError: the key was never queued, or has a different report.
        """
        with self._transaction() as connection:
            earlier = _existing(connection, key).report
            # A retry after a lost response reports the same again.
            if earlier == report:
                return
            if earlier is not None:
                raise DeliveryError(
                    f"delivery {key!r} was already reported as {earlier.status.value}, not as {report.status.value}. "
                    "The first report is kept"
                )
            connection.execute(
                "UPDATE delivery SET state = ?, report = ?, reported_at = ? WHERE key = ?",
                (DeliveryState.REPORTED, report.model_dump_json(), time.time(), key),
            )

    def deliveries(self, episode_id: str) -> tuple[OutboxEntry, ...]:
        """Return an episode's deliveries in the order in which they were queued."""
        with self._transaction() as connection:
            rows = connection.execute(f"{_SELECT} WHERE episode_id = ? ORDER BY number", (episode_id,)).fetchall()
        return tuple(_read_row(row) for row in rows)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with borrow_connection(self._path, self._connect) as connection:
                # IMMEDIATE: a transaction that starts with a read fails without waiting if another writes first.
                connection.execute("BEGIN IMMEDIATE")
                with connection:
                    # In every transaction, because a file that was moved away is created again at any time.
                    self._migrate(connection)
                    yield connection
        except sqlite3.OperationalError as error:
            # SQLite reports a full disk as a failed write as well.
            # The low byte is the primary code; the rest says which operation failed.
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise StorageFullError.of(self._path, error) from error
            raise
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise DeliveryError(
                    f"the outbox {self._path} is damaged ({error}). Move the file out of the way"
                ) from error
            raise

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: the module would start transactions only at the first write.
        # check_same_thread=False: `lent` passes a connection from thread to thread, one at a time.
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        use_wal(connection, patience=timedelta(seconds=BUSY_S))
        # With NORMAL, a power loss may drop the last commits of the write-ahead log, and a delivery would be made
        # twice.
        connection.execute("PRAGMA synchronous = FULL")
        # Off by default in SQLite for every connection.
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise DeliveryError(
                f"the outbox {self._path} has schema version {version}, but the newest "
                f"supported version is {SCHEMA_VERSION}. Upgrade tightloop"
            )
        if version < SCHEMA_VERSION:
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _existing(connection: sqlite3.Connection, key: str) -> OutboxEntry:
    row = connection.execute(f"{_SELECT} WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise DeliveryError(f"delivery {key!r} not found in the outbox. Queue the delivery first")
    return _read_row(row)


def _read_row(row: sqlite3.Row) -> OutboxEntry:
    order, report = json.loads(row["order_ref"]), json.loads(row["report"] or "null")
    return OutboxEntry.model_validate({**dict(row), "order": order, "report": report})
