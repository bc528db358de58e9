"""A patch between two trees as it is recorded: with the ids of both, tried before it is kept."""

import re
import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from activities.tracking.bare_git import bare_git, with_index, without_writing
from activities.workspace.git_command import Git, split_z
from tightloop.errors import ArtifactCorruptError, GitError, InvalidRequestError

ABSENT = b"000000"
_HEAD = re.compile(
    rb"tightloop-patch 1\nbase-tree ([0-9a-f]{40,64})\nresult-tree ([0-9a-f]{40,64})\n"
    rb"holds ([0-9]+) of ([0-9]+) paths\n\n"
)


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
    with tempfile.TemporaryDirectory(prefix="tightloop-patch-") as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        git = without_writing(with_index(git, folder), folder)
        try:
            git.run("update-index", "-z", "--index-info", stdin=_index_info(known.values()), timeout=bound)
            git.run("apply", "--cached", "-", stdin=patch, timeout=bound)
            listed = split_z(git.run("ls-files", "-s", "-z", timeout=bound))
        except GitError:
            return None
    found = {path: entry.split()[:2] for entry, _, path in (line.partition(b"\t") for line in listed)}
    states = [_state(change, found.pop(change.path, None)) for change in known.values()]
    return None if found or None in states else sum(state is True for state in states)


def apply_patch(root: Path, base: str, patch: bytes) -> str:
    """Return the tree that a recorded patch makes of the tree `base` in the repository at `root`.

    Raises:
        InvalidRequestError: the patch was made for another tree, does not hold all files, or is none of ours.
        ArtifactCorruptError: it does not lead to the tree that it names.
    """
    head = _HEAD.match(patch)
    if head is None:
        raise InvalidRequestError("this is no patch of a checkpoint: the head with the ids of both trees is missing")
    wanted_base, result = head[1].decode(), head[2].decode()
    if wanted_base != base:
        raise InvalidRequestError(
            f"the patch was made for the tree {wanted_base}, not for {base}. Take the tree of the checkpoint before it"
        )
    if head[3] != head[4]:
        raise InvalidRequestError(
            f"the patch holds {int(head[3])} of {int(head[4])} changed paths only. Restore the checkpoint instead: "
            f"its tree {result} is kept in the repository"
        )
    tree = _applied(bare_git(root), base, patch, result)
    if tree != result:
        raise ArtifactCorruptError(f"the patch leads to the tree {tree}, not to {result}: it is damaged")
    return tree


def _applied(git: Git, base: str, patch: bytes, result: str) -> str:
    with tempfile.TemporaryDirectory(prefix="tightloop-patch-") as name:
        git = with_index(git, Path(name))
        git.run("read-tree", base)
        outcome = git.attempt("apply", "--cached", "-", stdin=patch)
        if outcome.code != 0:
            raise ArtifactCorruptError(f"the patch to the tree {result} does not apply: {outcome.error}")
        return git.run("write-tree").decode().strip()


def _index_info(changes: Iterable[TreeChange]) -> bytes:
    present = (change for change in changes if change.old_mode != ABSENT)
    return b"".join(b"%s %s\t%s\0" % (change.old_mode, change.old_id, change.path) for change in present)


def _state(change: TreeChange, found: list[bytes] | None) -> bool | None:
    """Tell whether a path is as in the result (True) or as in the base (False); else None."""
    seen = tuple(found) if found is not None else (ABSENT,)
    if seen == (change.new_mode, change.new_id)[: len(seen)]:
        return True
    return False if seen == (change.old_mode, change.old_id)[: len(seen)] else None
