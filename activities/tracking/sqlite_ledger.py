"""The ledger of one project in a SQLite file."""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.artifacts.sqlite import lent, use_wal
from activities.workspace.trail import TrailEvent
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_id
from tightloop.errors import StorageFullError, WorkspaceError
from tightloop.host import state_folder

SCHEMA_VERSION = 1
BUSY_TIMEOUT = timedelta(seconds=10)
SCHEMA = Path(__file__).with_name("ledger.sql").read_text(encoding="utf-8")
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
"""Primary result codes: SQLite reports a disk that is full as a failed write, too."""


class SqliteLedger:
    """Keeps checkpoints and the trail; safe for many threads and processes at once.

    Every call opens and closes its own connection, because SQLite connections must not be shared by threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def record_checkpoint(self, episode_id: str, key: str, record: CheckpointRecord) -> CheckpointRecord:
        """Give the record the next number of its episode and keep it; see the port.

        Raises:
            StorageFullError: no room is left. Retryable.
            WorkspaceError: the file is damaged, or was written by a newer version.
        """
        with self._connected() as connection:
            known = connection.execute(
                "SELECT record FROM checkpoint WHERE episode_id = ? AND key = ?", (episode_id, key)
            ).fetchone()
            if known is not None:
                return CheckpointRecord.model_validate_json(known[0])
            (number,) = connection.execute(
                "SELECT coalesce(max(number) + 1, 0) FROM checkpoint WHERE episode_id = ?", (episode_id,)
            ).fetchone()
            kept = record.evolve(id=checkpoint_id(number))
            connection.execute(
                "INSERT INTO checkpoint VALUES (?, ?, ?, ?)", (episode_id, number, key, kept.model_dump_json())
            )
            return kept

    def is_recorded(self, episode_id: str, key: str) -> bool:
        """Return whether a checkpoint was kept under this key."""
        return bool(self._texts("SELECT key FROM checkpoint WHERE episode_id = ? AND key = ?", episode_id, key))

    def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return all checkpoints of an episode, by number."""
        query = "SELECT record FROM checkpoint WHERE episode_id = ? ORDER BY number"
        return tuple(CheckpointRecord.model_validate_json(text) for text in self._texts(query, episode_id))

    def add_event(self, event: TrailEvent) -> None:
        """Add a line to the trail, once per key; without a time it gets the present one."""
        stamped = event if event.at is not None else event.evolve(at=datetime.now(UTC))
        with self._connected() as connection:
            connection.execute(
                "INSERT INTO trail (episode_id, key, event) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (event.episode_id, event.key, stamped.model_dump_json()),
            )

    def events(self, episode_id: str) -> tuple[TrailEvent, ...]:
        """Return the trail of an episode, oldest first."""
        query = "SELECT event FROM trail WHERE episode_id = ? ORDER BY id"
        return tuple(TrailEvent.model_validate_json(text) for text in self._texts(query, episode_id))

    def _texts(self, query: str, *values: str) -> list[str]:
        # To look makes nothing: a workspace that cannot be used leaves no state.
        if not self._path.exists():
            return []
        with self._connected() as connection:
            return [text for (text,) in connection.execute(query, values)]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Take a connection with a write transaction; commit it unless an exception passes."""
        try:
            with lent(self._path, self._open) as connection:
                self._version(connection)
                # A transaction that begins by reading cannot wait for the lock to write: it fails at once.
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.rollback()
                    raise
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT.total_seconds(), isolation_level=None, check_same_thread=False
        )
        try:
            # In WAL mode less would lose the last checkpoints in a power loss.
            connection.execute("PRAGMA synchronous = FULL")
            version = self._version(connection)
            if version < SCHEMA_VERSION:
                # Without the write-ahead log and a busy timeout 200 writers at once got "database is locked".
                use_wal(connection, patience=BUSY_TIMEOUT)
                connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection

    def _version(self, connection: sqlite3.Connection) -> int:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise WorkspaceError(
                f"the ledger {self._path} was written by a newer tightloop (schema {version}, known is "
                f"{SCHEMA_VERSION}). Upgrade this worker"
            )
        return int(version)

    def _explained(self, error: sqlite3.DatabaseError) -> Exception:
        """Errors that a person can do something about say what; the others (such as a busy file) stay retryable."""
        code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in FULL:
            return StorageFullError(f"no room for the ledger {self._path}: {error}. Free space there")
        if code & 0xFF in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:  # the rest is detail
            return WorkspaceError(
                f"the ledger {self._path} is damaged: {error}. Move it away and restore it from a backup"
            )
        return error


def open_sqlite_ledger(workspace: Path) -> SqliteLedger:
    """Return the ledger of the project in `workspace`."""
    return SqliteLedger(state_folder(workspace) / "ledger.db")
