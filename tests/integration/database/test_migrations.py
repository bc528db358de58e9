"""A database is made by its migrations, and is told apart from one of another version."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from tests.support.ledger import snapshot
from tests.support.postgres import new_database
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.database.schema import METADATA
from tightloop.errors import ServiceUnavailableError, SettingsError, WorkspaceError

PROJECT = Path(__file__).parents[3]


def test_migrations_make_the_tables_of_the_schema(database: Database) -> None:
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_columns_for_outcomes_are_added_to_an_older_database(database: Database) -> None:
    with database.writing() as connection:
        for name in ("qualifier", "files_changed"):
            connection.execute(text(f"ALTER TABLE workflows DROP COLUMN {name}"))
        connection.execute(text("UPDATE alembic_version SET version_num = 'v0004_metrics'"))
    database.upgrade()
    with database.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_database_of_a_newer_version_is_refused(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v9999_later'"))
    address = str(database)
    again = postgres_database(address) if address.startswith("postgresql") else sqlite_database(Path(address))
    with pytest.raises(WorkspaceError, match="newer version of tightloop"):
        Ledger(again).projects()
    again.close()


def test_many_processes_can_make_it_at_once(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tightloop.database.engine import sqlite_database; "
        "from tightloop.database.ledger import Ledger; from tightloop.episode.checkpoint import CheckpointRecord; "
        "Ledger(sqlite_database(Path(sys.argv[1]))).of('p-1').record_checkpoint("
        "'e', sys.argv[2], CheckpointRecord(id='', iteration=0))"
    )
    path = tmp_path / "ledger.db"
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(number)], cwd=PROJECT) for number in range(4)
    ]
    assert [each.wait(120) for each in running] == [0] * 4
    assert [record.number for record in Ledger(sqlite_database(path)).checkpoints("e")] == [0, 1, 2, 3]


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    database = postgres_database("postgresql://me:sesame@127.0.0.1:9/ledger")
    with pytest.raises(ServiceUnavailableError, match=r"127\.0\.0\.1") as found:
        Ledger(database).projects()
    assert "sesame" not in str(found.value)


def test_database_that_cannot_keep_every_text_is_refused(postgres: str) -> None:
    with new_database(postgres, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as address:
        database = postgres_database(address)
        with pytest.raises(SettingsError, match=r"uses the encoding SQL_ASCII.* CREATE DATABASE .* ENCODING 'UTF8'"):
            database.upgrade()
        database.close()


def test_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "ledger.db"
    Ledger(sqlite_database(path)).of("p-1").record(snapshot("one"))
    assert {each.stat().st_mode & 0o777 for each in (path.parent, path)} == {0o700, 0o600}
