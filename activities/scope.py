"""Where an activity works: the part that all requests of one episode share."""

from pathlib import Path

from tightloop.artifact import ArtifactRef
from tightloop.value import Sparse


class EpisodeScope(Sparse):
    """One episode in one workspace."""

    episode_id: str
    workspace: str
    """Absolute path of the git working tree that the episode was started on."""
    worktree: bool = False
    """The episode works in a git worktree of its own."""
    request: ArtifactRef | None = None
    """The stored `EpisodeRequest`; None only before the workspace is open."""
    within: str = ""
    """Id of the plan that holds the workspace and waits for this episode: its claim and its worktree serve both."""

    @property
    def state_folder(self) -> Path:
        """`<workspace>/.tightloop`: everything of this project that is not its code."""
        return Path(self.workspace) / ".tightloop"

    @property
    def root(self) -> Path:
        """The working tree of this episode."""
        return self.state_folder / "worktrees" / self.holder if self.worktree else Path(self.workspace)

    @property
    def holder(self) -> str:
        """Id under which the tree is claimed."""
        return self.within or self.episode_id
