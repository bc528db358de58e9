"""Files of a working tree by a path that a plan names: never outside of the tree, never through a link."""

import os
import stat
from pathlib import Path, PurePosixPath

from tightloop.errors import InvalidRequestError

CLOSED = frozenset({".git", ".tightloop"})
"""Folders that no step touches, wherever they are."""
READ_BYTES = 8 * 1024 * 1024
NAME_BYTES = 240
"""Of one part of a path: file systems take 255, and a new file has a longer name for a moment."""
PATH_BYTES = 3_000


def below(root: Path, path: str) -> Path:
    """Return the place of a path below the root.

    Raises:
        InvalidRequestError: it is absolute, leaves the tree, leads through a link, or into `.git` or `.tightloop`.
    """
    parts = PurePosixPath(path).parts
    if not path or "\0" in path or path.startswith("/") or ".." in parts or not parts:
        raise InvalidRequestError(f"{path!r} is no path below the root of the tree. Write it as src/module.py")
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


def read_file(root: Path, path: str, limit: int = READ_BYTES) -> bytes | None:
    """Return the bytes of a regular file; None if there is none.

    Raises:
        InvalidRequestError: the path is refused, it is no regular file, or larger than `limit` bytes.
    """
    place = below(root, path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequestError(f"{path!r} cannot be read as a file: {error.strerror}") from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InvalidRequestError(f"{path!r} is no regular file")
        if state.st_size > limit:
            raise InvalidRequestError(f"{path!r} has {state.st_size} bytes, more than {limit}. Take a part of it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)
