"""What the activities of the proof are asked for, and what they answer."""

from activities.workspace.scope import EpisodeScope
from tightloop.episode.check import Verification
from tightloop.episode.proof import ProofRule, ProofVerdict
from tightloop.safety.drift import Drift
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef


class BeginRequest(Value):
    """The tree before the first plan of an episode, or before the first step of a plan."""

    scope: EpisodeScope
    expected_tree: str
    plan: ArtifactRef | None = None
    """The stored plan that has the definition of done; None: the request of the episode has it."""
    base_tree: str = ""
    """Set where the definition of done came later than the work: the tree that this began with. No check is run."""
    inherited: ArtifactRef | None = None
    """The beginning of the episode that this one was forked from: its tests count."""
    compare_with: ArtifactRef | None = None
    """The report before this one."""


class Begun(Value):
    """What the checks say, and what is kept to compare with."""

    verification: Verification
    beginning: ArtifactRef


class ProveRequest(Value):
    """A tree on which all checks passed."""

    scope: EpisodeScope
    expected_tree: str
    beginning: ArtifactRef | None = None
    plan: ArtifactRef | None = None
    """As in `BeginRequest`."""
    goal: str = ""
    """What a person asked for, where the plan does not say it."""
    allow: tuple[ProofRule, ...] = ()
    """What may speak against the proof without a question."""
    earlier: ArtifactRef | None = None
    """A proof that may say the same already: of an episode within the plan."""


class Proved(Value):
    """A stored proof, and what a person has to know of it."""

    proof: ArtifactRef
    verdict: ProofVerdict
    title: str = ""
    """What speaks against it, in a sentence; empty where nothing does."""
    evidence: tuple[str, ...] = ()
    """At most as many lines as a question has."""
    drift: Drift | None = None
    attempt: int = 1


class AcceptRequest(Value):
    """A person's word on a doubted proof."""

    scope: EpisodeScope
    proof: ArtifactRef
    by: str = "operator"
