"""Read-only access to the stored revisions, records and artifacts of an episode or a plan on its workspace's host."""

import hashlib
import os
import re
import socket
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_number
from tightloop.episode.messages import PlanDelta, show_change, show_delta
from tightloop.episode.model import CheckpointFile
from tightloop.episode.planning import PlanRecord
from tightloop.errors import ArtifactCorruptError, ArtifactMissingError, GitError, InvalidRequestError, WorkspaceError
from tightloop.executor.message import render_plan
from tightloop.host import state_folder, store_folder
from tightloop.host.programs import find_trusted_program, trusted_path
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
    """A reference to a revision of a plan in the store."""

    plan: ArtifactRef


class Store:
    """The stored data of an episode or plan, kept in the state folder of its project."""

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
            WorkspaceError: this host does not have the records.
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
        """Return the records of all attempts, ordered by end time. Replaced attempts are included.

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
        """Return the previews of a dry run by step, in the order of their creation."""
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
        """Load an artifact and verify its hash.

        Raises:
            ArtifactMissingError: the artifact is not on this host.
            ArtifactCorruptError: the stored bytes have a different hash.
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


GIT_TIMEOUT_S = 60
# The user's git configuration may name external diff programs; disable them.
_DIFF = ("diff", "--no-ext-diff", "--no-textconv")


class FileDelta(Value):
    """The number of lines added to and removed from a file."""

    path: str
    added: int | None = None
    """Number of added lines. None for a binary file."""
    removed: int | None = None


class TreeChange:
    """The differences between the files of two checkpoints.

    Args:
        workspace: workspace of the episode.
        episode_id: workflow id of the episode.
        numbers: numbers of the two checkpoints.
        records: known checkpoints. For a fork, they include the checkpoints of its source.

    Raises:
        InvalidRequestError: a checkpoint does not exist.
        WorkspaceError: the snapshots are not on this host.
    """

    def __init__(
        self, workspace: Path, episode_id: str, numbers: Sequence[int], records: Sequence[CheckpointRecord]
    ) -> None:
        self._folder = store_folder(workspace)
        self._trees = [_find_tree(workspace, episode_id, number, records) for number in numbers]

    def files(self) -> tuple[FileDelta, ...]:
        """Return the changed files. A rename counts as a deletion and an addition."""
        # With rename detection, `-z` would write both paths as separate fields.
        lines = _git(self._folder, *_DIFF, "--no-renames", "--numstat", "-z", *self._trees).split("\0")
        return tuple(_file_delta(line) for line in lines if line)

    def text(self, *options: str) -> str:
        """Return the output of `git diff` for this change, with options such as `--stat`."""
        return _git(self._folder, *_DIFF, *options, *self._trees)


def result_patch(workspace: Path, run: str) -> str:
    """Return the changes of a successful run as a patch for `git apply`.

    Raises:
        InvalidRequestError: the run has no result on this host.
    """
    folder, names = store_folder(workspace), [f"refs/tightloop/{run}/{name}" for name in ("base", "result")]
    if not folder.is_dir() or any(_run_git(folder, "rev-parse", "--verify", "-q", name).returncode for name in names):
        raise InvalidRequestError(f"{run} has no result on this host. Only successful runs have a result")
    return _git(folder, *_DIFF, "--binary", *names)


def plan_change(store: Store, numbers: Sequence[int], records: Sequence[CheckpointRecord]) -> str:
    """Return the difference between the plans of two checkpoints, or "" if there is none.

    Raises:
        InvalidRequestError: a checkpoint does not exist.
        ArtifactMissingError: a stored plan is not on this host.
        ArtifactCorruptError: a stored plan is damaged.
    """
    files = [checkpoint_file(store, records, number) for number in numbers]
    old, new = (_plan_text(store, file) for file in files)
    if files[1].plan_delta is None:
        return show_change(old, new)
    try:
        return show_delta(old, store.load_model(files[1].plan_delta, PlanDelta))
    except ValueError:
        # A delta only applies to the plan of the preceding checkpoint; compare other pairs in full.
        return show_change(old, new)


def checkpoint_file(store: Store, records: Sequence[CheckpointRecord], number: int) -> CheckpointFile:
    """Load the content that is stored for a checkpoint.

    Raises:
        InvalidRequestError: the checkpoint does not exist.
        ArtifactMissingError: the content is not on this host.
        ArtifactCorruptError: the content is damaged.
    """
    record = next((candidate for candidate in records if candidate.number == number), None)
    if record is None or record.state is None:
        ids = ", ".join(candidate.id for candidate in records) or "none yet"
        raise InvalidRequestError(f"{store.workflow_id} has no checkpoint ckpt-{number}. Known checkpoints: {ids}")
    return store.load_model(record.state, CheckpointFile)


def read_number(episode_id: str, name: str) -> int:
    """Parse a checkpoint name, `ckpt-<n>` or `<n>`, into its number.

    Raises:
        InvalidRequestError: the text has neither form.
    """
    number = checkpoint_number(name)
    if number is None:
        raise InvalidRequestError(
            f"{name!r} is not a valid checkpoint: expected a value like ckpt-2 or 2. List checkpoints with: "
            f"tightloop checkpoints {episode_id}"
        )
    return number


def _plan_text(store: Store, file: CheckpointFile) -> str:
    """Return the text of a checkpoint's plan, or "" before the first plan."""
    message = store.load_model(file.state.plan, PlanRecord).message if file.state.plan else None
    return render_plan(message) if message is not None else ""


def _file_delta(line: str) -> FileDelta:
    # Split twice only: with `-z` git does not quote a path, which may contain tabs.
    added, removed, path = line.split("\t", 2)
    # numstat writes `-` as both counts of a binary file.
    return FileDelta(path=path) if added == "-" else FileDelta(path=path, added=int(added), removed=int(removed))


def _find_tree(workspace: Path, episode_id: str, number: int, records: Sequence[CheckpointRecord]) -> str:
    folder = store_folder(workspace)
    if folder.is_dir():
        # A fork has checkpoints of its source episode, whose refs have another name.
        listed = [record.tree for record in records if record.number == number and record.tree]
        for candidate in (f"refs/tightloop/{episode_id}/{number}", *listed):
            result = _run_git(folder, "rev-parse", "--verify", "--quiet", f"{candidate}^{{tree}}")
            if result.returncode == 0:
                return result.stdout.strip()
        # If other snapshots of the episode are here, only this one is missing, and another host does not help.
        if _run_git(folder, "for-each-ref", "--count=1", f"refs/tightloop/{episode_id}").stdout.strip():
            raise InvalidRequestError(
                f"{episode_id} has no checkpoint ckpt-{number} in {folder}. "
                f"List checkpoints with: tightloop checkpoints {episode_id} --all"
            )
    raise WorkspaceError(
        f"cannot find the snapshots of {episode_id} for {workspace} in {folder} on this host "
        f"({socket.gethostname()}). Run this command on the workspace's host, as the user who runs the worker"
    )


def _git(folder: Path, *arguments: str) -> str:
    result = _run_git(folder, *arguments)
    if result.returncode != 0:
        raise GitError(f"git {arguments[0]} failed in {folder}: {result.stderr.strip()}")
    return result.stdout


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # An inherited GIT_DIR or GIT_INDEX_FILE would redirect git to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    program = find_trusted_program("git")
    if program is None:
        raise GitError("git is not installed. Install it, for example: apt install git")
    # PATH may lead into a workspace, where a run could have replaced git.
    program.refuse_within()
    try:
        return subprocess.run(
            program.command("--no-pager", f"--git-dir={folder}", *arguments),
            cwd=folder,
            env={**environment, "PATH": trusted_path()},
            capture_output=True,
            text=True,
            # File contents need not be UTF-8.
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S} s in {folder}") from error
