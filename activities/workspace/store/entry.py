"""Tree entries."""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

REGULAR, EXECUTABLE, LINK, FOLDER = 0o100644, 0o100755, 0o120000, 0o040000
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Id of the empty tree, which git knows without storing it."""


class Entry(NamedTuple):
    """A named tree entry."""

    mode: int
    """`REGULAR`, `EXECUTABLE`, `LINK`, or, in the listing of a single tree, `FOLDER`."""
    id: str
    """Object id of 40 hexadecimal digits."""


class TreeChange(NamedTuple):
    """A path whose file differs between two trees. None means that the file does not exist."""

    path: bytes
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, kw_only=True)
class TreeMerge:
    """Result of merging two trees."""

    tree: str = ""
    """Merged tree. Empty if there are conflicts and no markers were requested."""
    conflicts: tuple[str, ...] = ()
    """Sorted paths with overlapping changes on both sides."""
    extra_paths: tuple[str, ...] = ()
    """With markers, extra files that contain the other side of conflicts in non-text content."""


def decode_path(path: bytes) -> str:
    """Convert a path to text, escaping invalid UTF-8."""
    return path.decode("utf-8", "backslashreplace")


def folders_above(path: bytes) -> list[bytes]:
    """Return the parent folders of a file, outermost first."""
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return the parent folders of several files."""
    folders: set[str] = set()
    for path in paths:
        while (cut := path.rfind("/")) > 0 and (path := path[:cut]) not in folders:
            folders.add(path)
    return folders


def file_mode(mode: int) -> int:
    """Return the mode that a tree records for a file with these permissions."""
    if stat.S_ISLNK(mode):
        return LINK
    return EXECUTABLE if mode & stat.S_IXUSR else REGULAR
