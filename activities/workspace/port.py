"""Requests, results and interfaces for the workspace activities."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from activities.workspace.scope import Call, EpisodeScope
from tightloop.checks.setup import Setup
from tightloop.episode.check import Check
from tightloop.episode.checkpoint import CheckpointRecord, RestoreTarget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeState
from tightloop.episode.scenarios import HiddenScenarios
from tightloop.executor.model import ExecutorChoice
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot, with_delivered
from tightloop.run.core import ResultMode
from tightloop.run.outcome import headline, level
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.value import ArtifactRef, Value, format_count, shorten

if TYPE_CHECKING:
    from activities.workspace.working_tree import WorkingTree
    from tightloop.database.project import ProjectLedger


class OpenRequest(Value):
    """Request to open an episode's workspace."""

    scope: EpisodeScope
    episode: EpisodeRequest
    opening: str
    """Original run id. A new run opens the workspace again, and a reset run reuses what was opened."""
    is_new: bool = False
    """True to reject an id that the project already knows."""
    snapshot: WorkflowSnapshot | None = None
    """The episode's initial ledger row."""


class OpenResult(Value):
    """An opened workspace."""

    request: ArtifactRef
    tree: str
    checkpoint: CheckpointRecord
    """The files' initial state. In a new episode, this is `ckpt-0`."""
    notes: tuple[str, ...] = ()
    worktree: str = ""
    """Path of the episode's own worktree."""
    setup: Setup | None = None
    """Setup command to run, or to ask about, before the work starts."""
    known: tuple[CheckpointRecord, ...] = ()
    """Checkpoints of an earlier episode with this id, at most `RECENT_LIMIT`."""
    home: str = ""
    """Task queue of the host where the workspace is."""
    copied: bool = False
    """True if checkpoints must be copied to a remote store, as configured on that host."""
    attempt: int = 1


class SetUpRequest(Value):
    """Request to carry out or remember a decision about a setup command."""

    scope: EpisodeScope
    expected_tree: str
    setup: Setup


class SetUpResult(Value):
    """The packages that were installed, or the question that is still open."""

    setup: Setup | None = None
    """The setup to ask about next, because the command failed or the lock files changed."""
    notes: tuple[str, ...] = ()
    """Sentences about the installed packages."""
    drift: Drift | None = None
    attempt: int = 1


class AdoptRequest(Value):
    """Request to keep a person's edits when a pause ends."""

    scope: EpisodeScope
    expected_tree: str
    drift: DriftAnswer | None = None
    """A person's decision about files that were changed earlier. Other edits are kept."""


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
    """The checkpoint, if the run still has it. Otherwise it is looked up in the ledger."""
    closed: bool = False
    """True if the episode had ended. If so, its cost and checkpoints are also loaded from the store."""
    added_tree: str = ""
    """Tree of checkpoint 0 with the added test; see `EpisodeState.added_tree`. If it is empty because the episode had
    ended or is a fork, it is looked up.
    """


class RestoredCheckpoint(Value):
    """A checkpoint with restored files."""

    record: CheckpointRecord
    state: EpisodeState
    saved_tree: str | None = None
    """The previous tree on disk, which was saved."""
    bring_back: str = ""
    """Command that restores the previous tree."""
    newest: EpisodeState | None = None
    """State of the latest checkpoint, for a run that starts from the store alone."""
    known: tuple[CheckpointRecord, ...] = ()
    """All of the episode's checkpoints for such a run, at most `RECENT_LIMIT`."""
    attempt: int = 1


class ReconcileRequest(Value):
    """Request to restore files, sent by a run that was reset in Temporal."""

    scope: EpisodeScope
    expected_tree: str
    newest_known: int
    """Number of the latest checkpoint that the run knows."""


class ReconcileResult(Value):
    """Leftovers from the discarded iterations."""

    discarded: tuple[CheckpointRecord, ...] = ()
    saved_tree: str | None = None
    bring_back: str = ""
    """Command that restores the saved tree."""
    attempt: int = 1


class AmendRequest(Value):
    """Request to amend an episode's request. Fields left empty are not changed."""

    scope: EpisodeScope
    goal: str = ""
    definition_of_done: tuple[Check, ...] = ()
    scenarios: HiddenScenarios | None = None
    executor: ExecutorChoice | None = None
    planner: str = ""


class CloseRequest(Value):
    """Request to close an episode's workspace."""

    scope: EpisodeScope
    outcome: EpisodeOutcome
    reason: str = ""
    expected_tree: str = ""
    """Tree to restore. If empty, the current files are kept."""
    result: ResultMode = "tree"
    """Form in which the expected tree is delivered. An episode has only one task."""
    goal: str = ""
    """Title for the commit. Required unless `result` is `tree`."""
    snapshot: WorkflowSnapshot | None = None
    """The episode's final ledger row."""


class CloseResult(Value):
    """A released workspace."""

    drift: Drift | None = None
    """Deviation from the expected tree, which is either still on disk or was undone."""
    delivered: str = ""
    """Place of the episode's result; see `RunStatus.delivered`."""


BASE, RESULT = "base", "result"
"""Refs of a successful run's initial and final tree, below `refs/tightloop/<run>`."""
SUBJECT_CHARACTERS = 72


class ResultPart(NamedTuple):
    """Changes for one commit."""

    before: str
    """Tree in the private store."""
    after: str
    message: str


def result_message(goal: str, status: str, qualifier: str, reason: str = "") -> str:
    """Compose a commit message from the start of the goal and the outcome of the run.

    Args:
        goal: the run's goal, or the title of the step that made the changes.
        status: final status of the run, such as `succeeded`.
        qualifier: reason why the run is not a plain success. The subject line starts with its short form.
        reason: reason for the outcome.
    """
    first, _, rest = goal.strip().partition("\n")
    doubt = f"[{short}] " if (short := level(qualifier)) else ""
    subject = shorten(f"{doubt}{first}", SUBJECT_CHARACTERS)
    parts = [subject, headline(status, qualifier, reason)]
    return "\n\n".join([*parts, goal.strip()] if rest.strip() or subject != f"{doubt}{first}" else parts)


def closing_message(goal: str, snapshot: WorkflowSnapshot | None, reason: str) -> str:
    """Compose the commit message for a run's result, using the run's final ledger row."""
    status, qualifier = (snapshot.status, snapshot.qualifier) if snapshot is not None else ("succeeded", "")
    details = snapshot.details if snapshot is not None else {}
    return result_message(goal, status, qualifier, str(details.get("reason") or reason))


class Setups(Protocol):
    """Setup commands on this host."""

    def examine(
        self, scope: EpisodeScope, tree: "WorkingTree", tree_id: str, named: str = ""
    ) -> tuple[Setup | None, tuple[str, ...]]:
        """Return the setup that a tree needs, if any.

        Also return messages about missing packages that no setup installs.

        Args:
            scope: the episode or plan.
            tree: the working tree, which must be locked.
            tree_id: the tree on disk.
            named: command that the run's owner specified.
        """
        ...

    def set_up(
        self, scope: EpisodeScope, tree: "WorkingTree", tree_id: str, setup: Setup, *, cancelled: Callable[[], bool]
    ) -> SetUpResult:
        """Carry out and remember a decision about a setup command. Idempotent.

        Packages are installed unless they are cached.

        Raises:
            WorkspaceError: the packages cannot be added to the tree. The message says what to do.
        """
        ...


OpenEpisodes = Callable[[str], bool]
"""Returns whether the episode with this id has ended."""


def opened_key(opening: str) -> str:
    """Return the ledger key of the checkpoint that is created when an episode is opened."""
    return f"opened/{opening}"


def forked_key(run: str) -> str:
    """Return the ledger key of the first checkpoint of an episode that continues another one."""
    return f"forked/{run}"


def note_opening(ledger: "ProjectLedger", request: OpenRequest, call: Call) -> None:
    """Record in the ledger that an episode was opened."""
    _note(ledger, request.scope, call, "opened", key=opened_key(request.opening))
    if request.snapshot is not None:
        ledger.record(request.snapshot)


def note_adoption(ledger: "ProjectLedger", request: AdoptRequest, adopted: AdoptResult, call: Call) -> None:
    """Record in the ledger that a person's edits were kept. Do nothing if there are no edits."""
    if request.scope.put_back or adopted.tree == request.expected_tree:
        return
    text = f"kept manual edits in {format_count(adopted.files_changed, 'file')}"
    _note(ledger, request.scope, call, "adopted", text, key=f"adopted/{adopted.tree}")


def note_restoration(ledger: "ProjectLedger", request: RestoreRequest, record: CheckpointRecord, call: Call) -> None:
    """Record in the ledger that a checkpoint was restored."""
    _note(ledger, request.scope, call, "restored", f"{record.id}: {request.target.reason}", key=f"restored/{call.run}")


def note_reset(ledger: "ProjectLedger", request: ReconcileRequest, discarded: int, call: Call) -> None:
    """Record in the ledger that a run was reset in Temporal."""
    _note(
        ledger,
        request.scope,
        call,
        "reset",
        f"{format_count(discarded, 'checkpoint')} discarded",
        key=f"reset/{call.run}",
    )


def note_closing(ledger: "ProjectLedger", request: CloseRequest, call: Call, result: CloseResult | None) -> None:
    """Record an episode's outcome and the location of its result in the ledger."""
    # First, because the event makes pages read the row again.
    if request.snapshot is not None:
        ledger.record(with_delivered(request.snapshot, result.delivered if result is not None else ""))
    qualifier = request.snapshot.qualifier if request.snapshot is not None else ""
    text = headline(request.outcome.value, qualifier, request.reason)
    _note(ledger, request.scope, call, "closed", text, key=f"closed/{call.run}")


def _note(ledger: "ProjectLedger", scope: EpisodeScope, call: Call, kind: str, text: str = "", *, key: str) -> None:
    ledger.add_event(TrailEvent(episode_id=scope.episode_id, kind=kind, text=text, key=key, at=call.scheduled))
