"""The tables are made by their migrations; an older or newer database says what to do."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, text

from tests.support.memory.rows import failure, learn, pattern
from tests.support.postgres import new_database
from tightloop.database.engine import Database, Migrations, postgres_database, sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.database.memory.schema import INDEXED, MEMORY, TABLES
from tightloop.database.memory.store import MemoryStore
from tightloop.errors import ServiceUnavailableError, WorkspaceError
from tightloop.memory import HashingEmbedder
from tightloop.settings import MemorySettings

LINE = "KeyError: alpha"
SOLUTION = pattern("Add the key", "add", "alpha")
REVISION = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = {name!r}, {before!r}
branch_labels = depends_on = None
def upgrade():
    {change}
"""


def _migrations(folder: Path, *changes: str) -> Migrations:
    """Return a set of migrations that differ from those of the memory: one for each change, oldest first."""
    before = None
    for number, change in enumerate(changes, start=1):
        name = f"v000{number}_change"
        (folder / f"{name}.py").write_text(REVISION.format(name=name, before=before, change=change))
        before = name
    return Migrations(
        name="memory", versions=folder, table="memory_version", metadata=MetaData(), when_damaged="Move it away"
    )


def _store(database: Database) -> MemoryStore:
    return MemoryStore(database, HashingEmbedder(384), MemorySettings())


def _again(database: Database) -> Database:
    address = str(database)
    if address.startswith("postgresql"):
        return postgres_database(address, MEMORY)
    return sqlite_database(Path(address), MEMORY)


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


def _opened(address: str, folder: Path, *changes: str) -> Database:
    migrations = _migrations(folder, *changes)
    postgres = address.startswith("postgresql")
    return postgres_database(address, migrations) if postgres else sqlite_database(Path(address), migrations)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_older_file_is_upgraded_and_keeps_its_rows_and_an_older_server_says_how(
    kind: str, postgres: str, tmp_path: Path
) -> None:
    make = "op.create_table('t', sa.Column('one', sa.Integer()))"
    change = "op.add_column('t', sa.Column('two', sa.Text()))"
    with new_database(postgres) as server:
        address = server if kind == "postgresql" else str(tmp_path / "memory.db")
        old = _opened(address, tmp_path, make)
        with old.writing() as connection:
            connection.execute(text("INSERT INTO t (one) VALUES (1)"))
        old.close()
        new = _opened(address, tmp_path, make, change)
        if kind == "postgresql":
            # Other hosts may still write to it with the older release.
            said = r"at migration v0001_change.*tightloop ledger upgrade"
            with pytest.raises(WorkspaceError, match=said), new.reading():
                pass
            assert new.upgrade() == "v0001_change"
        with new.writing() as connection:
            connection.execute(text("INSERT INTO t (one, two) VALUES (2, 'b')"))
            assert connection.execute(text("SELECT one, two FROM t ORDER BY one")).all() == [(1, None), (2, "b")]
        new.close()


def test_newer_database_is_refused_with_what_to_do(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(text("UPDATE memory_version SET version_num = 'v9999_later'"))
    again = _again(database)
    for use in (lambda: _store(again).record_failures("p", [failure(LINE)]), lambda: _store(again).stats("p")):
        with pytest.raises(
            WorkspaceError, match=r"the memory .* was written by a newer version of tightloop.*Upgrade this worker"
        ):
            use()
    with pytest.raises(WorkspaceError, match="newer version of tightloop"):
        again.upgrade()
    again.close()


def test_damaged_file_is_told_apart_from_one_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(WorkspaceError, match=r"the memory .* is damaged: .*will then start empty"):
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
