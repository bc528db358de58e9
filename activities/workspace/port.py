"""Requests, results and interfaces of the workspace activities."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from activities.workspace.scope import Call, EpisodeScope, Ledger
from activities.workspace.store.entry import Entry
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord, RestoreTarget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeState
from tightloop.executor.model import ExecutorChoice
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.safety.drift import Drift, DriftAnswer, DriftCause
from tightloop.value import ArtifactRef, Value, format_count


class OpenRequest(Value):
    """Request to open an episode's workspace."""

    scope: EpisodeScope
    episode: EpisodeRequest
    opening: str
    """Original run id: a new run opens the workspace again, a reset run reuses what was opened."""
    is_new: bool = False
    """Reject an id that the project already knows."""
    snapshot: WorkflowSnapshot | None = None
    """Initial ledger row of the episode."""


class OpenResult(Value):
    """An opened workspace."""

    request: ArtifactRef
    tree: str
    checkpoint: CheckpointRecord
    """Initial state of the files; `ckpt-0` in a new episode."""
    notes: tuple[str, ...] = ()
    known: tuple[CheckpointRecord, ...] = ()
    """Checkpoints of an earlier episode with this id; at most `RECENT_LIMIT`."""
    home: str = ""
    """Task queue of the host that holds it."""
    copied: bool = False
    """True if checkpoints must be copied to a remote store, which that host is configured for."""
    attempt: int = 1


class AdoptRequest(Value):
    """Request at the end of a pause: keep a person's edits."""

    scope: EpisodeScope
    expected_tree: str
    drift: DriftAnswer | None = None
    """A person's decision about files changed earlier; other edits are kept."""


class AdoptResult(Value):
    """The tree after a pause."""

    tree: str
    files_changed: int = 0
    drift: Drift | None = None
    """Changes that were undone."""
    attempt: int = 1


class RestoreRequest(Value):
    """Request to restore a checkpoint."""

    scope: EpisodeScope
    target: RestoreTarget
    record: CheckpointRecord | None = None
    """The checkpoint if the run still has it; otherwise it is looked up in the ledger."""
    closed: bool = False
    """The episode had ended: its cost and checkpoints are loaded from the store as well."""


class RestoredCheckpoint(Value):
    """A checkpoint whose files were restored."""

    record: CheckpointRecord
    state: EpisodeState
    saved_tree: str | None = None
    """Previous tree on disk, which was saved."""
    bring_back: str = ""
    """Command that restores the previous tree."""
    newest: EpisodeState | None = None
    """State of the newest checkpoint, for a run that starts from the store alone."""
    known: tuple[CheckpointRecord, ...] = ()
    """All checkpoints of the episode, in the same case; at most `RECENT_LIMIT`."""
    attempt: int = 1


class ReconcileRequest(Value):
    """Request of a run that was reset in Temporal."""

    scope: EpisodeScope
    expected_tree: str
    newest_known: int
    """Number of the newest checkpoint that the run knows."""


class ReconcileResult(Value):
    """Leftovers of the discarded iterations."""

    discarded: tuple[CheckpointRecord, ...] = ()
    saved_tree: str | None = None
    bring_back: str = ""
    """Command that restores the saved tree."""
    attempt: int = 1


class AmendRequest(Value):
    """Changes to a request; empty fields are unchanged."""

    scope: EpisodeScope
    goal: str = ""
    definition_of_done: tuple[Check, ...] = ()
    executor: ExecutorChoice | None = None
    planner: str = ""


class CloseRequest(Value):
    """Request to close an episode's workspace."""

    scope: EpisodeScope
    outcome: EpisodeOutcome
    reason: str = ""
    expected_tree: str = ""
    """Tree to restore; empty: keep the current files."""
    snapshot: WorkflowSnapshot | None = None
    """Final ledger row of the episode."""


class CloseResult(Value):
    """A released workspace."""

    drift: Drift | None = None
    """Deviation from the expected tree; still on disk, or undone."""


class WorkingTree(Protocol):
    """An exclusively held working tree. Trees are git tree ids of all files that are not ignored."""

    @property
    def root(self) -> Path:
        """Top folder of the tree."""
        ...

    @property
    def processes_ended(self) -> int:
        """Number of processes of a dead holder that were killed when the tree was locked."""
        ...

    def snapshot(self) -> str:
        """Return the tree id of the files on disk, byte for byte. Does not touch the user's index."""
        ...

    def restore(self, tree: str) -> None:
        """Replace the files on disk by `tree`. Snapshot the current files before."""

    def ensure(self, expected: str, cause: DriftCause = DriftCause.OUTSIDE, *, step: str = "") -> Drift | None:
        """Ensure that `expected` is on disk; `step` names the step whose changes are undone.

        Returns:
            None if it was; otherwise the changes, which were saved under a ref and undone.
        """

    def expect(self, expected: str) -> Drift | None:
        """Ensure that `expected` is on disk, but undo no change of a person without asking.

        Tool caches, and leftovers of our own interrupted attempt, are undone as by `ensure`.

        Returns:
            None if nothing but caches differed; otherwise the changes, which were saved under a ref and undone.

        Raises:
            DriftError: somebody else changed files, and the settings require asking. Nothing was undone. Not retryable.
        """

    def settle(self, expected: str, answer: DriftAnswer) -> tuple[str, Drift | None]:
        """Apply a person's decision about changes to `expected`; changes made since then are kept.

        Returns:
            The resulting tree, and the changes that were undone after saving them under a ref.
        """
        ...

    def keep(self, name: str, tree: str) -> None:
        """Keep a tree as `refs/tightloop/<episode>/<name>` in the project's own store. Idempotent."""

    def checkout(self, tree: str, folder: Path) -> None:
        """Write all files of a tree into an empty folder: content, executable bit, symlinks.

        Only creates files and follows no symlink, so the folder may be anywhere. The tree's symlinks may lead out of
        it; readers of the folder must handle that.

        Raises:
            WorkspaceError: the folder is not empty.
            GitError: the tree is not in the store, or a file cannot be written. Retryable.
        """

    def entries(self, tree: str) -> Mapping[bytes, Entry]:
        """Return mode and blob id of all files and symlinks of a tree, by path (bytes as on disk).

        Raises:
            GitError: the tree is not in the store.
        """
        ...

    def content(self, blob: str) -> bytes:
        """Return the content of a file, or the target of a symlink, by its blob id.

        Raises:
            GitError: it is not in the store.
        """
        ...

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks; decompressing a large one at once would block the process.

        Raises:
            GitError: it is not in the store.
        """
        ...

    def size(self, blob: str) -> int:
        """Return the size of a file in bytes, without reading it.

        Raises:
            GitError: it is not in the store.
        """
        ...

    def own_process(self, pid: int) -> None:
        """Record a child process, so that the next holder kills it if this worker dies."""


class Workspaces(Protocol):
    """Working trees of this host."""

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        """Check the workspace, claim it for the episode and create its worktree if requested.

        Idempotent for the same episode.

        Args:
            scope: the episode.
            take_over: called with the id of another episode that holds the claim; True if that one has ended.

        Returns:
            Notes for the operator, as sentences (such as: ignored files are not covered).

        Raises:
            NotARepositoryError: the workspace is not the top of a git working tree.
            WorkspaceBusyError: another open episode works in the same tree.
            WorkspaceError: the workspace cannot be used for another reason.
        """
        ...

    def release(self, scope: EpisodeScope) -> None:
        """Release the claim. Idempotent."""

    def hold(self, scope: EpisodeScope) -> AbstractContextManager[WorkingTree]:
        """Lock the tree exclusively; kills leftover processes of a dead holder.

        Raises:
            WorkspaceLockedError: another attempt kept the lock for the whole waiting time. Retryable.
        """
        ...


OpenEpisodes = Callable[[str], bool]
"""Returns whether the episode with this id has ended."""


def opened_key(opening: str) -> str:
    """Return the key of the checkpoint created by opening an episode."""
    return f"opened/{opening}"


def forked_key(run: str) -> str:
    """Return the key of the first checkpoint of an episode that continues another one."""
    return f"forked/{run}"


def note_opening(ledger: Ledger, request: OpenRequest, call: Call) -> None:
    """Record the opening of an episode."""
    _note(ledger, request.scope, call, "opened", key=opened_key(request.opening))
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def note_adoption(ledger: Ledger, request: AdoptRequest, adopted: AdoptResult, call: Call) -> None:
    """Record that a person's edits were kept, if there were any."""
    if request.scope.put_back or adopted.tree == request.expected_tree:
        return
    text = f"edits of a person were kept: {format_count(adopted.files_changed, 'file')}"
    _note(ledger, request.scope, call, "adopted", text, key=f"adopted/{adopted.tree}")


def note_restoration(ledger: Ledger, request: RestoreRequest, record: CheckpointRecord, call: Call) -> None:
    """Record a restored checkpoint."""
    _note(ledger, request.scope, call, "restored", f"{record.id}: {request.target.reason}", key=f"restored/{call.run}")


def note_reset(ledger: Ledger, request: ReconcileRequest, discarded: int, call: Call) -> None:
    """Record a reset of a run."""
    _note(
        ledger,
        request.scope,
        call,
        "reset",
        f"{format_count(discarded, 'checkpoint')} discarded",
        key=f"reset/{call.run}",
    )


def note_closing(ledger: Ledger, request: CloseRequest, call: Call) -> None:
    """Record the outcome of an episode."""
    text = f"{request.outcome.value}: {request.reason}"
    _note(ledger, request.scope, call, "closed", text, key=f"closed/{call.run}")
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def _note(ledger: Ledger, scope: EpisodeScope, call: Call, kind: str, text: str = "", *, key: str) -> None:
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=text, key=key, at=call.scheduled))
