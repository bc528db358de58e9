"""What the activities of the coder are asked and answer."""

from activities.workspace.scope import EpisodeScope
from tightloop.coder.model import Bounds, CoderProgress
from tightloop.question import Question
from tightloop.value import Sparse
from tightloop.value.artifact import ArtifactRef


class BeginRequest(Sparse):
    """A delivery that the coder begins, or goes on with."""

    scope: EpisodeScope
    key: str
    """Of the delivery in the outbox."""


class Brief(Sparse):
    """How the coder works on this host, and where an earlier delivery of the session ended."""

    session: str
    bounds: Bounds = Bounds()
    progress: CoderProgress = CoderProgress()


class TurnRequest(Sparse):
    """A turn of a model."""

    scope: EpisodeScope
    key: str
    session: str
    role: str
    number: int
    """Within the session, from 1."""
    node: ArtifactRef | None = None
    """The conversation so far; None: it begins."""
    results: tuple[ArtifactRef, ...] = ()
    """Of the calls of its last answer, in their order."""
    said: tuple[ArtifactRef, ...] = ()
    """Messages for the model."""
    correction: str = ""
    """What was wrong with its last answer."""


class ToolRequest(Sparse):
    """One tool call of a turn."""

    scope: EpisodeScope
    key: str
    session: str
    base_tree: str
    turn: int
    index: int
    """Among the calls of the turn, from 0."""


class CheckRequest(Sparse):
    """The definition of done is to be run on what the coder has left."""

    scope: EpisodeScope
    key: str
    session: str
    base_tree: str


class Checked(Sparse):
    """What the checks say."""

    green: bool = False
    tree: str = ""
    said: ArtifactRef | None = None
    """Red checks in words, for a model."""
    bandit_findings: int = 0
    """New ones in the change."""
    summary: str = ""
    question: Question | None = None
    """A person decides first; nothing was run."""


class JudgeRequest(Sparse):
    """The tests that the tester wrote are to prove that they can fail."""

    scope: EpisodeScope
    key: str
    base_tree: str
    """Before the change."""
    coded_tree: str
    """With the change, before the tester."""


class Judged(Sparse):
    """What became of the tests."""

    accepted: int = 0
    refused: int = 0
    said: ArtifactRef | None = None
    """What a model should know: the reasons of refusals, and mutants that survived."""
    survived: int = 0
    covered: int = 0
    """Changed lines that the accepted tests execute."""
    changed: int = 0
    """Changed lines with code; 0: not measured."""
    summary: str = ""
