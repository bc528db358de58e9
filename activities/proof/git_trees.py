"""Trees of a repository, read by git from its objects alone: no attributes, no filters, no working tree."""

import os
from collections.abc import Iterable
from pathlib import Path

from activities.proof.port import TreeFile
from activities.tracking.bare_git import bare_git
from activities.workspace.git_command import split_z
from tightloop.errors import WorkspaceError

AT_ONCE = 500
_SUBMODULE = 0o160000


class GitTrees:
    """Reads trees and contents."""

    def __init__(self, root: Path) -> None:
        self._git = bare_git(root)

    def files(self, tree: str) -> dict[str, TreeFile]:
        """Return all files of a tree; see the port."""
        listed = self._git.attempt("ls-tree", "-r", "-z", "--full-tree", tree)
        if listed.code != 0:
            raise WorkspaceError(f"the repository does not hold the tree {tree}: {listed.error}")
        found: dict[str, TreeFile] = {}
        for row in split_z(listed.out):
            head, _, path = row.partition(b"\t")
            mode, _, blob = head.decode().split()
            if int(mode, 8) != _SUBMODULE:
                found[os.fsdecode(path)] = TreeFile(int(mode, 8), blob)
        return found

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Return contents by id; see the port."""
        wanted, found = list(dict.fromkeys(blobs)), dict[str, bytes]()
        for at in range(0, len(wanted), AT_ONCE):
            part = wanted[at : at + AT_ONCE]
            out = self._git.run("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in part).encode())
            position = 0
            for blob in part:
                end = out.index(b"\n", position)
                size = int(out[position:end].split()[2])
                found[blob] = out[end + 1 : end + 1 + size]
                position = end + 2 + size
        return found
