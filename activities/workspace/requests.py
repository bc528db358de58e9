"""What the activities of workspaces are asked and answer."""

from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord, RestoreTarget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeState
from tightloop.executor.model import ExecutorChoice
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef


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
