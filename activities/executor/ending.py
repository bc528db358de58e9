"""The file in which an executor says that the work cannot be done.

Only this file decides: prose in a report often says "cannot" or "impossible" in passing.
"""

import contextlib
import os
from pathlib import Path

from tightloop.executor.asking import ENDING_FILE, read_ending

MOST_BYTES = 4_096


def take_ending(root: Path) -> str:
    """Delete the file from the top of a working tree and return the reason in it, or "" if there is none."""
    path, text = root / ENDING_FILE, b""
    # Without following a link, because the file comes from the agent.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            text = stream.read(MOST_BYTES)
    with contextlib.suppress(OSError):
        path.unlink()
    return read_ending(text.decode("utf-8", "replace"))
