"""The port of the artifact store."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel

from tightloop.artifact import ArtifactRef


class ArtifactStore(Protocol):
    """Immutable bytes by their hash. Writing the same bytes twice is harmless."""

    def put(self, content: bytes, *, name: str, media_type: str = "application/json") -> ArtifactRef:
        """Store bytes durably and return their address.

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


ArtifactStores = Callable[[Path], ArtifactStore]
"""Returns the store of the project in a workspace."""

M = TypeVar("M", bound=BaseModel)


def put_model(store: ArtifactStore, model: BaseModel, *, name: str) -> ArtifactRef:
    """Store a model as JSON."""
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
