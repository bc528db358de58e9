"""The scope that all activity requests of one episode share."""

import re
from pathlib import Path

from tightloop.artifact import ArtifactRef
from tightloop.errors import ArtifactMissingError, WorkspaceError
from tightloop.host import state_folder, store_folder
from tightloop.value import Sparse

# As in ids that the client lets through; ids of the steps of a plan are longer (`child_id`).
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,199}")


class EpisodeScope(Sparse):
    """One episode in one workspace."""

    episode_id: str
    workspace: str
    """Absolute path of the git working tree that the episode was started on."""
    worktree: bool = False
    """The episode works in a git worktree of its own."""
    request: ArtifactRef | None = None
    """None only before the workspace is open; see `stored_request`."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this episode: its claim and its worktree serve both."""

    @property
    def stored_request(self) -> ArtifactRef:
        """The stored `EpisodeRequest`.

        Raises:
            ArtifactMissingError: there is none yet.
        """
        if self.request is None:
            raise ArtifactMissingError("the episode has no stored request: its workspace was never opened")
        return self.request

    @property
    def state_folder(self) -> Path:
        """Everything of this project that is not its code; in the state home of the worker's host."""
        return state_folder(Path(self.workspace))

    @property
    def store_folder(self) -> Path:
        """The private git folder with all snapshots of the project, of its worktrees too."""
        return store_folder(Path(self.workspace))

    @property
    def root(self) -> Path:
        """The working tree of this episode.

        Raises:
            WorkspaceError: the id cannot be the name of a worktree; the path would leave our folder.
        """
        if not self.worktree:
            return Path(self.workspace)
        if not _NAME.fullmatch(self.holder):
            raise WorkspaceError(
                f"{self.holder[:80]!r} cannot be the name of a worktree: use letters, digits, '-', '_' and single '.'"
            )
        return self.state_folder / "worktrees" / self.holder

    @property
    def holder(self) -> str:
        """Id under which the tree is claimed."""
        return self.within or self.episode_id
