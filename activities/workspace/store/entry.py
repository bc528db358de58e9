"""Names and kinds of what a tree holds."""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

REGULAR, EXECUTABLE, LINK, FOLDER = 0o100644, 0o100755, 0o120000, 0o040000
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Id of the tree without files; known to git without being stored."""


class Entry(NamedTuple):
    """What a tree holds under a name."""

    mode: int
    """`REGULAR`, `EXECUTABLE`, `LINK`, or `FOLDER` where trees are listed one by one."""
    id: str
    """40 hexadecimal digits."""


class TreeChange(NamedTuple):
    """A path whose file differs between two trees; None: the file is missing."""

    path: bytes
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, kw_only=True)
class TreeMerge:
    """The changes of two trees in one."""

    tree: str = ""
    """Empty where there are conflicts and no markers were asked for."""
    conflicts: tuple[str, ...] = ()
    """Paths that both sides changed in the same places, sorted."""
    beside: tuple[str, ...] = ()
    """With markers: files that hold the other side of a conflict which no text can show."""


def shown(path: bytes) -> str:
    """Return a path as it can be written as text."""
    return path.decode("utf-8", "backslashreplace")


def folders_above(path: bytes) -> list[bytes]:
    """Return the folders on the way to a file."""
    parts = path.split(b"/")
    return [b"/".join(parts[:length]) for length in range(1, len(parts))]


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return all folders on the way to some files."""
    folders: set[str] = set()
    for path in paths:
        while (cut := path.rfind("/")) > 0 and (path := path[:cut]) not in folders:
            folders.add(path)
    return folders


def file_mode(mode: int) -> int:
    """Return the mode in a tree of a file with these permissions."""
    if stat.S_ISLNK(mode):
        return LINK
    return EXECUTABLE if mode & stat.S_IXUSR else REGULAR
