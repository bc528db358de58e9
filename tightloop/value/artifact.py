"""References to artifacts, and durations."""

import hashlib
import re
import zlib
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

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


UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
"""What may follow the number, in seconds."""
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")


def read_seconds(text: str) -> float | None:
    """Return the seconds of a number with a unit; None: it is written in another way."""
    found = _FORM.fullmatch(text.strip())
    return float(found[1]) * UNITS[found[2]] if found else None


def _in_seconds(value: Any) -> Any:
    seconds = read_seconds(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


Duration = Annotated[timedelta, BeforeValidator(_in_seconds)]
"""A time span; read from seconds, `2h`, `2:00:00` or ISO 8601 (`PT2H`)."""
