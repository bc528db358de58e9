"""Lends connections to SQLite files: outboxes and packed artifacts."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tightloop.database.sqlite_file import file_id, make_database

KEPT = 32
"""Maximum idle connections; each has three files open, and memory of its own."""
_LENDING = threading.Lock()
_IDLE: dict[tuple[int, int], sqlite3.Connection] = {}
"""By device and inode; the first was given back first."""


@contextmanager
def lent(path: Path, connect: Callable[[], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
    """Lend a connection to a file, to one caller at a time; the file is made where it is missing.

    To close the last connection moves the whole log into the file: that took a third of a worker's processor time.

    Args:
        path: the file; another one that takes its place is opened in its turn.
        connect: opens it; `check_same_thread` must be off.
    """
    make_database(path)
    file = file_id(path)
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
