"""Fetched documents of a project: content by hash, and for each URL when and from where it came."""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from activities.workspace.ownership import write_atomically
from tightloop.value import Value

DOCUMENTS_LIMIT = 5_000
"""How many documents a search looks at, the newest ones."""


class CachedDocument(Value):
    """Where a document came from."""

    url: str
    """As it was asked for."""
    final_url: str
    fetched_at: datetime
    """When the service last said that this is the content."""
    sha256: str
    media_type: str = ""
    """With `charset` where it was told."""
    size: int = 0
    title: str = ""
    etag: str = ""
    last_modified: str = ""


class WebCache:
    """The folder `cache` in the state folder of a project. Thread-safe; a damaged entry counts as missing."""

    def __init__(self, state_folder: Path) -> None:
        """Use the cache of the project with this state folder; it is made with the first document."""
        self._folder = state_folder / "cache"

    def find(self, url: str) -> CachedDocument | None:
        """Return what is known of a URL, if its content is there and whole."""
        document = _read(self._entry(url))
        return document if document is not None and self.content(document) is not None else None

    def content(self, document: CachedDocument) -> bytes | None:
        """Return the bytes; None where they are gone or damaged."""
        try:
            content = self._content(document.sha256).read_bytes()
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == document.sha256 else None

    def put(self, document: CachedDocument, content: bytes | None = None) -> None:
        """Keep a document; without content only what is known of it."""
        # The content first: an entry never names what is not there.
        if content is not None:
            write_atomically(self._content(document.sha256), content)
        write_atomically(self._entry(document.url), document.model_dump_json(indent=1).encode())

    def all(self) -> Iterator[CachedDocument]:
        """Return what is there, one for each content, in the order of URLs; at most `DOCUMENTS_LIMIT`, the newest."""
        found = [document for path in self._folder.glob("urls/*.json") if (document := _read(path)) is not None]
        newest = sorted(found, key=lambda document: (document.fetched_at, document.url))[-DOCUMENTS_LIMIT:]
        yield from sorted({document.sha256: document for document in newest}.values(), key=lambda one: one.url)

    def _entry(self, url: str) -> Path:
        return self._folder / "urls" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"

    def _content(self, sha256: str) -> Path:
        return self._folder / "content" / sha256[:2] / sha256[2:]


def _read(path: Path) -> CachedDocument | None:
    try:
        return CachedDocument.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
