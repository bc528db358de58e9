"""The ports of the remote store: a bucket, and the trees that go into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from activities.workspace.scope import EpisodeScope


@dataclass(frozen=True)
class Stored:
    """An object of a bucket."""

    content: bytes
    version: str
    """Changes with every write."""


class Bucket(Protocol):
    """Named bytes that all hosts reach; what a call has written is there when it returns.

    All methods raise:
        ServiceUnavailableError: the server does not answer, or refuses. Retryable.
    """

    def read(self, name: str) -> Stored | None:
        """Return an object; None: there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or replace it."""

    def swap(self, name: str, content: bytes, version: str) -> str:
        """Write an object if its version is still this one; empty: if there is none.

        Returns:
            Its new version; empty: it was not written. Of several at once one is.
        """
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names of all objects below a folder."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects. One that is already gone is not an error."""


class TreeCopies(Protocol):
    """Trees as files of git packs, for a store on another host."""

    def pack(self, scope: EpisodeScope, tree: str, known: str) -> dict[str, bytes]:
        """Return a pack and its index, by file name, with what a tree has over one that is known there.

        Nothing is held: the files on disk are not looked at.

        Args:
            scope: the episode.
            tree: to be copied.
            known: empty: none is.
        """
        ...

    def unpack(self, scope: EpisodeScope, files: dict[str, bytes]) -> None:
        """Add the files of a pack to the store of this host. Idempotent."""

    def make_workspace(self, scope: EpisodeScope) -> None:
        """Make the folder of the workspace, as an empty git repository, where nothing is.

        Raises:
            WorkspaceError: it cannot be made.
        """
