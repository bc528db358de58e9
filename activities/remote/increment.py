"""The bytes of an increment: a zip file with a pack of git objects, artifacts by their digest, and the checkpoint."""

import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from activities.artifacts.port import ArtifactStore
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError
from tightloop.value.artifact import ArtifactRef

_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_PACK_NAME = re.compile(r"pack-[0-9a-f]{40}\.(?:pack|idx)")
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)
"""The same content has the same bytes, whenever it is written."""


@dataclass(frozen=True)
class Increment:
    """What a checkpoint adds to the copies of an episode."""

    record: CheckpointRecord
    pack: Mapping[str, bytes] = field(default_factory=dict)
    """Files of a git pack, by name."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    """By digest."""

    def to_bytes(self) -> bytes:
        """Return it as one object."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as file:
            parts = {"checkpoint.json": self.record.model_dump_json().encode()}
            parts |= {f"artifacts/{digest}": content for digest, content in sorted(self.artifacts.items())}
            for name, content in parts.items():
                file.writestr(zipfile.ZipInfo(name, _EPOCH_OF_ZIP), content, zipfile.ZIP_DEFLATED, 1)
            for name, content in sorted(self.pack.items()):  # compressed already
                file.writestr(zipfile.ZipInfo(f"pack/{name}", _EPOCH_OF_ZIP), content, zipfile.ZIP_STORED)
        return out.getvalue()


def read_increment(content: bytes, digest: str) -> Increment:
    """Return the increment that `to_bytes` wrote.

    Raises:
        ArtifactCorruptError: it is damaged: the bytes have another digest, or a part has another name than its own.
    """
    if digest_of(content) != digest:
        raise ArtifactCorruptError(f"the copy {digest} in the remote store is damaged: its bytes have another digest")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    artifacts = {name[10:]: part for name, part in parts.items() if name.startswith("artifacts/")}
    pack = {name[5:]: part for name, part in parts.items() if name.startswith("pack/")}
    wrong = [name for name, part in artifacts.items() if hashlib.sha256(part).hexdigest() != name]
    wrong += [name for name in pack if not _PACK_NAME.fullmatch(name)]
    if wrong:
        raise ArtifactCorruptError(
            f"the copy {digest} in the remote store is damaged: {wrong[0][:80]!r} is not what it says"
        )
    return Increment(CheckpointRecord.model_validate_json(parts["checkpoint.json"]), pack, artifacts)


def digest_of(content: bytes) -> str:
    """Return the digest in the name of an increment."""
    return hashlib.sha256(content).hexdigest()[:32]


def gather(store: ArtifactStore, roots: tuple[ArtifactRef | None, ...], known: set[str]) -> dict[str, bytes]:
    """Return the artifacts that these name, directly or through others, but for those that are known and theirs."""
    found: dict[str, bytes] = {}
    todo = [ref.sha256 for ref in roots if ref is not None]
    while todo:
        digest = todo.pop()
        if digest in known or digest in found:
            continue
        try:
            found[digest] = store.get(ArtifactRef(sha256=digest, size_bytes=0))
        except ArtifactMissingError:
            continue  # a digest of something else, or collected since
        todo += _digests(found[digest])
    return found


def _digests(content: bytes) -> Iterator[str]:
    return (found.decode() for found in _DIGEST.findall(content))
