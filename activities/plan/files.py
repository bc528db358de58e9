"""Files of a working tree by a path that a plan names: never outside of the tree, never through a link."""

import os
import stat
from pathlib import Path, PurePosixPath

from tightloop.errors import InvalidRequestError

CLOSED = frozenset({".git"})
"""Folders that no step touches, wherever they are."""
READ_BYTES = 8 * 1024 * 1024
NAME_BYTES = 240
"""Of one part of a path: file systems take 255, and a new file has a longer name for a moment."""
# PATH_MAX of Linux is 4 096, and counts the folder of the workspace too.
PATH_BYTES = 3_000


def resolve_path(root: Path, path: str) -> Path:
    """Return the place of a path below the root.

    Raises:
        InvalidRequestError: it is absolute, leaves the tree, leads through a link, or into `.git`.
    """
    parts = PurePosixPath(path).parts
    if not path or "\0" in path or path.startswith("/") or ".." in parts or not parts:
        raise InvalidRequestError(f"{path!r} is not a path below the root of the tree. Write it as src/module.py")
    # Folded: where the file system ignores case, as on macOS, `.GIT` is `.git`.
    if any(part.casefold() in CLOSED for part in parts):
        raise InvalidRequestError(f"{path!r} lies in a folder that no step may touch ({', '.join(sorted(CLOSED))})")
    if any(len(os.fsencode(part)) > NAME_BYTES for part in parts) or len(os.fsencode(path)) > PATH_BYTES:
        raise InvalidRequestError(f"{path[:80]!r}... is too long for a path. Shorten it")
    place = root
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise InvalidRequestError(f"{path!r} leads through the link {place.relative_to(root)}. Name the real path")
        if place.exists() and not place.is_dir():
            raise InvalidRequestError(f"{path!r} cannot be: {place.relative_to(root)} is a file")
    return place / parts[-1]


def read_text(root: Path, path: str) -> str | None:
    """Return a regular file as text; raises as `read_file` does, and where it is not UTF-8."""
    content = read_file(root, path)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path!r} is not UTF-8 text (byte {error.start})") from error


def read_file(root: Path, path: str) -> bytes | None:
    """Return the bytes of a regular file; None for a missing one.

    Raises:
        InvalidRequestError: the path is refused, it is not a regular file, or larger than `READ_BYTES`.
    """
    place = resolve_path(root, path)
    try:
        # Without O_NONBLOCK a named pipe would be waited for. O_NOFOLLOW: the file may be a link, or become one now.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequestError(f"{path!r} cannot be read as a file: {error.strerror}") from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InvalidRequestError(f"{path!r} is not a regular file")
        if state.st_size > READ_BYTES:
            raise InvalidRequestError(f"{path!r} has {state.st_size} bytes, more than {READ_BYTES}. Take a part of it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(READ_BYTES)
    finally:
        os.close(descriptor)
