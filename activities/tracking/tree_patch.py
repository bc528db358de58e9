"""Recorded patches between two trees: they name both trees and are applied before they are kept."""

import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from activities.workspace.git_command import Git, split_z
from activities.workspace.store.entry import Entry, TreeChange
from tightloop.errors import GitError


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
    present = [(change.path, change.before) for change in known.values() if change.before is not None]
    old = b"".join(b"%o %s\t%s\0" % (entry.mode, entry.id.encode(), path) for path, entry in present)
    with tempfile.TemporaryDirectory(prefix="tightloop-patch-") as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        git = with_index(_without_writing(git, folder), folder)
        try:
            git.run("update-index", "-z", "--index-info", stdin=old, timeout=bound)
            git.run("apply", "--cached", "-", stdin=patch, timeout=bound)
            listed = split_z(git.run("ls-files", "-s", "-z", timeout=bound))
        except GitError:
            return None
    found: dict[bytes, Entry] = {}
    for line in listed:
        head, _, path = line.partition(b"\t")
        mode, blob, _ = head.split(b" ")
        found[path] = Entry(int(mode, 8), blob.decode())
    if found.keys() - known.keys():
        return None
    seen = [(change, found.get(change.path)) for change in known.values()]
    if any(entry not in (change.before, change.after) for change, entry in seen):
        return None
    return sum(entry == change.after for change, entry in seen)


def with_index(git: Git, folder: Path) -> Git:
    """Return the same git with an index in `folder`, which must exist."""
    return git.within({"GIT_INDEX_FILE": str(folder / "index")})


def _without_writing(git: Git, folder: Path) -> Git:
    """Return the same git, which puts new objects into `folder` instead of the store."""
    objects = git.variables["GIT_DIR"] + "/objects"
    quoted = objects.replace("\\", "\\\\").replace('"', '\\"')
    return git.within(
        {"GIT_OBJECT_DIRECTORY": str(folder / "objects"), "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}
    )
