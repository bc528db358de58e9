"""Interfaces and requests for the coder's activities."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from activities.artifacts.port import ArtifactStore
from activities.model.observed import ModelAnswer, ProposedCall
from activities.workspace.scope import EpisodeScope
from tightloop.coder.model import Bounds, CoderProgress, Role
from tightloop.errors import TightloopError
from tightloop.executor.model import Grant
from tightloop.run.question import Question
from tightloop.safety.drift import Drift, PromptPrivacy
from tightloop.value import ArtifactRef, Sparse

if TYPE_CHECKING:
    from activities.workspace.working_tree import WorkingTree


class CoderScope(EpisodeScope):
    """Identifies one delivery to the coder."""

    key: str
    """The delivery's key in the outbox."""
    session: str = ""
    """The session. Empty before `begin_coding`."""
    base_tree: str = ""
    """The tree at the start of the delivery."""


class CoderRequest(Sparse):
    """A request that contains only a scope."""

    scope: CoderScope


class Brief(Sparse):
    """The settings of a session on this host, and the progress of an earlier delivery."""

    session: str
    bounds: Bounds = Bounds()
    progress: CoderProgress = CoderProgress()


class TurnRequest(Sparse):
    """Request for a model turn."""

    scope: CoderScope
    role: str
    number: int
    """Number of the turn within the session, starting at 1."""
    node: ArtifactRef | None = None
    """The conversation's last node. None starts a new conversation."""
    results: tuple[ArtifactRef, ...] = ()
    """Results of the calls in the last response, in order."""
    said: tuple[ArtifactRef, ...] = ()
    """Messages for the model."""
    correction: str = ""
    """The problem with the model's last response."""


class ToolRequest(Sparse):
    """A request for one tool call in a turn."""

    scope: CoderScope
    turn: int
    index: int
    """Index among the turn's calls, starting at 0."""


class CheckWorkResult(Sparse):
    """The result of running the definition of done."""

    green: bool = False
    tree: str = ""
    said: ArtifactRef | None = None
    """The failing checks as text for the model."""
    bandit_findings: int = 0
    """Number of new findings in the change."""
    summary: str = ""
    question: Question | None = None
    """A question that a person must answer first. Nothing was run."""


class JudgeRequest(Sparse):
    """A request to verify that the tester's tests can fail."""

    scope: CoderScope
    coded_tree: str
    """The tree with the change, before the tester's work."""


class JudgeResult(Sparse):
    """The verdict on the new tests."""

    accepted: int = 0
    refused: int = 0
    said: ArtifactRef | None = None
    """Text for the model: why tests were rejected, and which mutants survived."""
    survived: int = 0
    covered: int = 0
    """Number of changed lines that the accepted tests execute."""
    changed: int = 0
    """Number of changed lines that contain code. It is 0 if this was not measured."""
    summary: str = ""


class TryCheckRequest(Sparse):
    """A request to try a check that the planner wrote."""

    scope: EpisodeScope
    expected_tree: str
    check: ArtifactRef
    """The stored `ProposedCheck`."""


class TryCheckResult(Sparse):
    """The verdict on a check that the planner wrote."""

    tree: str
    """The expected tree, with the new test file if the check counts."""
    run: str = ""
    """The check's command. Empty if the check does not count."""
    problem: str = ""
    """Reason for rejecting the check, addressed to its author."""
    drift: Drift | None = None
    attempt: int = 1


class ToolError(TightloopError):
    """Raised if a tool cannot carry out a call. The message tells the model the reason and an alternative."""


class Message(NamedTuple):
    """A message in a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    """The calls in an assistant message."""
    call_id: str = ""
    """The call that a tool message answers."""
    result: str = ""
    """Hash of a tool result's artifact. The model can use it to read the result again."""


class ToolSpec(NamedTuple):
    """The description of a tool for a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """Strict JSON schema. All properties are required (nullable if optional), and no others are allowed."""


class ToolResult(NamedTuple):
    """A tool call's result."""

    text: str
    """Text for the model. `ToolExecutor` limits its length."""
    failed: bool = False
    question: Question | None = None
    """A question that a person must answer first. Nothing was done."""
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """A prepared change to one file. The file is replaced atomically by a rename."""

    path: str
    """The path relative to the root."""
    before: bytes | None
    """The content before the change. None if the file does not exist."""
    after: bytes | None
    """The content after the change. None deletes the file."""
    text: str
    """Text for the model after the change."""
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class ProgramStart:
    """A program that is ready to start. All checks have passed."""

    run: Callable[[], ToolResult]
    """Starts the program and waits for it to end."""


class CoderMemory(Protocol):
    """The memory of one project. The methods block."""

    def search(self, query: str, limit: int) -> list[str]:
        """Search the memory and return the best matches first. Empty if the memory is unavailable."""
        ...

    def remember(self, key: str, text: str) -> None:
        """Store a fact under a key. An existing fact is replaced. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """The resources available to a tool."""

    root: Path
    """The top of the working tree."""
    base_tree: str
    """The tree at the start of the delivery."""
    store: ArtifactStore
    checks: tuple[str, ...] = ()
    """The commands in the definition of done."""
    grants: tuple[Grant, ...] = ()
    """People's decisions, by fingerprint."""
    cancelled: Callable[[], bool] = lambda: False
    started: Callable[[int], None] = lambda _pid: None
    """Receives the pid of each process that is started, so that the next lock holder can kill it if this worker
    dies."""
    tree: "WorkingTree | None" = field(default=None, repr=False)
    """The working tree, locked exclusively for a tool that writes or runs. None for a tool that only reads."""
    memory: CoderMemory | None = None
    """The project's memory. None if the project has no memory."""
    find_result: Callable[[str], ArtifactRef | None] = lambda _digits: None
    """Returns an earlier result in this session by the first digits of its digest. It is set by `ToolExecutor`."""


@dataclass(frozen=True)
class Tool:
    """A tool that the coder can call.

    A tool either reads something, or prepares to change a file or start a program. `ToolExecutor` records the change
    or the start before carrying it out.
    """

    spec: ToolSpec
    use: Callable[[Mapping[str, Any], ToolContext], ToolResult | FileChange | ProgramStart]
    """Runs the tool or returns the prepared effect. Blocks and runs in a thread. The arguments match the schema. Raises
    `ToolError` with a message for the model."""
    reads: bool = False
    """True if the tool neither changes nor starts anything."""
    runs: bool = False
    """True if the tool starts programs. If so, the outcome is unknown after a crash, and the tool is not restarted
    automatically.
    """


Review = Callable[[ToolContext], ToolResult | None]
"""Reviews the coder's changes before any of them is run. None means that they may run."""


class TurnModel(Protocol):
    """Asks a role's model for its next turn."""

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        role: Role,
        session: str,
        privacy: PromptPrivacy,
        beat: Callable[[], None],
    ) -> ModelAnswer:
        """Send the conversation and return the model's response.

        Args:
            messages: the conversation.
            tools: the role's tools.
            role: selects the model and its options.
            session: the session's ID.
            privacy: the project's limit on the content of prompts.
            beat: called for every received chunk.

        Raises:
            PlannerError: the service refuses, or the project's prompts must not contain code. Not retryable.
            PlannerUnavailableError: the service is busy or down. Retryable.
        """
        ...
