"""Private files: their names, and how they are replaced so that they survive a power loss."""

import errno
import hashlib
import os
import tempfile
from pathlib import Path

# EFBIG is what a file size limit (`ulimit -f`) of the worker answers.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def file_stem(key: str) -> str:
    """Return the name of the files of a delivery or an episode: 16 hex digits of its key."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file, so that no reader ever sees a part of it; mode 0600. The folder must exist."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                # Before the rename: otherwise the new name could lead to an empty file after a power loss.
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file by one that survives a power loss; the folder must exist."""
    replace_file(path, content, durable=True)
    # The rename is an entry of the folder: it needs an fsync of its own (fsync(2)).
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
