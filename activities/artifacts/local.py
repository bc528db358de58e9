"""Artifacts in a local folder, filed under their hash."""

import errno
import hashlib
import os
import re
import tempfile
from pathlib import Path

from tightloop.artifact import ArtifactRef, reference
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, StorageFullError

# EFBIG is what a file size limit (`ulimit -f`) of the worker answers.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DIGEST = re.compile(r"[0-9a-f]{64}")


class LocalArtifactStore:
    """Keeps artifacts as `<folder>/ab/cdef...`; safe for many threads and processes at once."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is made with the first artifact."""
        self._folder = folder

    def put(self, content: bytes, *, name: str, media_type: str = "application/json") -> ArtifactRef:
        """Store bytes durably (fsync, then rename) and return their address.

        Raises:
            StorageFullError: there is no room; nothing was written.
        """
        ref = reference(content, name=name, media_type=media_type)
        path = self._path(ref)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _holds(path, content):
                write_durably(path, content)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise StorageFullError(
                f"no room for {len(content)} bytes ('{name}') in {self._folder}: {error.strerror}. "
                "Free space there, then resume"
            ) from error
        return ref

    def get(self, ref: ArtifactRef) -> bytes:
        """Return the bytes, checked against their hash.

        Raises:
            ArtifactMissingError: the store does not hold them.
            ArtifactCorruptError: what the store holds has another hash.
        """
        path = self._path(ref)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise ArtifactMissingError(
                f"artifact '{ref.name}' ({ref.sha256[:12]}) is not in {self._folder}. "
                "Restore the folder from a backup, or check that this worker runs on the host of the workspace"
            ) from None
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise ArtifactCorruptError(
                f"artifact '{ref.name}' in {path} is damaged: its bytes do not have the hash they are filed under. "
                "Restore the file from a backup"
            )
        return content

    def _path(self, ref: ArtifactRef) -> Path:
        if not _DIGEST.fullmatch(ref.sha256):
            raise ArtifactMissingError(f"'{ref.sha256[:80]}' is not the address of an artifact: 64 hexadecimal digits")
        return self._folder / ref.sha256[:2] / ref.sha256[2:]


def open_local_store(workspace: Path) -> LocalArtifactStore:
    """Return the store of the project in `workspace`."""
    return LocalArtifactStore(workspace / ".tightloop" / "artifacts")


def _holds(path: Path, content: bytes) -> bool:
    """Compare instead of trusting the name, so that storing again heals a damaged file."""
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except FileNotFoundError:
        return False


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file by one that survives a power loss; the folder must exist."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
