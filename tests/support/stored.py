"""Reads what a project keeps, for tests that look for something in all of it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tightloop.value import PACKED, unpack


def content_of(path: Path) -> bytes:
    """Return the bytes of a file; of the one with small artifacts also these, as they were stored."""
    content = path.read_bytes()
    if path.name == PACKED:
        with closing(sqlite3.connect(path)) as connection:
            content += b"".join(unpack(row[0]) for row in connection.execute("SELECT content FROM artifact"))
    return content
