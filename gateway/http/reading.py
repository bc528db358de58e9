"""Reads what a workflow left on this host: artifacts, and the files of its checkpoints."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.http.bodies import ChangedFile, Diff
from tightloop.client.records.changes import TreeChange, plan_change, read_number
from tightloop.client.records.store import Store
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import ArtifactMissingError
from tightloop.value.artifact import ArtifactRef

PATCH_CHARACTERS = 2_000_000
DIGEST = re.compile(r"[0-9a-f]{64}")


def references(document: Any) -> Iterator[ArtifactRef]:
    """Yield the references to artifacts in a document, each once."""
    seen: set[str] = set()
    for found in _walk(document):
        if found.sha256 not in seen:
            seen.add(found.sha256)
            yield found


def _walk(document: Any) -> Iterator[ArtifactRef]:
    if isinstance(document, dict):
        digest = document.get("sha256")
        if isinstance(digest, str) and DIGEST.fullmatch(digest) and "size_bytes" in document:
            yield ArtifactRef.model_validate(document)
        for value in document.values():
            yield from _walk(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _walk(value)


def read_artifact(
    workspace: str, workflow_id: str, wanted: str, known: Sequence[ArtifactRef]
) -> tuple[ArtifactRef, bytes]:
    """Return a stored artifact that a workflow refers to.

    Raises:
        ArtifactMissingError: it refers to no such artifact, or this host does not have it.
        ArtifactCorruptError: it is damaged.
    """
    ref = next((one for one in known if one.sha256 == wanted), None)
    if ref is None:
        raise ArtifactMissingError(
            f"{workflow_id} has no artifact {wanted[:12]!r}. List them: GET .../{workflow_id}/artifacts"
        )
    return ref, Store(Path(workspace), workflow_id).artifact(ref)


def read_diff(workspace: str, episode_id: str, names: tuple[str, str], records: Sequence[CheckpointRecord]) -> Diff:
    """Return what changed between two checkpoints.

    Raises:
        InvalidRequestError: there is no such checkpoint.
        WorkspaceError: the snapshots are not on this host.
    """
    numbers = [read_number(episode_id, name) for name in names]
    change = TreeChange(Path(workspace), episode_id, numbers, records)
    patch = change.text()
    try:
        plan = plan_change(Store(Path(workspace), episode_id), numbers, records)
    except ArtifactMissingError:
        # The files are there still.
        plan = ""
    return Diff(
        before=f"ckpt-{numbers[0]}",
        after=f"ckpt-{numbers[1]}",
        files=[ChangedFile(path=one.path, added=one.added, removed=one.removed) for one in change.files()],
        patch=patch[:PATCH_CHARACTERS],
        cut=len(patch) > PATCH_CHARACTERS,
        plan_change=plan,
    )
