"""Trees of a project, read from the store behind a working tree."""

import os
from collections.abc import Iterable

from activities.proof.port import TreeFile
from activities.workspace.port import WorkingTree


class HeldTrees:
    """Reads trees and contents by the working tree that is held."""

    def __init__(self, tree: WorkingTree) -> None:
        self._tree = tree

    def files(self, tree: str) -> dict[str, TreeFile]:
        """Return all files of a tree; see the port."""
        found = self._tree.entries(tree).items()
        return {os.fsdecode(path): TreeFile(entry.mode, entry.id) for path, entry in found}

    def read(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Return contents by id; see the port."""
        return {blob: self._tree.content(blob) for blob in dict.fromkeys(blobs)}
