"""Requests, results and ports of the workspace activities."""

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
from tightloop.value import ArtifactRef, Value, counted


class OpenRequest(Value):
    """An episode that begins."""

    scope: EpisodeScope
    episode: EpisodeRequest
    opening: str
    """Original run id: a new run opens the workspace again, a reset run finds what it opened before."""
    is_new: bool = False
    """Refuse an id that this project knows already."""
    snapshot: WorkflowSnapshot | None = None
    """How the episode begins, for the ledger."""


class Opened(Value):
    """A workspace that is ready."""

    request: ArtifactRef
    tree: str
    checkpoint: CheckpointRecord
    """Everything as it was found; `ckpt-0` in a new episode."""
    notes: tuple[str, ...] = ()
    known: tuple[CheckpointRecord, ...] = ()
    """Of an earlier episode with this id; at most `RECENT_LIMIT`."""
    home: str = ""
    """Task queue of the host that has it."""
    copied: bool = False
    """Checkpoints are to be copied to a remote store, which that host knows."""
    attempt: int = 1


class AdoptRequest(Value):
    """A pause that ends: edits made by a person are kept."""

    scope: EpisodeScope
    expected_tree: str
    drift: DriftAnswer | None = None
    """What a person decided about files that somebody had changed before; other edits are kept."""


class Adopted(Value):
    """The tree after a pause."""

    tree: str
    files_changed: int = 0
    drift: Drift | None = None
    """What was undone."""
    attempt: int = 1


class RestoreRequest(Value):
    """A checkpoint to go back to."""

    scope: EpisodeScope
    target: RestoreTarget
    record: CheckpointRecord | None = None
    """The checkpoint, where the run still carries it; otherwise the ledger is asked."""
    closed: bool = False
    """The episode had ended: what it spent and its checkpoints come from the store too."""


class RestoredCheckpoint(Value):
    """A checkpoint whose files are on disk again."""

    record: CheckpointRecord
    state: EpisodeState
    saved_tree: str | None = None
    """The tree that was on disk before; it was saved."""
    bring_back: str = ""
    """The command that brings that back."""
    newest: EpisodeState | None = None
    """State of the newest checkpoint, for a run that starts from the store and carries nothing."""
    known: tuple[CheckpointRecord, ...] = ()
    """All checkpoints of the episode, then too; at most `RECENT_LIMIT`."""
    attempt: int = 1


class ReconcileRequest(Value):
    """A run that was reset in Temporal."""

    scope: EpisodeScope
    expected_tree: str
    newest_known: int
    """Number of the newest checkpoint that the run knows."""


class Reconciled(Value):
    """The tree that the discarded iterations left."""

    discarded: tuple[CheckpointRecord, ...] = ()
    saved_tree: str | None = None
    bring_back: str = ""
    """The command that brings back what was saved."""
    attempt: int = 1


class AmendRequest(Value):
    """A changed request; what is empty stays as it is."""

    scope: EpisodeScope
    goal: str = ""
    definition_of_done: tuple[Check, ...] = ()
    executor: ExecutorChoice | None = None
    planner: str = ""


class CloseRequest(Value):
    """An episode that ends."""

    scope: EpisodeScope
    outcome: EpisodeOutcome
    reason: str = ""
    expected_tree: str = ""
    """The tree to leave behind; empty: as it is."""
    snapshot: WorkflowSnapshot | None = None
    """How the episode ended, for the ledger."""


class Closed(Value):
    """A workspace that was given back."""

    drift: Drift | None = None
    """What is on disk beside the tree that was left, or was undone."""


class WorkingTree(Protocol):
    """A working tree that is held exclusively. Trees are git tree ids of everything that is not ignored."""

    @property
    def root(self) -> Path:
        """Top folder of the tree."""
        ...

    @property
    def processes_ended(self) -> int:
        """How many processes of a dead holder still ran and were ended when the tree was taken."""
        ...

    def snapshot(self) -> str:
        """Return the id of the tree as it is on disk, byte for byte. The user's index is not touched."""
        ...

    def restore(self, tree: str) -> None:
        """Make the files on disk equal `tree`. What was there should be in a snapshot before."""

    def ensure(self, expected: str, cause: DriftCause = DriftCause.OUTSIDE, *, step: str = "") -> Drift | None:
        """Make sure that `expected` is on disk; with `step` a step is undone whose changes these are.

        Returns:
            None if it was; otherwise what was found: saved under a reference and undone.
        """

    def expect(self, expected: str) -> Drift | None:
        """Make sure that `expected` is on disk, and undo nothing of a person who was not asked.

        Caches of tools, and what an attempt of ours that was cut off has left, are undone as by `ensure`.

        Returns:
            None if it was, or but for caches; otherwise what was found: saved under a reference and undone.

        Raises:
            DriftError: somebody else changed files, and settings say to ask. Nothing was undone. Not retryable.
        """

    def settle(self, expected: str, answer: DriftAnswer) -> tuple[str, Drift | None]:
        """Do what a person decided about files that are not as in `expected`; what they changed since is kept.

        Returns:
            The tree that is on disk now, and what was undone: saved under a reference.
        """
        ...

    def keep(self, name: str, tree: str) -> None:
        """Keep a tree as `refs/tightloop/<episode>/<name>` in the project's own store. Idempotent."""

    def checkout(self, tree: str, folder: Path) -> None:
        """Write all files of a tree into an empty folder: bytes, executable bit, links; nothing else is in it.

        Written are new files only, and no link is followed, so the folder may be anywhere. Links of the tree may lead
        out of it: whoever reads the folder later decides about that.

        Raises:
            WorkspaceError: the folder is not empty.
            GitError: the store does not hold the tree, or a file cannot be written. Retryable.
        """

    def entries(self, tree: str) -> Mapping[bytes, Entry]:
        """Return the files and links of a tree by path (bytes as on disk), each with its mode and blob id.

        Raises:
            GitError: the store does not hold the tree.
        """
        ...

    def content(self, blob: str) -> bytes:
        """Return the bytes of a file, or the target of a link, by its blob id.

        Raises:
            GitError: the store does not hold it.
        """
        ...

    def pieces(self, blob: str) -> Iterator[bytes]:
        """Yield the bytes of a file; a large one never as a whole, which would hold up everything else in the process.

        Raises:
            GitError: the store does not hold it.
        """
        ...

    def size(self, blob: str) -> int:
        """Return the number of bytes of a file, without reading it.

        Raises:
            GitError: the store does not hold it.
        """
        ...

    def own_process(self, pid: int) -> None:
        """Note a child process, so that the next holder ends it should this worker die."""


class Workspaces(Protocol):
    """The working trees of this host."""

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        """Check the workspace, claim it for the episode and make its worktree if it wants one.

        Idempotent for the same episode.

        Args:
            scope: the episode.
            take_over: asked with the id of another episode that holds the claim; True if that one has ended.

        Returns:
            Things that a person should know, as sentences (such as: ignored files are not covered).

        Raises:
            NotARepositoryError: the workspace is not the top of a git working tree.
            WorkspaceBusyError: another open episode works in the same tree.
            WorkspaceError: the workspace cannot be used otherwise.
        """
        ...

    def release(self, scope: EpisodeScope) -> None:
        """Give the claim back. Idempotent."""

    def hold(self, scope: EpisodeScope) -> AbstractContextManager[WorkingTree]:
        """Hold the tree exclusively; ends what a dead holder left running.

        Raises:
            WorkspaceLockedError: another attempt kept holding it for the whole waiting time. Retryable.
        """
        ...


OpenEpisodes = Callable[[str], bool]
"""Returns whether the episode with this id has ended."""


def opened_key(opening: str) -> str:
    """Return the key of the checkpoint that opening an episode makes."""
    return f"opened/{opening}"


def forked_key(run: str) -> str:
    """Return the key of the checkpoint that an episode begins with which goes on from another's."""
    return f"forked/{run}"


def note_opened(ledger: Ledger, request: OpenRequest, call: Call) -> None:
    """Enter that an episode was opened."""
    _note(ledger, request.scope, call, "opened", key=opened_key(request.opening))
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def note_adopted(ledger: Ledger, request: AdoptRequest, adopted: Adopted, call: Call) -> None:
    """Enter that edits of a person were kept, if any were."""
    if request.scope.put_back or adopted.tree == request.expected_tree:
        return
    text = f"edits of a person were kept: {counted(adopted.files_changed, 'file')}"
    _note(ledger, request.scope, call, "adopted", text, key=f"adopted/{adopted.tree}")


def note_restored(ledger: Ledger, request: RestoreRequest, record: CheckpointRecord, call: Call) -> None:
    """Enter that an episode went back to a checkpoint."""
    _note(ledger, request.scope, call, "restored", f"{record.id}: {request.target.reason}", key=f"restored/{call.run}")


def note_reset(ledger: Ledger, request: ReconcileRequest, discarded: int, call: Call) -> None:
    """Enter that a run was reset."""
    _note(
        ledger, request.scope, call, "reset", f"{counted(discarded, 'checkpoint')} discarded", key=f"reset/{call.run}"
    )


def note_closed(ledger: Ledger, request: CloseRequest, call: Call) -> None:
    """Enter how an episode ended."""
    text = f"{request.outcome.value}: {request.reason}"
    _note(ledger, request.scope, call, "closed", text, key=f"closed/{call.run}")
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def _note(ledger: Ledger, scope: EpisodeScope, call: Call, kind: str, text: str = "", *, key: str) -> None:
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=text, key=key, at=call.scheduled))
