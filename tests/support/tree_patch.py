"""Applies a recorded patch to its tree, to show that it leads where it says."""

import re
import tempfile
from pathlib import Path

from activities.workspace.git_command import Git, store_git
from tightloop.errors import ArtifactCorruptError, InvalidRequestError

_HEAD = re.compile(
    rb"tightloop-patch 1\nbase-tree ([0-9a-f]{40,64})\nresult-tree ([0-9a-f]{40,64})\n"
    rb"holds ([0-9]+) of ([0-9]+) paths\n\n"
)


def apply_patch(store: Path, base: str, patch: bytes) -> str:
    """Return the tree that a recorded patch makes of the tree `base` in a store.

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
    tree = _applied(store_git(store), base, patch, result)
    if tree != result:
        raise ArtifactCorruptError(f"the patch leads to the tree {tree}, not to {result}: it is damaged")
    return tree


def _applied(git: Git, base: str, patch: bytes, result: str) -> str:
    with tempfile.TemporaryDirectory(prefix="tightloop-patch-") as name:
        git = git.with_variables({"GIT_INDEX_FILE": str(Path(name) / "index")})
        git.run("read-tree", base)
        outcome = git.attempt("apply", "--cached", "-", stdin=patch)
        if outcome.code != 0:
            raise ArtifactCorruptError(f"the patch to the tree {result} does not apply: {outcome.error}")
        return git.run("write-tree").decode().strip()
