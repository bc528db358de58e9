"""Recorded patches between two trees: they name both trees and are applied before they are kept."""

import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.tracking.bare_git import with_index, without_writing
from activities.workspace.git_command import Git, split_z
from tightloop.errors import GitError

ABSENT = b"000000"


class TreeChange(NamedTuple):
    """One path that differs: file modes (`000000`: absent), blob ids, path."""

    old_mode: bytes
    new_mode: bytes
    old_id: bytes
    new_id: bytes
    path: bytes


def headed(base: str, tree: str, patch: bytes, *, held: int, paths: int) -> bytes:
    """Put the head before a patch; `git apply` skips it."""
    return (
        f"tightloop-patch 1\nbase-tree {base}\nresult-tree {tree}\nholds {held} of {paths} paths\n\n".encode() + patch
    )


def tried(git: Git, changes: Iterable[TreeChange], patch: bytes, bound: timedelta) -> int | None:
    """Apply a patch to the old files of the changed paths; return how many paths became as they should.

    The paths that the patch leaves as they were are not counted. None: it does not apply, takes longer than `bound` for
    a step, or makes of some path what it was in neither tree.
    """
    known = {change.path: change for change in changes}
    present = (change for change in known.values() if change.old_mode != ABSENT)
    old = b"".join(b"%s %s\t%s\0" % (change.old_mode, change.old_id, change.path) for change in present)
    with tempfile.TemporaryDirectory(prefix="tightloop-patch-") as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        git = without_writing(with_index(git, folder), folder)
        try:
            git.run("update-index", "-z", "--index-info", stdin=old, timeout=bound)
            git.run("apply", "--cached", "-", stdin=patch, timeout=bound)
            listed = split_z(git.run("ls-files", "-s", "-z", timeout=bound))
        except GitError:
            return None
    found = {path: entry.split()[:2] for entry, _, path in (line.partition(b"\t") for line in listed)}
    states = [_state(change, found.pop(change.path, None)) for change in known.values()]
    return None if found or None in states else sum(state is True for state in states)


def _state(change: TreeChange, found: list[bytes] | None) -> bool | None:
    """Tell whether a path is as in the result (True) or as in the base (False); else None."""
    seen = tuple(found) if found is not None else (ABSENT,)
    if seen == (change.new_mode, change.new_id)[: len(seen)]:
        return True
    return False if seen == (change.old_mode, change.old_id)[: len(seen)] else None
