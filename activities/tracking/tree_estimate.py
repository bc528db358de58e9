"""Estimates the changed lines where the time is too short to compare: all lines of the files, before and after."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from activities.workspace.store.entry import TreeChange
from activities.workspace.store.objects import TreeStore
from tightloop.errors import GitError

SIZES_LIMIT = 2_000
"""Changed paths; above, finding out the sizes of their blobs takes longer than it saves."""

READ_LIMIT_BYTES = 64_000_000
BYTES_PER_LINE = 40
BINARY_PROBE_BYTES = 8_000
"""Git takes a file for binary if there is a NUL in its first bytes."""


class Estimates(NamedTuple):
    """Lines of a changed file, should it be rewritten."""

    added: int
    removed: int


def sizes_of(store: TreeStore, changes: Sequence[TreeChange]) -> dict[str, int]:
    """Return the bytes of all blobs by id, or nothing where there are too many."""
    if len(changes) > SIZES_LIMIT:
        return {}
    try:
        return {blob: store.size(blob) for blob in _ids(changes)}
    except GitError:
        return {}


def estimated(
    store: TreeStore, changes: list[TreeChange], sizes: dict[str, int], *, average: Estimates, seconds: float
) -> list[tuple[TreeChange, Estimates]]:
    """Return for each path the lines of its blobs: counted, else from their sizes, else the average."""
    if not sizes:
        return [(change, average) for change in changes]
    lines = {blob: size // BYTES_PER_LINE for blob, size in sizes.items()}
    ids = _ids(changes)
    if sum(sizes.get(blob, 0) for blob in ids) <= READ_LIMIT_BYTES:
        deadline = time.monotonic() + seconds
        for blob in ids:
            # Without the time to read them, sizes stand in for the rest.
            if time.monotonic() > deadline:
                break
            lines[blob] = _lines(store.read(blob))
    sides = ((change, change.after, change.before) for change in changes)
    return [(change, Estimates(*(lines.get(side.id, 0) if side else 0 for side in two))) for change, *two in sides]


def _ids(changes: Sequence[TreeChange]) -> list[str]:
    return list(dict.fromkeys(side.id for c in changes for side in (c.before, c.after) if side is not None))


def _lines(content: bytes) -> int:
    if b"\0" in content[:BINARY_PROBE_BYTES]:
        return 0
    return content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
