"""Scope of an episode on its host, the differences between trees, and the ledger of a project."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from temporalio import activity

from tightloop.errors import ArtifactMissingError
from tightloop.value import ArtifactRef, Sparse, Value

if TYPE_CHECKING:
    from tightloop.database.project import ProjectLedger


class EpisodeScope(Sparse):
    """One episode in one workspace."""

    episode_id: str
    workspace: str
    """Absolute path of the git working tree in which the episode was started."""
    worktree: bool = False
    """True if the episode works in its own git worktree."""
    request: ArtifactRef | None = None
    """The stored request. None only before the workspace is opened. See `stored_request`."""
    home: str = ""
    """Task queue of the host and state home to which the workspace belongs. Empty if not known yet."""
    epoch: int = 0
    """Epoch of the remote store's copies, which determines the host that may continue. 0 if there are no copies."""
    within: str = ""
    """Id of the plan that waits for this episode. The episode uses the plan's claim and worktree."""
    put_back: bool = False
    """True if deviations from the expected tree are leftovers of this workflow's stopped or discarded work."""

    @property
    def stored_request(self) -> ArtifactRef:
        """Reference to the stored `EpisodeRequest`.

        Raises:
            ArtifactMissingError: the request is not stored yet.
        """
        if self.request is None:
            raise ArtifactMissingError("the episode has no saved request, because its workspace was never opened")
        return self.request

    @property
    def holder(self) -> str:
        """The id of the episode or plan that has claimed the tree."""
        return self.within or self.episode_id


class FileChange(Value):
    """One changed file."""

    path: str
    """Relative path. Bytes that are not valid UTF-8 are escaped."""
    added: int = 0
    removed: int = 0
    binary: bool = False
    renamed_from: str = ""
    """Previous path of a renamed file, at least half of whose content is the same."""

    def __str__(self) -> str:
        path = f"{self.renamed_from} => {self.path}" if self.renamed_from else self.path
        return f"{path} (binary)" if self.binary else f"{path} (+{self.added} -{self.removed})"


class TreeDiff(Value):
    """Difference between two trees."""

    files: tuple[FileChange, ...] = ()
    """Changed files, at most 2 000. `files_changed` counts all of them."""
    files_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    patch: bytes = Field(default=b"", repr=False)
    """Unified diff of whole files, at most 2 MB, after a header that names both trees.

    It is either empty or was verified by applying it to the base. It can be applied wherever the objects of both trees
    are available, because large binary files are included only by id.
    """
    approximate: bool = False
    """True if a limit was reached, so that line counts are estimated or the patch is missing or incomplete."""
    note: str = ""
    """Reason for a coarser result than usual."""


@dataclass(frozen=True)
class Call:
    """A call to an activity. All times in the ledger come from activity calls or from the workflow.

    Temporal also records these times, so `tightloop ledger rebuild` can create identical entries from a
    history.
    """

    run: str
    """The workflow's run id."""
    scheduled: datetime
    """Time at which the workflow scheduled the call, which is the same for all attempts."""
    started: datetime
    """The attempt's start time."""


def this_call() -> Call:
    """Return the activity call that is being executed. This only works inside an activity."""
    info = activity.info()
    return Call(info.workflow_run_id or "", info.scheduled_time, info.started_time)


Ledgers = Callable[[Path], "ProjectLedger"]
"""Returns the ledger of a workspace's project."""
