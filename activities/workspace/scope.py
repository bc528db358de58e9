"""The scope that all activity requests of one episode share."""

from tightloop.errors import ArtifactMissingError
from tightloop.value import Sparse
from tightloop.value.artifact import ArtifactRef


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
