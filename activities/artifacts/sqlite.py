"""What ledgers and outboxes share: private SQLite files with a write-ahead log."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from tightloop.host import private_folder

# The switch takes a lock for an instant only, but every process that opens the file for the first time wants it.
POLL_S = 0.02
KEPT = 32
"""Maximum idle connections; each has three files open, and memory of its own."""
_CREATING = threading.Lock()
_LENDING = threading.Lock()
_IDLE: dict[tuple[int, int], sqlite3.Connection] = {}
"""By device and inode; the first was given back first."""


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


@contextmanager
def lent(path: Path, connect: Callable[[], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
    """Lend a connection to a file, to one caller at a time; the file is made where it is missing.

    To close the last connection moves the whole log into the file: that took a third of a worker's processor time.

    Args:
        path: the file; another one that takes its place is opened in its turn.
        connect: opens it; `check_same_thread` must be off.
    """
    make_database(path)
    found = path.stat()
    file = (found.st_dev, found.st_ino)
    with _LENDING:
        connection = _IDLE.pop(file, None)
    connection = connection or connect()
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    with _LENDING:
        unwanted = [connection] if file in _IDLE else []
        _IDLE.setdefault(file, connection)
        if len(_IDLE) > KEPT:
            unwanted.append(_IDLE.pop(next(iter(_IDLE))))
    for one in unwanted:
        one.close()


def close_idle() -> None:
    """Close what is not lent, so that each file is complete without its log."""
    with _LENDING:
        connections = list(_IDLE.values())
        _IDLE.clear()
    for connection in connections:
        connection.close()
