"""Database engine, and upgrades of its schema."""

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

# The switch takes a lock for an instant only, but every process that opens the file for the first time wants it.
POLL_S = 0.02
_CREATING = threading.Lock()


def make_database(path: Path) -> None:
    """Make a missing file, empty and for its owner alone, and its folders."""
    # The side files of SQLite get the mode of the main file. Never opens a file that is there: to close any descriptor
    # of it would drop the locks of every SQLite connection that this process has on it (POSIX), and another process
    # could then delete the write-ahead log.
    with _CREATING:
        if not path.exists():
            private_folder(path.parent)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def use_wal(connection: sqlite3.Connection, *, patience: timedelta) -> None:
    """Switch to the write-ahead log. SQLite does not apply its busy timeout to this switch.

    Raises:
        sqlite3.OperationalError: somebody else was busy with the file for the whole time.
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
    """Return device and inode: they differ once another file takes the place of one."""
    found = path.stat()
    return found.st_dev, found.st_ino


FOLDER = Path(__file__).with_name("migrations")


@dataclass(frozen=True)
class Migrations:
    """A set of tables, and how they came to be."""

    name: str
    """What the tables hold, for messages."""
    versions: Path
    """Folder of the migrations, `v<number>_<what>.py`."""
    table: str
    """Holds the revision that a database is at."""
    metadata: MetaData
    when_damaged: str
    """What helps, for messages."""

    @cached_property
    def head(self) -> str:
        return max(path.stem for path in self.versions.glob("v*.py"))

    def revision_of(self, connection: Connection) -> str:
        """Return the revision that a database is at; empty: it is new."""
        # Asked in every transaction: SQLAlchemy's own way to ask is slower than what the transaction is for.
        if connection.dialect.name == "postgresql":
            known = text("SELECT to_regclass(:name)")
        else:
            known = text("SELECT name FROM sqlite_master WHERE name = :name")
        if connection.execute(known, {"name": self.table}).scalar() is None:
            return ""
        return str(connection.execute(text(f"SELECT version_num FROM {self.table}")).scalar() or "")  # noqa: S608

    def upgrade(self, connection: Connection, to: str = "head") -> None:
        """Bring the database of a connection to a revision, the newest if none is named; the caller commits."""
        # Most processes find it up to date, and do without 0.2 s of imports.
        from alembic import command
        from alembic.config import Config

        config = Config()
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
    when_damaged="Move it away, and restore it from a backup or make it again: tightloop ledger rebuild",
)


BUSY_TIMEOUT = timedelta(seconds=10)
CONNECT_S = 5
STATEMENT_TIMEOUT = timedelta(seconds=20)
CHECKED, CHECKED_S = "tightloop_checked_until", 2.0
"""Who only reads with a connection need not look for so long whether another release has changed the tables."""
FREED_AT_ONCE = 500
"""Pages: bounds how long writers wait while a file shrinks."""
WRITERS_LOCK = 0x7469676874  # "tight"
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
"""Primary result codes: SQLite reports a disk that is full as a failed write, too."""
DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})


class Mode(Enum):
    """What a transaction is for."""

    READ = auto()
    WRITE = auto()
    DURABLE = auto()
    """It is on the disk once it is committed."""


class Database:
    """One database. Safe for many threads; SQLite's file also for many processes."""

    def __init__(self, engine: Engine, name: str, *, upgrades: bool, migrations: Migrations = LEDGER) -> None:
        """Open nothing yet.

        Args:
            engine: opens connections.
            name: for messages; no password in it.
            upgrades: bring an older one to the newest migration when it is first used.
            migrations: of the tables that are used in it.
        """
        self._engine = engine
        self._name = name
        self._upgrades = upgrades
        self._migrations = migrations

    def __str__(self) -> str:
        """Return its name, without a password."""
        return self._name

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that only reads; it sees one state of everything.

        Raises:
            ServiceUnavailableError: it does not answer, or is busy. Retryable.
            WorkspaceError: it is damaged, or at another migration than this code.
        """
        with self._transaction(Mode.READ) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[Connection]:
        """Open a transaction that writes; it is committed unless an exception passes.

        A commit survives a crash of this process in any case. SQLite's survive a power loss too where they are
        `durable`, with everything that was committed before; PostgreSQL's always do.

        Raises:
            StorageFullError: no room is left.
            ServiceUnavailableError: it does not answer, or is busy. Retryable.
            WorkspaceError: it is damaged, or at another migration than this code.
        """
        with self._transaction(Mode.DURABLE if durable else Mode.WRITE) as connection:
            yield connection

    @property
    def is_file(self) -> bool:
        """Whether it is a file of this host."""
        return self._engine.dialect.name == "sqlite"

    @property
    def head(self) -> str:
        return self._migrations.head

    def upgrade(self) -> str:
        """Bring the database to the newest migration; return the one that it was at, empty for a new one."""
        with self._explained(), self._begun(Mode.DURABLE) as connection:
            before = self._migrations.revision_of(connection)
            if before != self.head:
                self._refuse_newer(before)
                self._migrations.upgrade(connection)
            return before

    def shrink(self) -> None:
        """Give the room of removed rows back to the disk, beside writers; PostgreSQL does that by itself."""
        if not self.is_file:
            return
        with self._explained():
            raw = self._engine.raw_connection()
            try:
                cursor = raw.cursor()
                while cursor.execute("PRAGMA freelist_count").fetchone()[0]:
                    cursor.execute(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})").fetchall()
                # Workers keep the file open, and its log as long as it ever was.
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                raw.close()

    def close(self) -> None:
        """Close idle connections, so that a file is complete without its log."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(self, mode: Mode) -> Iterator[Connection]:
        with self._explained(), contextlib.ExitStack() as stack:
            connection = stack.enter_context(self._begun(mode))
            if mode is Mode.READ and time.monotonic() < connection.info.get(CHECKED, 0.0):
                yield connection
                return
            found = self._migrations.revision_of(connection)
            connection.info[CHECKED] = time.monotonic() + CHECKED_S if found == self.head else 0.0
            if found != self.head:
                stack.close()
                self._bring_up(found)
                connection = stack.enter_context(self._begun(mode))
            yield connection

    @contextlib.contextmanager
    def _begun(self, mode: Mode) -> Iterator[Connection]:
        options: dict[str, Any] = {"tightloop_mode": mode}
        if mode is Mode.READ and self._engine.dialect.name == "postgresql":
            # Part of BEGIN: a statement of its own would be a round trip more.
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            if mode is not Mode.READ:
                lock_writers(connection)
            yield connection

    def _bring_up(self, found: str) -> None:
        if self._upgrades or not found:
            self.upgrade()
            return
        self._refuse_newer(found)
        raise WorkspaceError(
            f"the {self._migrations.name} in {self} is at migration {found}, this code at {self.head}. "
            "Bring it up to date: tightloop ledger upgrade"
        )

    def _refuse_newer(self, found: str) -> None:
        if found > self.head:
            raise WorkspaceError(
                f"the {self._migrations.name} {self} was written by a newer tightloop (migration {found}, "
                f"known is {self.head}). "
                "Upgrade this worker"
            )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeoutError, DisconnectionError) as error:
            raise self._explanation(error) from error

    def _explanation(self, error: SQLAlchemyError) -> Exception:
        """Errors that a person can do something about say what; the others (such as a busy file) are retryable."""
        cause = error.orig if isinstance(error, DBAPIError) else None
        said = " ".join(str(cause or error).split())
        code: int = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest is detail
        state = getattr(cause, "sqlstate", None)
        if code in FULL or state == "53100":  # disk_full
            return StorageFullError(f"no room for the {self._migrations.name} {self}. Free space there: {said}")
        if code in DAMAGED:
            return WorkspaceError(
                f"the {self._migrations.name} {self} is damaged: {said}. {self._migrations.when_damaged}"
            )
        return ServiceUnavailableError(f"the database {self} does not answer: {said}. It is asked again")


def lock_writers(connection: Connection) -> None:
    """Wait until no other transaction of this database writes; until the end of this one nobody else does."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": WRITERS_LOCK})


def sqlite_database(path: Path, migrations: Migrations = LEDGER) -> Database:
    """Return the database in a file; it is made when it is first used."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        # To open a file costs more than to read a page of it: what works at once keeps its connections.
        pool_size=16,
        pool_use_lifo=True,
        max_overflow=48,
        pool_timeout=BUSY_TIMEOUT.total_seconds(),
        connect_args={"timeout": BUSY_TIMEOUT.total_seconds(), "check_same_thread": False},
    )

    @event.listens_for(engine, "do_connect")
    def _make(*_: Any) -> None:
        make_database(path)

    @event.listens_for(engine, "connect")
    def _opened(connection: sqlite3.Connection, record: Any) -> None:
        # The driver begins no transaction of its own.
        connection.isolation_level = None
        # Only an empty file can be made so that it shrinks in steps; of another one this changes nothing.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Without the write-ahead log and a busy timeout 200 writers at once got "database is locked".
        use_wal(connection, patience=BUSY_TIMEOUT)
        record.info["file"] = file_id(path)

    @event.listens_for(engine, "checkout")
    def _is_current(_: sqlite3.Connection, record: Any, __: Any) -> None:
        # Another file may have been put in its place: a backup, or none.
        with contextlib.suppress(FileNotFoundError):
            if record.info["file"] == file_id(path):
                return
        raise DisconnectionError(f"{path} is another file now")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that begins by reading cannot wait for the lock to write: it fails at once.
        mode = connection.get_execution_options().get("tightloop_mode", Mode.DURABLE)
        if mode is Mode.READ:
            connection.exec_driver_sql("BEGIN")
            return
        # In WAL mode less would lose the last checkpoints in a power loss. The rest can be made again from histories,
        # and the disk would be waited for twice for each step of a plan.
        connection.exec_driver_sql(f"PRAGMA synchronous = {'FULL' if mode is Mode.DURABLE else 'NORMAL'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return Database(engine, str(path), upgrades=True, migrations=migrations)


def postgres_database(address: str, migrations: Migrations = LEDGER) -> Database:
    """Return the database at an address such as `postgresql://user@host/name`; it is set up if it is empty.

    Raises:
        SettingsError: the address cannot be read; or, when it is first used, its encoding is not UTF-8.
    """
    try:
        url = make_url(address).set(drivername="postgresql+psycopg")
    except SQLAlchemyError:
        raise SettingsError("database.url is not an address such as postgresql://user@host:5432/name") from None
    milliseconds = int(STATEMENT_TIMEOUT.total_seconds() * 1000)
    engine = create_engine(
        url,
        pool_size=8,
        pool_use_lifo=True,
        max_overflow=24,
        pool_timeout=BUSY_TIMEOUT.total_seconds(),
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_S,
            # A network that is cut says nothing: without this a call would wait for many minutes.
            "tcp_user_timeout": milliseconds,
            "options": f"-c statement_timeout={milliseconds} -c timezone=UTC",
            "application_name": "tightloop",
        },
    )

    name = url.render_as_string(hide_password=True).replace("+psycopg", "")

    @event.listens_for(engine, "connect", insert=True)
    def _opened(connection: Any, _: Any) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in ("UTF8", None):  # a proxy may not pass it on
            raise SettingsError(
                f"the database {name} has the encoding {encoding}, in which not every text can be kept. Name another "
                "one in database.url, made with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
            )

    return Database(engine, name, upgrades=False, migrations=migrations)
