"""Read-only access to the stored revisions, records and artifacts of an episode or a plan on its workspace's host."""

import hashlib
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, WorkspaceError
from tightloop.host import state_folder
from tightloop.plan.child import StepRecord
from tightloop.plan.document import DRY_RUN, StoredPlan, file_name
from tightloop.value import FIND_PACKED, PACKED, ArtifactRef, Value, unpack

PATIENCE_S = 15.0
"""Maximum number of seconds that a read waits while a worker is writing."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Sort key of attempts without an end, which come first; it needs a time zone to be comparable.
_BEGINNING = datetime.min.replace(tzinfo=UTC)
M = TypeVar("M", bound=BaseModel)


class RevisionPlace(Value):
    """Reference to a revision of a plan in the store."""

    plan: ArtifactRef


class Store:
    """Stored data of one episode or plan in the state folder of its project."""

    def __init__(self, workspace: Path, workflow_id: str) -> None:
        self.workspace = workspace
        self.workflow_id = workflow_id
        self.folder = state_folder(workspace) / "plans" / file_name(workflow_id)

    @property
    def is_here(self) -> bool:
        """True if this host has the plan's records."""
        return self.folder.is_dir()

    def require(self) -> None:
        """Check that this host has the plan's records.

        Raises:
            WorkspaceError: this host does not have them.
        """
        if not self.is_here:
            raise WorkspaceError(
                f"cannot find the records of {self.workflow_id} in {self.folder} on this host "
                f"({socket.gethostname()}). Run this command on the workspace's host"
            )

    def revisions(self) -> tuple[StoredPlan, ...]:
        """Return all revisions of the plan, oldest first.

        Raises:
            ArtifactCorruptError: stored data cannot be read.
            ArtifactMissingError: a revision was deleted.
        """
        places = sorted((self.folder / "facts").glob("revision-*.json"))
        return tuple(self.load_model(_parse_file(path, RevisionPlace).plan, StoredPlan) for path in places)

    def records(self, step: str | None = None) -> tuple[StepRecord, ...]:
        """Return the records of all attempts, including replaced ones, ordered by end.

        Args:
            step: only return the records of this step.

        Raises:
            ArtifactCorruptError: stored data cannot be read.
        """
        pattern = "*" if step is None else file_name(step)
        step_records = [
            _record(path) for path in (self.folder / "steps").glob(f"{pattern}/*.json") if path.name[0] != "."
        ]
        return tuple(sorted(step_records, key=lambda one: (one.ended or _BEGINNING, one.step, one.attempt)))

    def previews(self) -> dict[str, str]:
        """Return the previews of a dry run by step, in the order in which they were created."""
        dry_runs = (record for record in self.records() if record.inputs_sha256 == DRY_RUN)
        return {record.step: self.text(record.outputs.get("preview", "")) for record in dry_runs}

    def text(self, value: Any) -> str:
        """Return an output as text. Long outputs are loaded from their artifact."""
        if isinstance(value, dict) and set(value) == {"artifact"}:
            return self.artifact(ArtifactRef.model_validate(value["artifact"])).decode("utf-8", "replace")
        return str(value)

    def load_model(self, ref: ArtifactRef, kind: type[M]) -> M:
        """Parse a stored model. Raises the same errors as `artifact`."""
        try:
            return kind.model_validate_json(self.artifact(ref))
        except ValidationError as error:
            raise ArtifactCorruptError(
                f"artifact '{ref.name}' ({ref.sha256[:12]}) is not a valid {kind.__name__}"
            ) from error

    def artifact(self, ref: ArtifactRef) -> bytes:
        """Load the bytes of an artifact and check them against their hash.

        Raises:
            ArtifactMissingError: the artifact is not on this host.
            ArtifactCorruptError: the stored bytes have another hash.
        """
        folder = state_folder(self.workspace) / "artifacts"
        # The reference may come from an edited file and must not lead outside the folder.
        content = _artifact(folder, ref.sha256) if _DIGEST.fullmatch(ref.sha256) else b""
        if content is None:
            raise ArtifactMissingError(
                f"cannot find artifact '{ref.name}' ({ref.sha256[:12]}) of {self.workflow_id} in {self.workspace} "
                f"on this host ({socket.gethostname()}). Run this command on the workspace's host"
            )
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise ArtifactCorruptError(
                f"artifact '{ref.name}' ({ref.sha256[:12]}) in {folder} is damaged: its contents do not match its "
                "hash. Restore the folder from a backup"
            )
        return content

    def children(self) -> Iterator["Store"]:
        """Yield the stores of the plans nested in this plan."""
        for folder in sorted(self.folder.parent.glob(f"{self.folder.name}.*")):
            if folder.is_dir():
                yield Store(self.workspace, folder.name)


def _artifact(folder: Path, digest: str) -> bytes | None:
    packed = folder / PACKED
    if packed.exists():
        try:
            # `rw` does not create the file. `ro` would fail: even readers of a write-ahead log write to its index.
            with closing(sqlite3.connect(f"{packed.as_uri()}?mode=rw", uri=True, timeout=PATIENCE_S)) as connection:
                row = connection.execute(FIND_PACKED, (digest,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise ArtifactCorruptError(f"{packed} cannot be read: {error}. Restore the file from a backup") from None
        if row is not None:
            return unpack(row[0])
    with suppress(FileNotFoundError):
        return (folder / digest[:2] / digest[2:]).read_bytes()
    return None


def _record(path: Path) -> StepRecord:
    content = path.read_bytes()
    record = _parse_file(path, StepRecord)
    # The mark contains digests, because an attempt of a later run may have the same number.
    undone_file = path.with_name(f"{path.name[:4]}.undone")
    undone = undone_file.is_file() and hashlib.sha256(content).hexdigest() in undone_file.read_text().split()
    return record.evolve(undone=undone)


def _parse_file(path: Path, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ArtifactCorruptError(
            f"{path} is damaged: it is not a valid {kind.__name__}. Restore the file from a backup, or remove the file"
        ) from error
