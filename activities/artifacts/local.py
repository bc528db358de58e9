"""Artifacts in a local folder, filed under their hash."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from activities.artifacts.durable import FULL, write_durably
from activities.artifacts.packed import PackedArtifacts
from activities.artifacts.port import ArtifactStore
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, StorageFullError
from tightloop.host import private_folder, state_folder
from tightloop.value.artifact import PACKED, ArtifactRef, reference

PACKED_BYTES = 64_000
"""Larger artifacts are files: SQLite would rewrite them more than once, and collections would hold it for long."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class LocalArtifactStore:
    """Keeps small artifacts packed, larger ones as `<folder>/ab/cdef...`; safe for many threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packed = PackedArtifacts(folder / PACKED)

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        """Store bytes durably; see the port."""
        ref = reference(content, name=name, media_type=media_type)
        with self._room_for(content, name):
            if as_file or len(content) > PACKED_BYTES:
                # A collection must not remove the file between the look at it and the end of the writing.
                with self._packed.writing():
                    self._put_file(self._path(ref.sha256), content)
            else:
                self._packed.put({ref.sha256: content})
        return ref

    @contextlib.contextmanager
    def together(self) -> Iterator[ArtifactStore]:
        """Store what is put within at the end, at once; see the port."""
        pending = _Pending(self)
        yield pending
        if pending.contents:
            with self._room_for(b"".join(pending.contents.values()), pending.names):
                self._packed.put(pending.contents)

    def get(self, ref: ArtifactRef) -> bytes:
        """Return the bytes, checked against their hash; see the port."""
        if not _DIGEST.fullmatch(ref.sha256):
            raise ArtifactMissingError(f"'{ref.sha256[:80]}' is not the address of an artifact: 64 hexadecimal digits")
        content = self.find(ref.sha256)
        if content is None:
            raise ArtifactMissingError(
                f"artifact '{ref.name}' ({ref.sha256[:12]}) is not in {self._folder}. "
                "Restore the folder from a backup, or check that this worker runs on the host of the workspace"
            )
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise ArtifactCorruptError(
                f"artifact '{ref.name}' ({ref.sha256[:12]}) in {self._folder} is damaged: its bytes do not have the "
                "hash they are filed under. Restore the folder from a backup"
            )
        return content

    def find(self, digest: str) -> bytes | None:
        """Return the bytes under a digest as they are stored."""
        content = self._packed.find(digest)
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                return self._path(digest).read_bytes()
        return content

    def all(self) -> dict[str, tuple[float, int]]:
        """Return of each artifact when it was stored last, in seconds since 1970, and the bytes that it takes."""
        found = self._packed.all()
        for path in self._folder.glob("??/*"):
            digest = f"{path.parent.name}{path.name}"
            if _DIGEST.fullmatch(digest):
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    stored, size = found.get(digest, (0.0, 0))
                    found[digest] = (max(stored, stat.st_mtime), size + stat.st_size)
        return found

    def remove(self, digests: Iterable[str], *, before: float) -> None:
        """Remove what was not stored again since `before`, in seconds since 1970."""
        unwanted = list(digests)
        for path in map(self._path, unwanted):
            if path.exists():
                with self._packed.writing(), contextlib.suppress(OSError):
                    if path.stat().st_mtime < before:
                        path.unlink()
                    # Refused where others are in it, and made again by whoever wants it.
                    path.parent.rmdir()
        self._packed.remove(unwanted, before=before)

    def path(self, ref: ArtifactRef) -> Path:
        """Return the file of an artifact that was stored as one."""
        return self._path(ref.sha256)

    def _put_file(self, path: Path, content: bytes) -> None:
        private_folder(path.parent)
        # The bytes are compared instead of trusting the name, so that storing again repairs a damaged file.
        if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
            # `tightloop gc` frees what was stored long ago: it is needed again from now on.
            os.utime(path)
        else:
            write_durably(path, content)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest[2:]

    @contextlib.contextmanager
    def _room_for(self, content: bytes, name: str) -> Iterator[None]:
        """Turn what a full disk raises into an error for people."""
        try:
            yield
        except (OSError, StorageFullError) as error:
            if isinstance(error, OSError) and error.errno not in FULL:
                raise
            why = error.strerror if isinstance(error, OSError) else "the disk is full"
            raise StorageFullError(
                f"no room for {len(content)} bytes ('{name}') in {self._folder}: {why}. Free space there, then resume"
            ) from error


class _Pending:
    """Holds small artifacts until they are stored together."""

    def __init__(self, store: LocalArtifactStore) -> None:
        self._store = store
        self._refs: list[ArtifactRef] = []
        self.contents: dict[str, bytes] = {}

    @property
    def names(self) -> str:
        """What it is, for an error."""
        return "', '".join(ref.name for ref in self._refs)

    def put(
        self, content: bytes, *, name: str, media_type: str = "application/json", as_file: bool = False
    ) -> ArtifactRef:
        if as_file or len(content) > PACKED_BYTES:
            return self._store.put(content, name=name, media_type=media_type, as_file=as_file)
        ref = reference(content, name=name, media_type=media_type)
        self._refs.append(ref)
        self.contents[ref.sha256] = content
        return ref

    def get(self, ref: ArtifactRef) -> bytes:
        content = self.contents.get(ref.sha256)
        return self._store.get(ref) if content is None else content

    def path(self, ref: ArtifactRef) -> Path:
        return self._store.path(ref)

    def together(self) -> contextlib.AbstractContextManager[ArtifactStore]:
        return contextlib.nullcontext(self)


def open_local_store(workspace: Path) -> LocalArtifactStore:
    """Return the store of the project in `workspace`."""
    return LocalArtifactStore(state_folder(workspace) / "artifacts")
