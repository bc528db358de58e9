"""Small artifacts of one project, compressed in one SQLite file."""

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from activities.artifacts.sqlite import lent
from tightloop.database.sqlite_file import use_wal
from tightloop.errors import ArtifactCorruptError, StorageFullError
from tightloop.value.artifact import FIND_PACKED, pack, unpack

SCHEMA_VERSION = 1
BUSY_TIMEOUT = timedelta(seconds=15)
LOG_PAGES = 250
"""Pages of the write-ahead log (4 kB each) before they move into the file; SQLite's 1 000 would stay on the disk."""
CACHE_KB = 256
"""Memory of a connection; SQLite's own bound is 2 MB, and what was read once is seldom read again."""
REMOVED_AT_ONCE = 500
FREED_AT_ONCE = 500
"""Pages. Both bound how long a worker waits for a collection."""
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
_SCHEMA = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS artifact (sha256 TEXT PRIMARY KEY, stored REAL NOT NULL, content BLOB NOT NULL) STRICT;
    PRAGMA user_version = {SCHEMA_VERSION};
    COMMIT;
"""


class PackedArtifacts:
    """Bytes by their digest; safe for many threads and processes at once, and on disk when a call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, contents: Mapping[str, bytes]) -> None:
        """Store all or none, in one transaction; what is stored already counts as stored now, and is repaired.

        Raises:
            StorageFullError: no room is left.
            ArtifactCorruptError: the file is damaged.
        """
        with self.writing() as connection:
            for digest, content in contents.items():
                row = connection.execute(FIND_PACKED, (digest,)).fetchone()
                if row is not None and unpack(row[0]) == content:
                    connection.execute("UPDATE artifact SET stored = ? WHERE sha256 = ?", (time.time(), digest))
                else:
                    row = (digest, time.time(), pack(content))
                    connection.execute("INSERT OR REPLACE INTO artifact VALUES (?, ?, ?)", row)

    def find(self, digest: str) -> bytes | None:
        """Return stored bytes, unchecked."""
        if not self._path.exists():
            return None
        with self._connected() as connection:
            row = connection.execute(FIND_PACKED, (digest,)).fetchone()
        return None if row is None else unpack(row[0])

    def all(self) -> dict[str, tuple[float, int]]:
        """Return of each artifact the time when it was stored, in seconds since 1970, and the bytes that it takes."""
        if not self._path.exists():
            return {}
        with self._connected() as connection:
            rows = connection.execute("SELECT sha256, stored, length(content) FROM artifact").fetchall()
        return {digest: (stored, size) for digest, stored, size in rows}

    def remove(self, digests: Iterable[str], *, before: float) -> None:
        """Remove what was not stored again since `before`, and give its room back to the file system."""
        if not self._path.exists():
            return
        rest = list(digests)
        while rest:
            some, rest = rest[:REMOVED_AT_ONCE], rest[REMOVED_AT_ONCE:]
            with self.writing() as connection:
                connection.executemany(
                    "DELETE FROM artifact WHERE sha256 = ? AND stored < ?", ((digest, before) for digest in some)
                )
        with self._connected() as connection:
            while connection.execute("PRAGMA freelist_count").fetchone()[0]:
                connection.execute(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})").fetchall()
            # Workers keep the file open, and its log as long as it ever was.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the one right to write to the store; commit at the end unless an exception passes."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with lent(self._path, self._open) as connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT.total_seconds(), isolation_level=None, check_same_thread=False
        )
        try:
            # In WAL mode less would lose, in a power loss, what histories refer to.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version < SCHEMA_VERSION:
                # Only an empty file can be made so that it shrinks in steps.
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                use_wal(connection, patience=BUSY_TIMEOUT)
                connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _explained(self, error: sqlite3.DatabaseError) -> Exception:
        """Errors that a person can do something about say what; the others (such as a busy file) stay retryable."""
        code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _FULL:
            return StorageFullError(f"no room for artifacts in {self._path}: {error}. Free space there, then resume")
        if code & 0xFF in _DAMAGED:
            return ArtifactCorruptError(f"{self._path} is damaged: {error}. Restore it from a backup")
        return error
