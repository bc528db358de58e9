"""Database engine, transactions and schema upgrades."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tightloop.database.schema import METADATA
from tightloop.errors import ServiceUnavailableError, SettingsError, StorageFullError, WorkspaceError
from tightloop.host import private_folder

# The switch holds a lock only briefly, but every process that opens the file for the first time needs it.
POLL_S = 0.02
_CREATING = threading.Lock()


def make_database(path: Path) -> None:
    """Create an empty database file and its folders if they are missing.

    Only the owner can access the file.
    """
    # SQLite's side files inherit the mode of the main file. An existing file is never opened here: closing any
    # descriptor of it would drop the locks of all SQLite connections of this process (POSIX), and another process could
    # then delete the write-ahead log.
    with _CREATING:
        if not path.exists():
            private_folder(path.parent)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def use_wal(connection: sqlite3.Connection, *, patience: timedelta) -> None:
    """Switch to the write-ahead log. SQLite does not apply its busy timeout to this switch.

    Raises:
        sqlite3.OperationalError: the file was still locked when the timeout expired.
    """
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def file_id(path: Path) -> tuple[int, int]:
    """Return the device and inode of a file. They change when the file is replaced."""
    status = path.stat()
    return status.st_dev, status.st_ino


FOLDER = Path(__file__).with_name("migrations")


@dataclass(frozen=True)
class Migrations:
    """A set of tables with their migrations."""

    name: str
    """Name of the data, for use in messages."""
    versions: Path
    """Folder that contains the migrations, `v<number>_<name>.py`."""
    table: str
    """Table that stores the database's revision."""
    metadata: MetaData
    when_damaged: str
    """Advice to include in messages about damaged databases."""

    @cached_property
    def head(self) -> str:
        # The zero-padded numbers make the order of the names that of the migrations.
        return max(path.stem for path in self.versions.glob("v*.py"))

    def revision_of(self, connection: Connection) -> str:
        """Return a database's revision, or "" if the database is new."""
        # Runs in every transaction; SQLAlchemy's inspection would take longer than the transaction itself.
        if connection.dialect.name == "postgresql":
            query = text("SELECT to_regclass(:name)")
        else:
            query = text("SELECT name FROM sqlite_master WHERE name = :name")
        if connection.execute(query, {"name": self.table}).scalar() is None:
            return ""
        return str(connection.execute(text(f"SELECT version_num FROM {self.table}")).scalar() or "")  # noqa: S608

    def upgrade(self, connection: Connection, to: str = "head") -> None:
        """Migrate a database to a revision, by default the newest. The caller must commit."""
        # Lazy import: most processes find the database up to date and save 0.2 s.
        from alembic import command
        from alembic.config import Config

        config = Config()
        # `%` starts an interpolation in Alembic's configuration, and its default separators occur in paths.
        config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
        config.set_main_option("version_locations", str(self.versions).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        config.attributes |= {"connection": connection, "metadata": self.metadata, "table": self.table}
        command.upgrade(config, to)


LEDGER = Migrations(
    name="ledger",
    versions=FOLDER / "versions",
    table="alembic_version",
    metadata=METADATA,
    when_damaged=(
        "Move the file out of the way, then restore it from a backup or rebuild it with: tightloop ledger rebuild"
    ),
)


BUSY_TIMEOUT = timedelta(seconds=10)
CONNECT_S = 5
STATEMENT_TIMEOUT = timedelta(seconds=20)
CHECKED, CHECKED_S = "tightloop_checked_until", 2.0
"""Connection info key, and the seconds for which readers skip the check for schema changes by another release."""
FREED_AT_ONCE = 500
"""Number of pages to free per step. It limits how long writers wait while a file shrinks."""
WRITERS_LOCK = 0x7469676874  # "tight"
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
"""Primary result codes of a full disk, which SQLite also reports as a failed write."""
DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})


class Mode(Enum):
    """The purpose of a transaction, which determines how it starts and commits."""

    READ = auto()
    WRITE = auto()
    DURABLE = auto()
    """Committed data survives a power loss."""


class Database:
    """A database connection that is opened on first use.

    Instances are thread-safe. An SQLite file can also be used by many processes.

    Args:
        engine: connection pool.
        name: name to use in messages. It must not contain a password.
        upgrades: True to migrate an older database on first use.
        migrations: migrations of its tables.
    """

    def __init__(self, engine: Engine, name: str, *, upgrades: bool, migrations: Migrations = LEDGER) -> None:
        self._engine = engine
        self._name = name
        self._upgrades = upgrades
        self._migrations = migrations

    def __str__(self) -> str:
        """Return the name of the database for messages. The name does not contain a password."""
        return self._name

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only transaction with a consistent snapshot.

        Raises:
            ServiceUnavailableError: the database does not respond or is locked. Retryable.
            WorkspaceError: the database is damaged or does not have the expected revision.
        """
        with self._transaction(Mode.READ) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[Connection]:
        """Open a write transaction. It is committed unless an exception is raised.

        A commit always survives a crash of this process. With PostgreSQL, it also survives a power loss. With
        SQLite, it survives a power loss only if `durable` is set. All earlier commits then survive as well.

        Raises:
            StorageFullError: the disk is full.
            ServiceUnavailableError: the database does not respond or is locked. Retryable.
            WorkspaceError: the database is damaged or does not have the expected revision.
        """
        with self._transaction(Mode.DURABLE if durable else Mode.WRITE) as connection:
            yield connection

    @property
    def is_file(self) -> bool:
        """True if the database is an SQLite file on this host."""
        return self._engine.dialect.name == "sqlite"

    @property
    def head(self) -> str:
        return self._migrations.head

    def upgrade(self) -> str:
        """Migrate to the newest revision. Return the previous revision, or "" for a new database."""
        with self._translate_errors(), self._begin_transaction(Mode.DURABLE) as connection:
            # Under the write lock, because another process may have migrated in the meantime.
            before = self._migrations.revision_of(connection)
            if before != self.head:
                self._refuse_newer(before)
                self._migrations.upgrade(connection)
            return before

    def shrink(self) -> None:
        """Return freed pages to the disk while writers continue to work. PostgreSQL does this automatically."""
        if not self.is_file:
            return
        with self._translate_errors():
            raw = self._engine.raw_connection()
            try:
                cursor = raw.cursor()
                # Each step is a transaction of its own, so that writers get their turn. SQLite frees pages only
                # while the rows of the pragma are fetched.
                while cursor.execute("PRAGMA freelist_count").fetchone()[0]:
                    cursor.execute(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})").fetchall()
                # Workers keep the file open, and the log never shrinks by itself.
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                raw.close()

    def close(self) -> None:
        """Close idle connections, so that the database file is complete without its write-ahead log."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(self, mode: Mode) -> Iterator[Connection]:
        with self._translate_errors(), contextlib.ExitStack() as stack:
            connection = stack.enter_context(self._begin_transaction(mode))
            # Only for readers: writing to another schema could lose data.
            if mode is Mode.READ and time.monotonic() < connection.info.get(CHECKED, 0.0):
                yield connection
                return
            revision = self._migrations.revision_of(connection)
            # `info` belongs to the connection: a new one, after a replaced file, is checked again.
            connection.info[CHECKED] = time.monotonic() + CHECKED_S if revision == self.head else 0.0
            if revision != self.head:
                # The migration needs the write lock, which this transaction may hold.
                stack.close()
                self._bring_up(revision)
                connection = stack.enter_context(self._begin_transaction(mode))
            yield connection

    @contextlib.contextmanager
    def _begin_transaction(self, mode: Mode) -> Iterator[Connection]:
        options: dict[str, Any] = {"tightloop_mode": mode}
        if mode is Mode.READ and self._engine.dialect.name == "postgresql":
            # Part of BEGIN: a separate statement would cost another round trip.
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            if mode is not Mode.READ:
                lock_writers(connection)
            yield connection

    def _bring_up(self, revision: str) -> None:
        if self._upgrades or not revision:
            self.upgrade()
            return
        self._refuse_newer(revision)
        raise WorkspaceError(
            f"the {self._migrations.name} in {self} is at migration {revision}, but this code requires {self.head}. "
            "Upgrade the database with: tightloop ledger upgrade"
        )

    def _refuse_newer(self, revision: str) -> None:
        if revision > self.head:
            raise WorkspaceError(
                f"the {self._migrations.name} {self} was written by a newer version of tightloop. Upgrade this worker: "
                f"its newest migration is {self.head}, not {revision}"
            )

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeoutError, DisconnectionError) as error:
            raise self._explanation(error) from error

    def _explanation(self, error: SQLAlchemyError) -> Exception:
        """Translate a database error to a tightloop error.

        Errors about a full disk or a damaged database are not retryable. All other errors are retryable.
        """
        cause = error.orig if isinstance(error, DBAPIError) else None
        reason = " ".join(str(cause or error).split())
        code: int = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # higher bits are details
        state = getattr(cause, "sqlstate", None)
        if code in FULL or state == "53100":  # disk_full
            return StorageFullError.of(f"the {self._migrations.name} {self}", reason)
        if code in DAMAGED:
            return WorkspaceError(
                f"the {self._migrations.name} {self} is damaged: {reason}. {self._migrations.when_damaged}"
            )
        return ServiceUnavailableError(f"the database {self} is not responding ({reason}). Trying again")


def lock_writers(connection: Connection) -> None:
    """Wait until no other transaction writes to this database, and block writers until this one ends."""
    if connection.dialect.name == "postgresql":
        # Change numbers must become visible in their order, or a reader would skip those committed late: PostgreSQL's
        # sequences do not guarantee that. The lock ends with the transaction, also if the connection breaks.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": WRITERS_LOCK})


def sqlite_database(path: Path, migrations: Migrations = LEDGER) -> Database:
    """Return the database stored in a file. The file is created on first use."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        # Opening a file costs more than reading a page, so concurrent users keep their connections.
        pool_size=16,
        pool_use_lifo=True,
        max_overflow=48,
        pool_timeout=BUSY_TIMEOUT.total_seconds(),
        connect_args={"timeout": BUSY_TIMEOUT.total_seconds(), "check_same_thread": False},
    )

    @event.listens_for(engine, "do_connect")
    def _make(*_: Any) -> None:
        # SQLite itself would create the file with the permissions of the umask.
        make_database(path)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, record: Any) -> None:
        # Stop the driver from opening transactions of its own.
        connection.isolation_level = None
        # Only has an effect on an empty file: it allows the file to shrink in steps.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Without write-ahead log and busy timeout, 200 concurrent writers got "database is locked".
        use_wal(connection, patience=BUSY_TIMEOUT)
        record.info["file"] = file_id(path)

    @event.listens_for(engine, "checkout")
    def _is_current(_: sqlite3.Connection, record: Any, __: Any) -> None:
        # The file may have been replaced, for example by a backup, or deleted.
        with contextlib.suppress(FileNotFoundError):
            if record.info["file"] == file_id(path):
                return
        raise DisconnectionError(f"{path} was replaced or deleted")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that starts by reading cannot wait for the write lock: it fails at once.
        mode = connection.get_execution_options().get("tightloop_mode", Mode.DURABLE)
        if mode is Mode.READ:
            connection.exec_driver_sql("BEGIN")
            return
        # In WAL mode anything less would lose the last checkpoints in a power loss. Other rows can be rebuilt from
        # histories, and syncing them would wait for the disk twice per plan step.
        connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if mode is Mode.DURABLE else 'NORMAL'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return Database(engine, str(path), upgrades=True, migrations=migrations)


def postgres_database(address: str, migrations: Migrations = LEDGER) -> Database:
    """Return the database at a URL such as `postgresql://user@host/name`. An empty database is initialised.

    Raises:
        SettingsError: the URL cannot be parsed, or, on first use, the database's encoding is not UTF-8.
    """
    try:
        url = make_url(address).set(drivername="postgresql+psycopg")
    except SQLAlchemyError:
        raise SettingsError(
            "database.url is not a valid address: expected a URL like postgresql://user@host:5432/name"
        ) from None
    milliseconds = int(STATEMENT_TIMEOUT.total_seconds() * 1000)
    engine = create_engine(
        url,
        pool_size=8,
        pool_use_lifo=True,
        max_overflow=24,
        pool_timeout=BUSY_TIMEOUT.total_seconds(),
        # The server may have closed an idle connection.
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_S,
            # A broken network sends no error: without this a call would block for many minutes.
            "tcp_user_timeout": milliseconds,
            "options": f"-c statement_timeout={milliseconds} -c timezone=UTC",
            "application_name": "tightloop",
        },
    )

    name = url.render_as_string(hide_password=True).replace("+psycopg", "")

    # Inserted before SQLAlchemy's own listener, which already runs queries.
    @event.listens_for(engine, "connect", insert=True)
    def _check_encoding(connection: Any, _: Any) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in ("UTF8", None):  # None behind some proxies
            raise SettingsError(
                f"the database {name} uses the encoding {encoding}, which cannot store all characters. Set "
                "database.url to a database created with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            )

    return Database(engine, name, upgrades=False, migrations=migrations)
