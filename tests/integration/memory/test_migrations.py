"""The tables are made by their migrations; an older or newer database says what to do."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from tests.support.memory.rows import failure, learn, pattern
from tests.support.postgres import new_database
from tightloop.database.engine import Database, Migrations, postgres_database, sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.database.memory.schema import INDEXED, MEMORY, TABLES
from tightloop.database.memory.store import MemoryStore
from tightloop.errors import ServiceUnavailableError, WorkspaceError
from tightloop.memory.model import Query
from tightloop.memory.ranking import HashingEmbedder
from tightloop.settings import MemorySettings

FIRST = "v0001_memory"
LINE = "KeyError: alpha"
SOLUTION = pattern("Add the key", "add", "alpha")


class _Old(Migrations):
    """The migrations as they were with the first one alone."""

    @property
    def head(self) -> str:
        return FIRST

    def upgrade(self, connection: Connection, to: str = FIRST) -> None:
        super().upgrade(connection, to)


OLD = _Old(
    name=MEMORY.name,
    versions=MEMORY.versions,
    table=MEMORY.table,
    metadata=MEMORY.metadata,
    when_damaged=MEMORY.when_damaged,
)


def _store(database: Database) -> MemoryStore:
    return MemoryStore(database, HashingEmbedder(384), MemorySettings())


def _again(database: Database) -> Database:
    address = str(database)
    if address.startswith("postgresql"):
        return postgres_database(address, MEMORY)
    return sqlite_database(Path(address), MEMORY)


def _older(database: Database) -> None:
    """Make the database as the first version made it, with a solved failure in it."""
    address = str(database)
    postgres = address.startswith("postgresql")
    old = postgres_database(address, OLD) if postgres else sqlite_database(Path(address), OLD)
    learn(_store(old), "p", LINE, SOLUTION)
    old.close()


@pytest.mark.filterwarnings("ignore:Did not recognize type 'vector':sqlalchemy.exc.SAWarning")
def test_migrations_make_the_tables_of_the_schema(database: Database) -> None:
    with database.reading() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": MEMORY.table,
                # Indexes of vectors are PostgreSQL's own.
                "include_object": lambda _object, name, *_: "_near_" not in (name or ""),
            },
        )
        assert compare_metadata(context, TABLES) == []


def test_postgresql_has_an_index_for_each_dimension(database: Database) -> None:
    with database.reading() as connection:
        if connection.dialect.name != "postgresql":
            pytest.skip("SQLite scans")
        found = connection.execute(text("SELECT indexname FROM pg_indexes WHERE indexdef LIKE '%hnsw%'")).scalars()
        names = {f"ix_memory_{table}_near_{size}" for table in ("failures", "patterns") for size in INDEXED}
        assert set(found) == names


def test_older_file_is_upgraded_and_keeps_its_rows_and_an_older_server_says_how(database: Database) -> None:
    _older(database)
    again = _again(database)
    if str(database).startswith("postgresql"):
        # Other hosts may still write to it with the older release.
        with pytest.raises(WorkspaceError, match=r"at migration v0001_memory.*tightloop ledger upgrade"):
            _store(again).stats("p")
        assert again.upgrade() == FIRST
    memory = _store(again)
    assert [one.pattern for one in memory.recall("p", Query(text=LINE))] == [SOLUTION]
    learn(memory, "p", "KeyError: beta", SOLUTION)
    assert memory.stats("p").solved == 2
    again.close()


def test_newer_database_is_refused_with_what_to_do(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(text("UPDATE memory_version SET version_num = 'v9999_later'"))
    again = _again(database)
    for use in (lambda: _store(again).record_failures("p", [failure(LINE)]), lambda: _store(again).stats("p")):
        with pytest.raises(
            WorkspaceError, match=r"the memory .* was written by a newer tightloop.*Upgrade this worker"
        ):
            use()
    with pytest.raises(WorkspaceError, match="newer tightloop"):
        again.upgrade()
    again.close()


def test_damaged_file_is_told_apart_from_one_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(WorkspaceError, match=r"the memory .* is damaged: .*starts empty"):
        _store(sqlite_database(path, MEMORY)).stats("p")
    path.unlink()
    assert _store(sqlite_database(path, MEMORY)).stats("p").failures == 0


def test_server_that_is_not_there_is_named_without_its_password() -> None:
    database = postgres_database("postgresql://me:sesame@127.0.0.1:9/memory", MEMORY)
    with pytest.raises(ServiceUnavailableError, match=r"127\.0\.0\.1") as found:
        _store(database).stats("p")
    assert "sesame" not in str(found.value)


def test_ledger_and_memory_share_a_database_without_sharing_migrations(postgres: str) -> None:
    with new_database(postgres) as address:
        ledger, memory = postgres_database(address), postgres_database(address, MEMORY)
        learn(_store(memory), "p", LINE, SOLUTION)
        assert Ledger(ledger).projects() == ()
        with memory.writing() as connection:
            connection.execute(text("UPDATE memory_version SET version_num = 'v9999_later'"))
        assert Ledger(ledger).projects() == ()
        ledger.close()
        memory.close()
