"""Every test of the memory runs on SQLite and on a real PostgreSQL with pgvector."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import new_database, postgres_server
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import MemoryStore
from tightloop.memory import HashingEmbedder
from tightloop.settings import MemorySettings


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        found = sqlite_database(tmp_path / "home" / "memory.db", MEMORY)
        yield found
        found.close()
        return
    with new_database(request.getfixturevalue("postgres")) as address:
        found = postgres_database(address, MEMORY)
        yield found
        found.close()


@pytest.fixture
def memory(database: Database) -> MemoryStore:
    return MemoryStore(database, HashingEmbedder(384), MemorySettings())
