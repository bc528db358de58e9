"""Opens the memory that the settings name."""

import threading
from pathlib import Path

from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import MemoryStore
from tightloop.host import state_home
from tightloop.host.identity import host_identity
from tightloop.memory.embedding import Embedder
from tightloop.settings import Settings

FILE = "memory.db"
_OPENING = threading.Lock()
_OPEN: dict[str, Database] = {}
"""By address or path: one for a process."""


def memory_database(settings: Settings) -> Database:
    """Return the database of the memory: that of `database.url`, or the file in the state home.

    Raises:
        SettingsError: `database.url` cannot be read.
    """
    url = settings.database.url.get_secret_value() if settings.memory.store == "auto" else ""
    path: Path = state_home() / FILE
    key = url or str(path)
    with _OPENING:
        if key not in _OPEN:
            _OPEN[key] = postgres_database(url, MEMORY) if url else sqlite_database(path, MEMORY)
        return _OPEN[key]


def open_memory(settings: Settings, embedder: Embedder | None) -> MemoryStore:
    """Return the memory; projects are named by the ids that they have on this host.

    Raises:
        SettingsError: `database.url` cannot be read.
    """
    database = memory_database(settings)
    hosts = () if database.is_file else host_identity(settings).names
    return MemoryStore(database, embedder, settings.memory, hosts=hosts)
