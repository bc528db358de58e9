"""Estimates the changed lines where there is no time to compare: all lines of the files, before and after."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

from activities.tracking.tree_patch import TreeChange
from activities.workspace.git_command import Git, GitTimeoutError

SIZES_LIMIT = 2_000
"""Changed paths; above, asking git for the sizes of their blobs takes longer than it saves."""

READ_LIMIT_BYTES = 64_000_000
BYTES_PER_LINE = 40
BINARY_PROBE_BYTES = 8_000
"""Git takes a file for binary if there is a NUL in its first bytes."""

LINK = b"160000"


class Estimates(NamedTuple):
    """Lines of a changed file, should it be rewritten."""

    added: int
    removed: int


def sizes_of(git: Git, changes: tuple[TreeChange, ...], bound: timedelta) -> dict[bytes, int]:
    """Return the bytes of all blobs by id, or nothing where there are too many or there is no time."""
    ids = _ids(changes)
    if not ids or len(changes) > SIZES_LIMIT:
        return {}
    try:
        out = git.attempt("cat-file", "--batch-check", stdin=b"\n".join(ids) + b"\n", timeout=bound).out
    except GitTimeoutError:
        return {}
    fields = (line.split() for line in out.splitlines())
    return {field[0]: int(field[2]) for field in fields if len(field) == 3}


def estimated(
    git: Git, changes: list[TreeChange], sizes: dict[bytes, int], *, average: Estimates, bound: timedelta
) -> list[tuple[TreeChange, Estimates]]:
    """Return for each path the lines of its blobs: counted, else from their sizes, else the average."""
    if not sizes:
        return [(change, average) for change in changes]
    lines = {blob: size // BYTES_PER_LINE for blob, size in sizes.items()}
    ids = _ids(changes)
    if sum(sizes.get(blob, 0) for blob in ids) <= READ_LIMIT_BYTES:
        # Without the time to read them, sizes stand in for all of them.
        with suppress(GitTimeoutError):
            out = git.attempt("cat-file", "--batch", stdin=b"\n".join(ids) + b"\n", timeout=bound).out
            lines |= dict(_blobs(out))
    return [(change, Estimates(lines.get(change.new_id, 0), lines.get(change.old_id, 0))) for change in changes]


def _ids(changes: tuple[TreeChange, ...] | list[TreeChange]) -> list[bytes]:
    sides = (side for c in changes for side in ((c.old_mode, c.old_id), (c.new_mode, c.new_id)))
    return list(dict.fromkeys(blob for mode, blob in sides if mode != LINK and blob.strip(b"0")))


def _blobs(out: bytes) -> Iterator[tuple[bytes, int]]:
    """Read `id type size LF content LF` and count the lines of text."""
    position = 0
    while position < len(out):
        end = out.index(b"\n", position)
        fields = out[position:end].split()
        position = end + 1
        if len(fields) == 3:
            after = position + int(fields[2])
            binary = out.find(b"\0", position, min(after, position + BINARY_PROBE_BYTES)) >= 0
            open_end = after > position and out[after - 1 : after] != b"\n"
            yield fields[0], 0 if binary else out.count(b"\n", position, after) + open_end
            position = after + 1
