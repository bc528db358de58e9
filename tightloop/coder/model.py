"""What travels through the history of a coder: numbers, names and references, never the conversation itself."""

from enum import StrEnum

from pydantic import Field

from tightloop.executor.model import ExecutorStatus
from tightloop.executor.usage import Usage
from tightloop.question import Question
from tightloop.value import Sparse
from tightloop.value.artifact import ArtifactRef

CODER = "coder"
"""Name of the executor, and of the role that changes the code."""
PATH_LIMIT = 30
PLANNER, TESTER, REFLECTOR = "planner", "tester", "reflector"


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


class Turn(Sparse):
    """One answer of a model."""

    number: int
    node: ArtifactRef
    """The conversation up to and with this answer."""
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


class Bounds(Sparse):
    """What one delivery to the coder may take, from the settings of its host."""

    max_turns: int = 60
    """Answers of models, of all roles together."""
    max_tokens: int = 1_000_000
    """Tokens in and out, where the service reports them."""
    rounds: int = 3
    """How often it codes again after red checks."""
    planning: bool = False
    """The role `planner` reads the code and writes a plan first."""
    testing: bool = False
    """The role `tester` writes tests for the change once the checks are green."""
    turns_of: dict[str, int] = Field(default_factory=dict)
    """By role: answers for one part of its work."""


class Talk(Sparse):
    """The conversation with one role, as far as it has come."""

    node: ArtifactRef | None = None
    """None: it has not begun."""
    turn: Turn | None = None
    """The answer whose calls are made now."""
    results: tuple[CallResult, ...] = ()
    """Of those calls, in their order."""
    said: tuple[ArtifactRef, ...] = ()
    """Messages for the model that go with the next turn."""
    correction: str = ""
    """What was wrong with the last answer, for the model."""
    turns: int = 0
    """Answers for the present part of the work."""
    silent: int = 0
    """Answers in a row that proposed nothing that can be done."""
    marks: tuple[str, ...] = ()
    """Of the last results, newest last."""
    nudged: bool = False
    """The model was told that it goes round in circles."""


class CoderProgress(Sparse):
    """How far a delivery has come."""

    state: CoderState = CoderState.INIT
    turns: int = 0
    usage: Usage = Usage(input_tokens=0, cached_tokens=0, output_tokens=0, cost_usd=0.0)
    round: int = 1
    talks: dict[str, Talk] = Field(default_factory=dict)
    """By role."""
    tested: bool = False
    """The tester has had its turn."""
    model: str = ""
    """Whom the role `coder` asked last."""
    bandit_findings: int | None = None
    """New findings of Bandit in what passed the checks; None: not looked for."""
    coverage: float | None = None
    """Share of the changed lines that tests execute which can fail; None: not measured."""
    path: tuple[tuple[CoderState, int], ...] = ()
    """The last states, each with the turns that were taken before it."""

    def entering(self, state: CoderState) -> "CoderProgress":
        """Return the progress as a state begins."""
        return self.evolve(state=state, path=(*self.path, (state, self.turns))[-PATH_LIMIT:])


class CoderResult(Sparse):
    """How a coder's delivery ended."""

    status: ExecutorStatus
    session: str = ""
    progress: CoderProgress = CoderProgress()
    error: str = ""
    question: Question | None = None


class CoderStatus(Sparse):
    """A snapshot for people and programs."""

    title: str = ""
    session: str = ""
    """Its folder below `coder/` in the state of the project."""
    state: CoderState = CoderState.INIT
    turns: int = 0
    max_turns: int = 0
    round: int = 1
    usage: Usage = Usage()

    @property
    def line(self) -> str:
        """The status in a line."""
        spent = (self.usage.input_tokens or 0) + (self.usage.output_tokens or 0)
        known = f", {spent} tokens" if self.usage.known else ""
        return f"{self.state.value}, turn {self.turns} of at most {self.max_turns}, round {self.round}{known}"
