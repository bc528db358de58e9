"""Artifact store interface, and crash-safe writes."""

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
    """A store for immutable bytes, addressed by their hash. Storing the same bytes twice is harmless."""

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        """Durably store bytes and return a reference to them.

        Args:
            content: the bytes to store.
            name: description for people who read the history.
            media_type: media type of the content.
            as_file: whether to store the content as a separate file, so that people can open its `path`.

        Raises:
            StorageFullError: the disk is full. Nothing was written.
        """
        ...

    def get(self, ref: ArtifactRef) -> bytes:
        """Return the bytes of an artifact after verifying their hash.

        Raises:
            ArtifactMissingError: the store does not contain the artifact.
            ArtifactCorruptError: the hash of the stored bytes does not match.
        """
        ...

    def path(self, ref: ArtifactRef) -> Path:
        """Return the path of an artifact that was stored with `as_file`."""
        ...

    def open_batch(self) -> AbstractContextManager["ArtifactStore"]:
        """Return a store whose artifacts become durable together when the block ends.

        This costs as much as a single `put`. Nothing is stored if the block raises an error.

        Raises:
            StorageFullError: the disk is full.
        """
        ...


ArtifactStores = Callable[[Path], ArtifactStore]
"""Returns the artifact store of a workspace's project."""

M = TypeVar("M", bound=BaseModel)


def put_model(store: ArtifactStore, model: BaseModel, *, name: str) -> ArtifactRef:
    return store.put(model.model_dump_json().encode(), name=name)


def get_model(store: ArtifactStore, ref: ArtifactRef, kind: type[M]) -> M:
    """Load a model that was stored with `put_model`."""
    return kind.model_validate_json(store.get(ref))


def put_text(store: ArtifactStore, content: bytes, *, name: str) -> ArtifactRef | None:
    """Store a text as an artifact. Return None if the text is empty."""
    return store.put(content, name=name, media_type="text/plain") if content else None


def find_model(store: ArtifactStore, ref: ArtifactRef | None, kind: type[M]) -> M | None:
    """Load the model that a reference points to. Return None if there is no reference."""
    return None if ref is None else get_model(store, ref, kind)


# EFBIG: the worker's file size limit (`ulimit -f`).
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def file_stem(key: str) -> str:
    """Return the file name for a delivery or an episode.

    The name is the first 16 hex digits of the key's hash.
    """
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically and set its mode to 0600. The folder must exist."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                # Before the rename: otherwise the name could refer to an empty file after a power loss.
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that the change survives a power loss. The folder must exist."""
    replace_file(path, content, durable=True)
    # The rename changes the folder, which needs its own fsync (fsync(2)).
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
