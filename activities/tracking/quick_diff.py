"""Compares two trees in this process where the change is an ordinary one: a few text files, nothing renamed.

That is nearly every iteration, and takes 1 ms instead of 15. Everything else is for git in a process of its own, which
can be ended when its time is up.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import pygit2
from pygit2.enums import DiffOption

from activities.workspace.store.entry import EXECUTABLE, REGULAR, Entry, TreeChange
from activities.workspace.store.objects import TreeStore
from tightloop.errors import GitError

FILES = 100
BYTES = 256_000
"""Of all changed files; Myers takes 20 ms for 10 000 changed lines of this size."""

# Names that git writes as they are; others are quoted.
_PLAIN = re.compile(rb"[A-Za-z0-9_./@%+,=:~ #()!&$^{}\[\];-]+")
_INDEX = re.compile(rb"^index [0-9a-f]+\.\.[0-9a-f]+", re.MULTILINE)
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_LINE_END = b"\\ No newline at end of file\n"


class QuickDiff(NamedTuple):
    """The lines and the patch of an ordinary change."""

    lines: tuple[tuple[bytes, int, int], ...]
    """Path, lines added, lines removed."""
    patch: bytes
    """It was applied, and gave the files of the second tree."""


def quick_diff(store: TreeStore, base: str, tree: str, changes: Sequence[TreeChange]) -> QuickDiff | None:
    """Return the difference; None where it is not an ordinary one, or the patch does not hold what it should."""
    contents = _ordinary(store, changes)
    if contents is None:
        return None
    diff = _tree(store, base).diff_to_tree(_tree(store, tree), DiffOption.INDENT_HEURISTIC | DiffOption.FORCE_TEXT)
    found = {patch.delta.new_file.raw_path: patch for patch in diff if patch is not None}
    parts, lines = [], []
    for change in changes:
        patch = found.get(change.path)
        if patch is None:
            return None
        text = _INDEX.sub(b"index %s..%s" % (_id(change.before), _id(change.after)), patch.data, count=1)
        old = contents[change.before.id] if change.before is not None else b""
        new = contents[change.after.id] if change.after is not None else b""
        if _applied(old, text) != new:
            return None
        parts.append(text)
        _, more, less = patch.line_stats
        lines.append((change.path, more, less))
    return QuickDiff(tuple(lines), b"".join(parts))


def _ordinary(store: TreeStore, changes: Sequence[TreeChange]) -> dict[str, bytes] | None:
    """Return the content of all files by id; None: they are too many or too large, or need more than lines."""
    gone, new = (
        any(side is None for side in sides) for sides in zip(*((c.after, c.before) for c in changes), strict=True)
    )
    # What is gone and what is new may be a rename, which git finds.
    if len(changes) > FILES or (gone and new) or not all(_is_plain(change.path) for change in changes):
        return None
    sides = [side for change in changes for side in (change.before, change.after) if side is not None]
    if (
        any(side.mode not in (REGULAR, EXECUTABLE) for side in sides)
        or sum(store.size(side.id) for side in sides) > BYTES
    ):
        return None
    contents = {side.id: store.read(side.id) for side in sides}
    return None if any(b"\0" in content for content in contents.values()) else contents


def _is_plain(path: bytes) -> bool:
    # Git cannot read back a patch with an empty file in a folder whose name ends with a space.
    return _PLAIN.fullmatch(path) is not None and b" /" not in path


def _tree(store: TreeStore, tree: str) -> pygit2.Tree:
    found = store.repository[tree]
    if not isinstance(found, pygit2.Tree):
        raise GitError(f"the object {tree} in {store.folder} is not a tree")
    return found


def _id(side: Entry | None) -> bytes:
    return (side.id if side is not None else "0" * 40).encode()


def _applied(old: bytes, patch: bytes) -> bytes | None:
    """Apply the hunks for one file strictly; None: they do not fit."""
    begin = re.search(rb"^@@ ", patch, re.MULTILINE)
    if begin is None:
        return old
    lines = old.split(b"\n")
    source = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    result: list[bytes] = []
    place = 0
    rows = [row + b"\n" for row in patch[begin.start() :].split(b"\n")[:-1]]
    for number, row in enumerate(rows):
        if (hunk := _HUNK.match(row)) is not None:
            start = int(hunk[1]) - (hunk[2] != b"0")
            if start < place:
                return None
            result += source[place:start]
            place = start
            continue
        if row == _NO_LINE_END:
            continue
        body = row[1:]
        if number + 1 < len(rows) and rows[number + 1] == _NO_LINE_END:
            body = body[:-1]
        if row[:1] in (b" ", b"-"):
            if place >= len(source) or source[place] != body:
                return None
            place += 1
        if row[:1] in (b" ", b"+"):
            result.append(body)
    return b"".join((*result, *source[place:]))
