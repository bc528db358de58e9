"""Entries of a tree."""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

REGULAR, EXECUTABLE, LINK, FOLDER = 0o100644, 0o100755, 0o120000, 0o040000
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Id of the empty tree; git knows it without storing it."""


class Entry(NamedTuple):
    """Named entry of a tree."""

    mode: int
    """`REGULAR`, `EXECUTABLE`, `LINK`, or `FOLDER` in the listing of a single tree."""
    id: str
    """40 hexadecimal digits."""


class TreeChange(NamedTuple):
    """A path whose file differs between two trees; None: no file."""

    path: bytes
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, kw_only=True)
class TreeMerge:
    """Result of merging two trees."""

    tree: str = ""
    """Empty if there are conflicts and no markers were requested."""
    conflicts: tuple[str, ...] = ()
    """Paths with overlapping changes on both sides, sorted."""
    extra_paths: tuple[str, ...] = ()
    """With markers: extra files that hold the other side of a conflict in non-text content."""


def decode_path(path: bytes) -> str:
    """Return a path as text, with invalid UTF-8 escaped."""
    return path.decode("utf-8", "backslashreplace")


def folders_above(path: bytes) -> list[bytes]:
    """Return the parent folders of a file, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return all parent folders of some files."""
    folders: set[str] = set()
    for path in paths:
        while (cut := path.rfind("/")) > 0 and (path := path[:cut]) not in folders:
            folders.add(path)
    return folders


def file_mode(mode: int) -> int:
    """Return the tree mode of a file with these permissions."""
    if stat.S_ISLNK(mode):
        return LINK
    return EXECUTABLE if mode & stat.S_IXUSR else REGULAR
