"""File in which an executor states that the work cannot be done.

Only this file counts, because the prose in a report often contains "cannot" or "impossible" in passing.
"""

import contextlib
import os
from typing import TYPE_CHECKING

from tightloop.executor.asking import ENDING_FILE, read_ending

if TYPE_CHECKING:
    from activities.workspace.working_tree import WorkingTree

MOST_BYTES = 4_096


def take_ending(tree: "WorkingTree", before: str) -> str:
    """Delete the ending file from a working tree. Return the reason that it gives, or "" if there is no such file.

    A file that was already in the tree `before` the delivery was not written by the executor, and is kept.
    """
    path, text = tree.root / ENDING_FILE, b""
    if not os.path.lexists(path) or ENDING_FILE.encode() in tree.entries(before):
        return ""
    # Without following a link, because the file comes from the agent.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            text = stream.read(MOST_BYTES)
    with contextlib.suppress(OSError):
        path.unlink()
    return read_ending(text.decode("utf-8", "replace"))
