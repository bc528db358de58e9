"""Takes over the ledger that each project had in a file of its own, before there was one for all."""

import contextlib
import json
import logging
import sqlite3
from pathlib import Path

from tightloop.database.engine import BUSY_TIMEOUT
from tightloop.database.project import ProjectLedger
from tightloop.errors import WorkspaceError
from tightloop.ledger.model import TrailEvent

FILE = "ledger.db"
DONE = "ledger.db.migrated"
VERSION = 1
logger = logging.getLogger("tightloop")


def adopt_earlier(folder: Path, ledger: ProjectLedger) -> None:
    """Bring every row of a project's own file into the ledger, then rename the file; without one nothing is done.

    Whatever ended an earlier try, all rows come once.

    Raises:
        WorkspaceError: the file is damaged, or was written by a newer version.
    """
    path = folder / FILE
    if not path.exists():
        return
    try:
        records, lines = _read(path)
    except sqlite3.DatabaseError as error:
        if not path.exists():
            return  # somebody else has just done it
        raise WorkspaceError(
            f"the ledger {path} of an earlier version is damaged: {error}. Move it away and restore it from a backup"
        ) from error
    ledger.adopt(records, lines)
    with contextlib.suppress(FileNotFoundError):
        path.rename(folder / DONE)
        logger.info("%s: %d checkpoints and %d events moved into the ledger", folder.name, len(records), len(lines))


def _read(path: Path) -> tuple[list[tuple[str, int, str, str]], list[TrailEvent]]:
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT.total_seconds())) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise WorkspaceError(f"the ledger {path} was written by a newer tightloop. Upgrade this worker")
        if version == 0:
            return [], []  # made, and never written to
        records = connection.execute("SELECT episode_id, number, key, record FROM checkpoint").fetchall()
        lines = [
            # The same key whenever this is tried again.
            TrailEvent.model_validate(json.loads(text)).evolve(key=key or f"earlier/{number}")
            for number, key, text in connection.execute("SELECT id, key, event FROM trail ORDER BY id")
        ]
        # What is still in its log belongs to the file that is kept.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return records, lines
