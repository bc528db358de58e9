"""Private SQLite files with a write-ahead log, which ledgers, outboxes and packed artifacts share."""

import os
import sqlite3
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

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
