"""What starts a run of a coder."""

from tightloop.coder.model import Bounds, CoderProgress
from tightloop.safety.seal import Seal
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

CODER_WORKFLOW_TYPE = "CoderWorkflow"


class CoderInput(Value):
    """One delivery to the coder, with the progress that the run before it made."""

    workspace: str = ""
    worktree: bool = False
    request: ArtifactRef | None = None
    """The stored `EpisodeRequest`."""
    home: str = ""
    absence_s: float = 60.0
    """As in the episode's `Queues`."""
    within: str = ""
    """Id of the workflow that holds the workspace."""
    key: str = ""
    """Of the delivery in the outbox."""
    base_tree: str = ""
    """The tree from which it begins."""
    title: str = ""
    wall_limit_s: float = 3600.0
    session: str = ""
    """Set in the runs that follow the first one, as the next two."""
    bounds: Bounds = Bounds()
    progress: CoderProgress = CoderProgress()
    worked_s: float = 0.0
    """Of the runs before."""
    sealed_as: Seal | None = None
    """What the input's seal says; set by the converter, whatever is sent."""

    @property
    def goal(self) -> str:
        """What lists show."""
        return self.title
