"""Scope of an episode on its host, and its audit log."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import Field
from temporalio import activity

from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import ArtifactMissingError
from tightloop.ledger.metrics import Metric
from tightloop.ledger.model import StepRow, TrailEvent, WorkflowSnapshot
from tightloop.value import ArtifactRef, Sparse, Value


class EpisodeScope(Sparse):
    """One episode in one workspace."""

    episode_id: str
    workspace: str
    """Absolute path of the git working tree that the episode was started on."""
    worktree: bool = False
    """The episode works in a git worktree of its own."""
    request: ArtifactRef | None = None
    """None only before the workspace is open; see `stored_request`."""
    home: str = ""
    """Task queue of the host and state home that have the workspace; empty where that is not known yet."""
    epoch: int = 0
    """Of the copies in the remote store: which host may go on. 0: there are none."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this episode: its claim and its worktree serve both."""
    put_back: bool = False
    """What is found instead of the expected tree was left by work of this workflow that was stopped or discarded."""

    @property
    def stored_request(self) -> ArtifactRef:
        """The stored `EpisodeRequest`.

        Raises:
            ArtifactMissingError: it is not stored yet.
        """
        if self.request is None:
            raise ArtifactMissingError("the episode has no stored request: its workspace was never opened")
        return self.request

    @property
    def holder(self) -> str:
        """Id under which the tree is claimed."""
        return self.within or self.episode_id


class FileChange(Value):
    """One changed file."""

    path: str
    """Relative path; bytes that are not UTF-8 are shown as escapes."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    renamed_from: str = ""
    """Its path before, if the file was renamed (at least half of it is the same)."""

    def __str__(self) -> str:
        path = f"{self.renamed_from} => {self.path}" if self.renamed_from else self.path
        return f"{path} (binary)" if self.binary else f"{path} (+{self.added} -{self.removed})"


class TreeDiff(Value):
    """The difference of two trees."""

    files: tuple[FileChange, ...] = ()
    """At most 2 000; `files_changed` counts all."""
    files_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    patch: bytes = Field(default=b"", repr=False)
    """Unified diff of whole files, at most 2 MB, behind a head that names both trees.

    Either it was applied to the base and gave the result, or it is empty. It applies where the objects of both trees
    are, because large binary files are in it by id only.
    """
    approximate: bool = False
    """A bound was reached: the lines are estimated, or the patch is missing or holds a part of the files."""
    note: str = ""
    """In which way the result is coarser than usual, and why."""


class Differ(Protocol):
    """Compares trees within a time bound, whatever the input."""

    def compare(self, store: Path, base: str, tree: str) -> TreeDiff:
        """Return the difference of two trees; `store` is the `store_folder` of their scope."""
        ...

    def lines(self, store: Path, tree: str) -> int:
        """Return how many lines of text a tree has."""
        ...


@dataclass(frozen=True)
class Call:
    """One call of an activity. All times in the ledger are those of calls, or of the workflow.

    Temporal has recorded them too: `tightloop ledger rebuild` makes the same entries from a history.
    """

    run: str
    """Run id of the workflow."""
    scheduled: datetime
    """When the workflow wanted it: the same for all attempts."""
    started: datetime
    """When the attempt began."""


def this_call() -> Call:
    """Return the call that runs now; within an activity only."""
    info = activity.info()
    return Call(info.workflow_run_id or "", info.scheduled_time, info.started_time)


class Ledger(Protocol):
    """The queryable record of one project: checkpoints and the trail."""

    def record_checkpoint(self, episode_id: str, key: str, record: CheckpointRecord) -> CheckpointRecord:
        """Give the record the next number of its episode (from 0) and keep it.

        Idempotent: the same key returns the record that was kept first.
        """
        ...

    def adopt(self, records: Sequence[tuple[str, int, str, str]]) -> None:
        """Add checkpoints that were recorded elsewhere, each as episode, number, key and JSON; known ones stay."""

    def is_recorded(self, episode_id: str, key: str) -> bool:
        """Return whether a checkpoint was kept under this key."""
        ...

    def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return all checkpoints of an episode, by number."""
        ...

    def add_event(self, event: TrailEvent) -> None:
        """Add a line to the trail, once per key."""

    def record(self, snapshot: WorkflowSnapshot) -> None:
        """Keep what a workflow says of itself; the newest wins."""

    def progress(self, workflow_id: str, *, iteration: int, checks: str, cost_usd: float, at: datetime) -> None:
        """Note how far a recorded workflow is, without a line of the trail."""

    def add_metrics(self, measured: Iterable[Metric]) -> None:
        """Keep what was measured of workflows; of two values with the same kind and key the newer one stays."""

    def record_steps(self, rows: Iterable[StepRow]) -> None:
        """Keep steps of plans as they are now; older news is dropped."""

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add the steps of a plan that was opened or revised; what was done stays."""

    def close_steps(self, plan_id: str, statuses: Mapping[str, str], *, at: datetime) -> None:
        """Note where the steps of a plan that ended stand; those that are not named were passed as done."""

    def events(self, episode_id: str) -> tuple[TrailEvent, ...]:
        """Return the trail of an episode, oldest first."""
        ...


Ledgers = Callable[[Path], Ledger]
"""Returns the ledger of the project in a workspace."""
