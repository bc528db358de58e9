"""What travels through the history of a coder: numbers, names and references, never the conversation itself."""

from enum import StrEnum

from tightloop.executor.usage import Usage
from tightloop.question import Question
from tightloop.value import Sparse
from tightloop.value.artifact import ArtifactRef


class CoderState(StrEnum):
    """Where a coder is; the states of the seed "Miracle"."""

    INIT = "INIT"
    PLANNING = "PLANNING"
    CODING = "CODING"
    TESTING = "TESTING"
    REFLECTING = "REFLECTING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class CallHead(Sparse):
    """One tool call that a model proposed. Its arguments are in the journal of the session."""

    tool: str
    reads: bool = False
    """It changes nothing: calls that only read may run at the same time."""
    runs: bool = False
    """It starts a program: it needs an activity of its own, with heartbeats."""


class CallResult(Sparse):
    """What a tool call brought."""

    result: ArtifactRef
    """The text for the model; bounded, head and tail kept."""
    failed: bool = False
    """The model has to do something else: wrong arguments, no match, a command that was refused or not found."""
    mark: str = ""
    """Equal for equal results of equal calls: whoever repeats them goes round in circles."""
    question: Question | None = None
    """A person has to decide first. The call was not made; it is made again after the answer."""
    finished: bool = False
    """The model says with it that its part is done; the result is what it says."""


class TurnInput(Sparse):
    """What a model is asked with in one turn."""

    number: int
    """Counts the turns of a session, of all roles together, from 1."""
    node: ArtifactRef
    """The conversation so far."""
    results: tuple[CallResult, ...] = ()
    """Of the calls of its last answer, in their order."""
    notes: tuple[ArtifactRef, ...] = ()
    """Texts for the model after the results, such as a reflection."""


class Turn(Sparse):
    """One answer of a model."""

    number: int
    node: ArtifactRef
    """The conversation up to and with this answer, and with the problem if there is one."""
    calls: tuple[CallHead, ...] = ()
    """Empty: the model proposed nothing to do."""
    problem: str = ""
    """What is wrong with the answer, for the model: cut off, or a call that cannot be read. Nothing of it is done."""
    usage: Usage = Usage()
    prompt_tokens: int = 0
    """Estimated size of the prompt, in tokens."""
    model: str = ""
    compacted: bool = False
    """Older results were replaced by a digest before this turn."""
