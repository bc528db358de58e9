"""Switches an SQLite file to the write-ahead log, which ledgers and outboxes use."""

import sqlite3
import time
from datetime import timedelta

# The switch takes a lock for an instant only, but every process that opens the file for the first time wants it.
POLL_S = 0.02


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
