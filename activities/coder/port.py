"""Interfaces and requests of the coder's activities."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from activities.artifacts.port import ArtifactStore
from activities.model.observed import ModelAnswer, ProposedCall
from activities.workspace.port import WorkingTree
from activities.workspace.scope import EpisodeScope
from tightloop.coder.model import Bounds, CoderProgress, Role
from tightloop.errors import TightloopError
from tightloop.executor.model import Grant
from tightloop.run.question import Question
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import ArtifactRef, Sparse


class CoderScope(EpisodeScope):
    """Scope of one delivery to the coder."""

    key: str
    """Key of the delivery in the outbox."""
    session: str = ""
    """Empty before `begin_coding`."""
    base_tree: str = ""
    """Tree at the start of the delivery."""


class CoderRequest(Sparse):
    """Request with only a scope."""

    scope: CoderScope


class Brief(Sparse):
    """Session settings on this host, and the progress of an earlier delivery."""

    session: str
    bounds: Bounds = Bounds()
    progress: CoderProgress = CoderProgress()


class TurnRequest(Sparse):
    """Request for a model turn."""

    scope: CoderScope
    role: str
    number: int
    """Number within the session, starting at 1."""
    node: ArtifactRef | None = None
    """Last node of the conversation; None starts a new one."""
    results: tuple[ArtifactRef, ...] = ()
    """Results of the last answer's calls, in order."""
    said: tuple[ArtifactRef, ...] = ()
    """Messages for the model."""
    correction: str = ""
    """Problem of its last answer."""


class ToolRequest(Sparse):
    """Request for one tool call of a turn."""

    scope: CoderScope
    turn: int
    index: int
    """Index among the turn's calls, starting at 0."""


class CheckWorkResult(Sparse):
    """Result of the definition of done."""

    green: bool = False
    tree: str = ""
    said: ArtifactRef | None = None
    """Failing checks as text for the model."""
    bandit_findings: int = 0
    """New findings in the change."""
    summary: str = ""
    question: Question | None = None
    """Question that a person must answer first; nothing ran."""


class JudgeRequest(Sparse):
    """Request to verify that the tester's tests can fail."""

    scope: CoderScope
    coded_tree: str
    """Tree with the change, before the tester's work."""


class JudgeResult(Sparse):
    """Verdict on the new tests."""

    accepted: int = 0
    refused: int = 0
    said: ArtifactRef | None = None
    """Text for the model: reasons of rejections, and surviving mutants."""
    survived: int = 0
    covered: int = 0
    """Changed lines that the accepted tests execute."""
    changed: int = 0
    """Changed lines that contain code; 0: not measured."""
    summary: str = ""


class ToolError(TightloopError):
    """A tool cannot do what was asked; the message tells the model why, and what to do instead."""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    """Calls of an assistant message."""
    call_id: str = ""
    """Call that a tool message answers."""
    result: str = ""
    """Hash of a tool result's artifact, by which the model can read it again."""


class ToolSpec(NamedTuple):
    """Tool description for a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """Strict JSON schema: all properties are required (nullable if optional), no others are allowed."""


class ToolResult(NamedTuple):
    """Result of a tool call."""

    text: str
    """Text for the model; the toolbox limits its length."""
    failed: bool = False
    question: Question | None = None
    """Question that a person must answer first; nothing was done."""
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Prepared change of one file; applied atomically by rename."""

    path: str
    """Relative to the root."""
    before: bytes | None
    """None if the file does not exist."""
    after: bytes | None
    """None deletes the file."""
    text: str
    """Text for the model after the change."""
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class ProgramStart:
    """Prepared start of a program; all checks have passed."""

    run: Callable[[], ToolResult]
    """Starts the program and waits for it."""


class CoderMemory(Protocol):
    """Memory of one project. Blocking."""

    def search(self, query: str, limit: int) -> list[str]:
        """Return the best matches, best first; empty if the memory is unavailable."""
        ...

    def remember(self, key: str, text: str) -> None:
        """Store a fact under a key, replacing the previous one. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Resources available to a tool."""

    root: Path
    """Top of the working tree."""
    base_tree: str
    """Tree at the start of the delivery."""
    store: ArtifactStore
    checks: tuple[str, ...] = ()
    """Commands of the definition of done."""
    grants: tuple[Grant, ...] = ()
    """Decisions by people, by fingerprint."""
    cancelled: Callable[[], bool] = lambda: False
    started: Callable[[int], None] = lambda _pid: None
    """Receives the pid of each started process, so that the next holder can kill it if this worker dies."""
    tree: WorkingTree | None = field(default=None, repr=False)
    """Locked exclusively for a tool that writes or runs; None for one that only reads."""
    memory: CoderMemory | None = None
    """Memory of this project; None if it has none."""
    find_result: Callable[[str], ArtifactRef | None] = lambda _digits: None
    """Returns an earlier result of this session by the first digits of its digest; set by the toolbox."""


@dataclass(frozen=True)
class Tool:
    """One tool.

    It reads, or prepares a file change or a program start: the toolbox records the intent before carrying it out.
    """

    spec: ToolSpec
    use: Callable[[Mapping[str, Any], ToolContext], ToolResult | FileChange | ProgramStart]
    """Runs the tool or returns the prepared effect. Blocking; runs in a thread. The arguments match the schema. Raises
    `ToolError` with a message for the model."""
    reads: bool = False
    """True if it neither changes nor starts anything."""
    runs: bool = False
    """True if it starts programs: after a crash the outcome is unknown, and it is not restarted automatically."""


Review = Callable[[ToolContext], ToolResult | None]
"""Reviews the coder's changes before any of them runs; None allows it."""


class TurnModel(Protocol):
    """Asks the models of the roles for their next turn."""

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
        """Send the conversation and return the model's answer.

        Args:
            messages: the conversation.
            tools: tools of the role.
            role: selects the model and its options.
            session: id of the session.
            privacy: the project's limit on prompts.
            beat: called for every received chunk.

        Raises:
            PlannerError: the service refuses, or the project's prompts may contain no code; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
        """
        ...
