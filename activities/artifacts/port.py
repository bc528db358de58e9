"""Port of artifact stores, and writes that survive a crash."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel

from tightloop.value import ArtifactRef


class ArtifactStore(Protocol):
    """Immutable bytes by their hash. Writing the same bytes twice is harmless."""

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        """Store bytes durably and return their address.

        Args:
            content: the bytes.
            name: what they are, for readers of the history.
            media_type: their form.
            as_file: people are shown its `path`; others may share a file.

        Raises:
            StorageFullError: no room is left; nothing was written.
        """
        ...

    def get(self, ref: ArtifactRef) -> bytes:
        """Return the bytes, checked against their hash.

        Raises:
            ArtifactMissingError: the store does not hold them.
            ArtifactCorruptError: what the store holds has another hash.
        """
        ...

    def path(self, ref: ArtifactRef) -> Path:
        """Return where an artifact lies that was put `as_file`."""
        ...

    def together(self) -> AbstractContextManager["ArtifactStore"]:
        """Return a store for the block; what is put there is durable when the block ends, at the cost of one put.

        Nothing is stored where an exception leaves the block.

        Raises:
            StorageFullError: no room is left.
        """
        ...


ArtifactStores = Callable[[Path], ArtifactStore]
"""Returns the store of the project in a workspace."""

M = TypeVar("M", bound=BaseModel)


def put_model(store: ArtifactStore, model: BaseModel, *, name: str) -> ArtifactRef:
    return store.put(model.model_dump_json().encode(), name=name)


def get_model(store: ArtifactStore, ref: ArtifactRef, kind: type[M]) -> M:
    """Read a model that `put_model` stored."""
    return kind.model_validate_json(store.get(ref))


def put_text(store: ArtifactStore, content: bytes, *, name: str) -> ArtifactRef | None:
    """Store a text; nothing where it is empty."""
    return store.put(content, name=name, media_type="text/plain") if content else None


def find_model(store: ArtifactStore, ref: ArtifactRef | None, kind: type[M]) -> M | None:
    """Read a model, or nothing without a reference."""
    return None if ref is None else get_model(store, ref, kind)


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
