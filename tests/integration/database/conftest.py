"""Every test of the database runs on SQLite and on a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import new_database, postgres_server
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.ledger import Ledger


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def database_address(postgres: str) -> Iterator[str]:
    with new_database(postgres) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        found = sqlite_database(tmp_path / "home" / "ledger.db")
        yield found
        found.close()
        return
    found = postgres_database(request.getfixturevalue("database_address"))
    yield found
    found.close()


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database)
