"""References to content that lives in the artifact store of the workspace's host."""

import hashlib
import zlib

from tightloop.value import Sparse

PACKED = "small.db"
"""Name of the SQLite file in the folder of artifacts that holds the small ones; each larger one is a file beside it."""
FIND_PACKED = "SELECT content FROM artifact WHERE sha256 = ?"


class ArtifactRef(Sparse):
    """The address of stored bytes; this, not the content, travels through Temporal."""

    sha256: str
    """Digest of the bytes, 64 hexadecimal digits; the address in the store."""
    size_bytes: int
    media_type: str = "application/json"
    name: str = ""
    """What it is, for a reader of the history: `plan`, `checks` ..."""


def reference(content: bytes, *, name: str, media_type: str = "application/json") -> ArtifactRef:
    """Return the reference under which `content` is stored."""
    return ArtifactRef(
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        media_type=media_type,
        name=name,
    )


def pack(content: bytes) -> bytes:
    """Return what the SQLite file holds of an artifact."""
    return zlib.compress(content)


def unpack(packed: bytes) -> bytes:
    """Return an artifact as it was before `pack`; what was damaged comes back as nothing, which has another hash."""
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return b""
