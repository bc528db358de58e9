"""Trees of a project, read from the store behind a working tree."""

import os
from collections.abc import Iterable, Iterator

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

    def read(self, blobs: Iterable[str], most_bytes: int | None = None) -> dict[str, bytes]:
        """Return contents by id; see the port."""
        wanted = (blob for blob in dict.fromkeys(blobs) if most_bytes is None or self._tree.size(blob) <= most_bytes)
        return {blob: self._tree.content(blob) for blob in wanted}

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file; see the port."""
        return self._tree.pieces(blob)
