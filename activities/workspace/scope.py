"""Scope of an episode on its host, and its ledger interface."""

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
    """Absolute path of the git working tree where the episode was started."""
    worktree: bool = False
    """True if the episode works in its own git worktree."""
    request: ArtifactRef | None = None
    """None only before the workspace is opened; see `stored_request`."""
    home: str = ""
    """Task queue of the host and state home that hold the workspace; empty if not known yet."""
    epoch: int = 0
    """Epoch of the copies in the remote store, which determines the host that may continue. 0: no copies."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this episode, which uses its claim and worktree."""
    put_back: bool = False
    """True if deviations from the expected tree are leftovers of this workflow's stopped or discarded work."""

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
    """Relative path; bytes that are not UTF-8 are escaped."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    renamed_from: str = ""
    """Previous path of a renamed file (at least half of its content is the same)."""

    def __str__(self) -> str:
        path = f"{self.renamed_from} => {self.path}" if self.renamed_from else self.path
        return f"{path} (binary)" if self.binary else f"{path} (+{self.added} -{self.removed})"


class TreeDiff(Value):
    """Difference of two trees."""

    files: tuple[FileChange, ...] = ()
    """At most 2 000; `files_changed` counts all."""
    files_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    patch: bytes = Field(default=b"", repr=False)
    """Unified diff of whole files, at most 2 MB, after a header that names both trees. It is either empty, or verified
    by applying it to the base. It applies where the objects of both trees are available, because large binary files are
    included by id only."""
    approximate: bool = False
    """A limit was reached: line counts are estimated, or the patch is missing or incomplete."""
    note: str = ""
    """Reason for a coarser result than usual."""


class Differ(Protocol):
    """Compares trees within a time limit, for any input."""

    def compare(self, store: Path, base: str, tree: str) -> TreeDiff:
        """Return the difference of two trees; `store` is the `store_folder` of their scope."""
        ...

    def lines(self, store: Path, tree: str) -> int:
        """Return the number of text lines in a tree."""
        ...


@dataclass(frozen=True)
class Call:
    """One activity call. All times in the ledger come from calls or from the workflow.

    Temporal records them too, so `tightloop ledger rebuild` creates identical entries from a history.
    """

    run: str
    """Run id of the workflow."""
    scheduled: datetime
    """Time of scheduling by the workflow; the same for all attempts."""
    started: datetime
    """Start time of the attempt."""


def this_call() -> Call:
    """Return the current call; only within an activity."""
    info = activity.info()
    return Call(info.workflow_run_id or "", info.scheduled_time, info.started_time)


class Ledger(Protocol):
    """Queryable record of one project: checkpoints and the timeline."""

    def record_checkpoint(self, episode_id: str, key: str, record: CheckpointRecord) -> CheckpointRecord:
        """Store a record under the next number of its episode, starting at 0.

        Idempotent: the same key returns the first record.
        """
        ...

    def adopt(self, records: Sequence[tuple[str, int, str, str]]) -> None:
        """Add checkpoints recorded on another host, each as episode, number, key and JSON; existing ones are kept."""

    def is_recorded(self, episode_id: str, key: str) -> bool:
        """Return whether a checkpoint is stored under this key."""
        ...

    def checkpoints(self, episode_id: str) -> tuple[CheckpointRecord, ...]:
        """Return all checkpoints of an episode, by number."""
        ...

    def add_event(self, event: TrailEvent) -> None:
        """Add a timeline entry, once per key."""

    def record(self, snapshot: WorkflowSnapshot) -> None:
        """Store a workflow's snapshot; the newest wins."""

    def progress(self, workflow_id: str, *, iteration: int, checks: str, cost_usd: float, at: datetime) -> None:
        """Update the progress of a recorded workflow, without a timeline entry."""

    def add_metrics(self, measured: Iterable[Metric]) -> None:
        """Store metrics of workflows; for the same kind and key the newer value wins."""

    def record_steps(self, rows: Iterable[StepRow]) -> None:
        """Store the current state of plan steps; older updates are dropped."""

    def add_steps(self, rows: Iterable[StepRow]) -> None:
        """Add the steps of an opened or revised plan; existing states are kept."""

    def close_steps(self, plan_id: str, statuses: Mapping[str, str], *, at: datetime) -> None:
        """Store the final statuses of a plan's steps; unnamed steps were completed."""

    def events(self, episode_id: str) -> tuple[TrailEvent, ...]:
        """Return the timeline of an episode, oldest first."""
        ...


Ledgers = Callable[[Path], Ledger]
"""Returns the ledger of the project in a workspace."""
