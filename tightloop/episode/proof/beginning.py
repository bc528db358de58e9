"""What is kept of the beginning of an episode: what the checks said then, and what was installed."""

from tightloop.episode.proof.report import Observation
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef


class CheckBaseline(Value):
    """What a check said before the first plan."""

    run: str
    passed: bool = False
    exit_code: int | None = None
    observation: Observation = Observation()


class Beginning(Value):
    """The beginning of an episode, stored as one artifact."""

    tree: str
    """The tree before the first plan."""
    root: str = ""
    """Top of the working tree that `ignored` is about."""
    checks: tuple[CheckBaseline, ...] = ()
    ignored: ArtifactRef | None = None
    """What lay in the working tree and not in its tree: a stored manifest."""

    def check(self, run: str) -> CheckBaseline | None:
        """Return what a command said; None for one that came later."""
        return next((check for check in self.checks if check.run == run), None)
