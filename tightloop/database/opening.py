"""Opens the ledger that the settings name, and that of this host.

The file in the state home is always written; where the settings name a PostgreSQL database, a worker brings its rows
there, and readers read there.
"""

import threading
from pathlib import Path

from tightloop.database.earlier import adopt_earlier
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.database.project import ProjectLedger
from tightloop.host import state_folder, state_home
from tightloop.host.identity import host_identity
from tightloop.ledger.model import ProjectLine
from tightloop.settings import Settings

FILE = "ledger.db"
_OPENING = threading.Lock()
_OPEN: dict[Path, Database] = {}
"""By path: the environment may name another state home later."""


def open_ledger(settings: Settings) -> Ledger:
    """Return the ledger to read: PostgreSQL where `database.url` is set, else the one of this host.

    Raises:
        SettingsError: `database.url` cannot be read.
    """
    url = settings.database.url.get_secret_value()
    return Ledger(postgres_database(url)) if url else local_ledger()


def local_ledger(home: Path | None = None) -> Ledger:
    """Return the ledger of this host, in the state home or in another one."""
    return Ledger(local_database(home))


def local_database(home: Path | None = None) -> Database:
    """Return the database in the state home, or in another one; one for a process."""
    path = (home or state_home()) / FILE
    with _OPENING:
        if path not in _OPEN:
            _OPEN[path] = sqlite_database(path)
        return _OPEN[path]


def open_project(workspace: Path, host: str = "") -> ProjectLedger:
    """Return the ledger of the project in `workspace`, on this host.

    Args:
        workspace: the top of its working tree.
        host: the name of this host by the settings; empty: the one that the state home has.

    Raises:
        WorkspaceError: the project has a ledger of an earlier version, which is damaged.
    """
    line = ProjectLine(id="", name=workspace.name, workspace=str(workspace), host=host or host_identity().name)
    return open_state(state_folder(workspace), line)


def open_state(folder: Path, line: ProjectLine | None = None) -> ProjectLedger:
    """Return the ledger of the project that has this state folder.

    Raises:
        WorkspaceError: the project has a ledger of an earlier version, which is damaged.
    """
    line = (line or ProjectLine(id="", name="")).evolve(id=folder.name)
    ledger = local_ledger(folder.parent.parent).opened(line)
    adopt_earlier(folder, ledger)
    return ledger


def close_ledgers() -> None:
    """Close idle connections, so that the files are complete without their logs."""
    with _OPENING:
        for database in _OPEN.values():
            database.close()
