"""Local artifact stores, which use separate files and SQLite."""

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from activities.artifacts.port import FULL, ArtifactStore, write_durably
from tightloop.database.engine import file_id, make_database, use_wal
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, StorageFullError
from tightloop.host import private_folder, state_folder
from tightloop.value import FIND_PACKED, PACKED, ArtifactRef, pack, reference, unpack

IDLE_LIMIT = 32
"""Maximum number of idle connections; each has three open files and its own cache."""
_IDLE_LOCK = threading.Lock()
_IDLE: dict[tuple[int, int], sqlite3.Connection] = {}
"""Idle connections by device and inode, oldest first."""


@contextmanager
def borrow_connection(path: Path, connect: Callable[[], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
    """Lend a pooled database connection to one caller at a time. A missing file is created.

    The pool exists because closing the last connection moves the whole log into the file. Without it,
    this took a third of a worker's CPU time.

    Args:
        path: the database file. A new file at the same path gets new connections.
        connect: opens the file. `check_same_thread` must be off.
    """
    make_database(path)
    file = file_id(path)
    with _IDLE_LOCK:
        connection = _IDLE.pop(file, None)
    connection = connection or connect()
    try:
        yield connection
    # Its state is unknown, for example within a transaction, so the next caller must not get it.
    except BaseException:
        connection.close()
        raise
    with _IDLE_LOCK:
        unwanted = [connection] if file in _IDLE else []
        _IDLE.setdefault(file, connection)
        if len(_IDLE) > IDLE_LIMIT:
            unwanted.append(_IDLE.pop(next(iter(_IDLE))))
    for idle_connection in unwanted:
        idle_connection.close()


def close_idle() -> None:
    """Close idle connections so that each file is complete without its log."""
    with _IDLE_LOCK:
        connections = list(_IDLE.values())
        _IDLE.clear()
    for connection in connections:
        connection.close()


SCHEMA_VERSION = 1
BUSY_TIMEOUT = timedelta(seconds=15)
LOG_PAGES = 250
"""Number of 4 kB pages after which the write-ahead log is checkpointed. With SQLite's default of 1 000, the larger log
would stay on disk."""
CACHE_KB = 256
"""Cache size per connection. It is below SQLite's default of 2 MB because data is rarely read twice."""
REMOVED_AT_ONCE = 500
FREED_AT_ONCE = 500
"""Number of pages to free at once. Like `REMOVED_AT_ONCE`, it limits how long a collection blocks a worker."""
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
_SCHEMA = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS artifact (sha256 TEXT PRIMARY KEY, stored REAL NOT NULL, content BLOB NOT NULL) STRICT;
    PRAGMA user_version = {SCHEMA_VERSION};
    COMMIT;
"""


class PackedArtifacts:
    """Stores bytes by digest in a SQLite file.

    Safe for concurrent threads and processes. Writes are durable on return.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, contents: Mapping[str, bytes]) -> None:
        """Store all contents in a single transaction. If this fails, nothing is stored.

        Existing artifacts get a new timestamp. Damaged artifacts are repaired.

        Raises:
            StorageFullError: the disk is full.
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
        """Return the stored bytes without verifying them."""
        if not self._path.exists():
            return None
        with self._connect() as connection:
            row = connection.execute(FIND_PACKED, (digest,)).fetchone()
        return None if row is None else unpack(row[0])

    def all(self) -> dict[str, tuple[float, int]]:
        """Return the store time (seconds since 1970) and the stored size in bytes of each artifact."""
        if not self._path.exists():
            return {}
        with self._connect() as connection:
            rows = connection.execute("SELECT sha256, stored, length(content) FROM artifact").fetchall()
        return {digest: (stored, size) for digest, stored, size in rows}

    def remove(self, digests: Iterable[str], *, before: float) -> None:
        """Delete artifacts that have not been stored again since `before`.

        The freed space is returned to the file system.
        """
        if not self._path.exists():
            return
        rest = list(digests)
        while rest:
            # In batches, because writers wait for the lock.
            some, rest = rest[:REMOVED_AT_ONCE], rest[REMOVED_AT_ONCE:]
            with self.writing() as connection:
                connection.executemany(
                    "DELETE FROM artifact WHERE sha256 = ? AND stored < ?", ((digest, before) for digest in some)
                )
        with self._connect() as connection:
            while connection.execute("PRAGMA freelist_count").fetchone()[0]:
                connection.execute(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})").fetchall()
            # Workers keep the file open, so its log would otherwise never shrink.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the store's write lock. Commit at the end unless the block raises an error."""
        with self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with borrow_connection(self._path, self._open) as connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise self._add_advice(error) from error

    def _open(self) -> sqlite3.Connection:
        # check_same_thread=False: `lent` passes a connection from thread to thread, one at a time.
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT.total_seconds(), isolation_level=None, check_same_thread=False
        )
        try:
            # In WAL mode, anything less would lose data that histories refer to in a power loss.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version < SCHEMA_VERSION:
                # Only an empty file can be switched to incremental vacuuming.
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                use_wal(connection, patience=BUSY_TIMEOUT)
                connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _add_advice(self, error: sqlite3.DatabaseError) -> Exception:
        """Add advice to a database error that a person can fix.

        Other errors, such as a busy file, are returned unchanged and remain retryable.
        """
        code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in _FULL:
            return StorageFullError.of(self._path, error)
        if code & 0xFF in _DAMAGED:
            return ArtifactCorruptError(f"{self._path} is damaged: {error}. Restore the file from a backup")
        return error


PACKED_BYTES = 64_000
"""Size in bytes above which artifacts become separate files. SQLite would rewrite larger ones repeatedly, and
collections would lock the file for long.
"""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class LocalArtifactStore:
    """Stores small artifacts in a SQLite file and large artifacts as `<folder>/ab/cdef...`.

    Safe for concurrent threads and processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packed = PackedArtifacts(folder / PACKED)

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        ref = reference(content, name=name, media_type=media_type)
        with self._translate_full_disk(content, name):
            if as_file or len(content) > PACKED_BYTES:
                # A collection must not delete the file between the check and the end of the write.
                with self._packed.writing():
                    path = self._path(ref.sha256)
                    private_folder(path.parent)
                    # Compare the bytes instead of trusting the name, so that storing again repairs a damaged file.
                    if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                        # `tightloop gc` deletes old artifacts by mtime; this one is needed again.
                        os.utime(path)
                    else:
                        write_durably(path, content)
            else:
                self._packed.put({ref.sha256: content})
        return ref

    @contextlib.contextmanager
    def open_batch(self) -> Iterator[ArtifactStore]:
        pending = _Batch(self)
        yield pending
        if pending.contents:
            with self._translate_full_disk(b"".join(pending.contents.values()), pending.names):
                self._packed.put(pending.contents)

    def get(self, ref: ArtifactRef) -> bytes:
        if not _DIGEST.fullmatch(ref.sha256):
            raise ArtifactMissingError(
                f"'{ref.sha256[:80]}' is not a valid artifact address. An address has 64 hexadecimal digits"
            )
        content = self.find(ref.sha256)
        if content is None:
            raise ArtifactMissingError(
                f"cannot find artifact '{ref.name}' ({ref.sha256[:12]}) in {self._folder}. Restore the "
                "folder from a backup, or check that this worker runs on the workspace's host"
            )
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise ArtifactCorruptError(
                f"artifact '{ref.name}' ({ref.sha256[:12]}) in {self._folder} is damaged: its bytes do not match "
                "their hash. Restore the folder from a backup"
            )
        return content

    def find(self, digest: str) -> bytes | None:
        """Return the bytes stored under a digest without verifying them."""
        content = self._packed.find(digest)
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                return self._path(digest).read_bytes()
        return content

    def all(self) -> dict[str, tuple[float, int]]:
        """Return the last store time (seconds since 1970) and the stored size in bytes of each artifact."""
        entries = self._packed.all()
        for path in self._folder.glob("??/*"):
            digest = f"{path.parent.name}{path.name}"
            if _DIGEST.fullmatch(digest):
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    stored, size = entries.get(digest, (0.0, 0))
                    entries[digest] = (max(stored, stat.st_mtime), size + stat.st_size)
        return entries

    def remove(self, digests: Iterable[str], *, before: float) -> None:
        """Delete artifacts that have not been stored again since `before` (seconds since 1970)."""
        unwanted = list(digests)
        for path in map(self._path, unwanted):
            if path.exists():
                # The lock of the database also guards the files: `put` holds it between its check and its write.
                with self._packed.writing(), contextlib.suppress(OSError):
                    if path.stat().st_mtime < before:
                        path.unlink()
                    # Fails if the folder is not empty; the next writer recreates it.
                    path.parent.rmdir()
        self._packed.remove(unwanted, before=before)

    def path(self, ref: ArtifactRef) -> Path:
        return self._path(ref.sha256)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest[2:]

    @contextlib.contextmanager
    def _translate_full_disk(self, content: bytes, name: str) -> Iterator[None]:
        """Convert an error about a full disk to an error with advice."""
        try:
            yield
        except (OSError, StorageFullError) as error:
            if isinstance(error, OSError) and error.errno not in FULL:
                raise
            cause = error.strerror if isinstance(error, OSError) else "the index of the store cannot grow"
            raise StorageFullError.of(self._folder, cause, f"storing {len(content)} bytes ({name!r})") from error


class _Batch:
    """Collects small artifacts so that they can be stored together."""

    def __init__(self, store: LocalArtifactStore) -> None:
        self._store = store
        self._refs: list[ArtifactRef] = []
        self.contents: dict[str, bytes] = {}

    @property
    def names(self) -> str:
        return "', '".join(ref.name for ref in self._refs)

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        if as_file or len(content) > PACKED_BYTES:
            return self._store.put(content, name=name, media_type=media_type, as_file=as_file)
        ref = reference(content, name=name, media_type=media_type)
        self._refs.append(ref)
        self.contents[ref.sha256] = content
        return ref

    def get(self, ref: ArtifactRef) -> bytes:
        content = self.contents.get(ref.sha256)
        return self._store.get(ref) if content is None else content

    def path(self, ref: ArtifactRef) -> Path:
        return self._store.path(ref)

    def open_batch(self) -> contextlib.AbstractContextManager[ArtifactStore]:
        return contextlib.nullcontext(self)


def open_local_store(workspace: Path) -> LocalArtifactStore:
    return LocalArtifactStore(state_folder(workspace) / "artifacts")
