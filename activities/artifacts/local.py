"""Artifacts in a local folder, filed under their hash."""

import errno
import hashlib
import os
import re
import tempfile
from pathlib import Path

from tightloop.artifact import ArtifactRef, reference
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, StorageFullError
from tightloop.host import private_folder, state_folder

# EFBIG is what a file size limit (`ulimit -f`) of the worker answers.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DIGEST = re.compile(r"[0-9a-f]{64}")


class LocalArtifactStore:
    """Keeps artifacts as `<folder>/ab/cdef...`; safe for many threads and processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, content: bytes, *, name: str, media_type: str = "application/json") -> ArtifactRef:
        """Store bytes durably (fsync, then rename); see the port."""
        ref = reference(content, name=name, media_type=media_type)
        path = self._path(ref)
        try:
            private_folder(path.parent)
            # The bytes are compared instead of trusting the name, so that storing again repairs a damaged file.
            if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                # `tightloop gc` frees what was stored long ago: it is needed again from now on.
                os.utime(path)
            else:
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
        """Return the bytes, checked against their hash; see the port."""
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
    return LocalArtifactStore(state_folder(workspace) / "artifacts")


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
