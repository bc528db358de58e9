"""Ports and requests of the coder's activities."""

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
    """One delivery to the coder."""

    key: str
    """Of the delivery in the outbox."""
    session: str = ""
    """Empty before `begin_coding`."""
    base_tree: str = ""
    """Tree from which the delivery began."""


class CoderRequest(Sparse):
    """A request that needs no more than its scope."""

    scope: CoderScope


class Brief(Sparse):
    """How the coder works on this host, and where an earlier delivery of the session ended."""

    session: str
    bounds: Bounds = Bounds()
    progress: CoderProgress = CoderProgress()


class TurnRequest(Sparse):
    """A turn of a model."""

    scope: CoderScope
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

    scope: CoderScope
    turn: int
    index: int
    """Among the calls of the turn, from 0."""


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

    scope: CoderScope
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


class ToolError(TightloopError):
    """A tool cannot do what was asked; the message tells the model why, and what to do instead."""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    """Of an assistant."""
    call_id: str = ""
    """Of a tool: the call that it answers."""
    result: str = ""
    """Of a tool: the hash of the artifact with its result, by which it can be read again."""


class ToolSpec(NamedTuple):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """Strict JSON schema: every property is required (null where it is optional), none may be added."""


class ToolResult(NamedTuple):
    """What a tool brought."""

    text: str
    """For the model; the toolbox bounds it."""
    failed: bool = False
    question: Question | None = None
    """Nothing was done; a person decides first."""
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What a writing tool is about to do to one file; done by rename, so that it happens whole or not."""

    path: str
    """Relative to the root."""
    before: bytes | None
    """None if the file does not exist."""
    after: bytes | None
    """None: it is removed."""
    text: str
    """For the model, once it is done."""
    executable: bool = False


@dataclass(frozen=True, kw_only=True)
class ProgramStart:
    """A program that a tool is about to start; everything that can be said against it was said before."""

    run: Callable[[], ToolResult]
    """Starts it, and waits for its end."""


class CoderMemory(Protocol):
    """What is remembered of one project. Blocking."""

    def search(self, query: str, limit: int) -> list[str]:
        """Return what fits best, a text each, the best first; nothing where it cannot be searched."""
        ...

    def remember(self, key: str, text: str) -> None:
        """Keep a fact under a name, in place of what is there. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool may use."""

    root: Path
    """The working tree."""
    base_tree: str
    """Tree from which the delivery began."""
    store: ArtifactStore
    checks: tuple[str, ...] = ()
    """Commands of the definition of done."""
    grants: tuple[Grant, ...] = ()
    """What people allowed or denied, by fingerprint."""
    cancelled: Callable[[], bool] = lambda: False
    started: Callable[[int], None] = lambda _pid: None
    """Told the pid of what is started, so that the next holder ends it should this worker die."""
    tree: WorkingTree | None = field(default=None, repr=False)
    """Held exclusively while a tool writes or runs; None while it only reads."""
    memory: CoderMemory | None = None
    """Of this project; None: there is none."""
    find_result: Callable[[str], ArtifactRef | None] = lambda _digits: None
    """Returns an earlier result of this session by the first digits of its digest; set by the toolbox."""


@dataclass(frozen=True)
class Tool:
    """One tool.

    It reads, or prepares a change of one file, or the start of a program: the toolbox writes down what is going to
    happen, and only then lets it happen.
    """

    spec: ToolSpec
    use: Callable[[Mapping[str, Any], ToolContext], ToolResult | FileChange | ProgramStart]
    """Does it, or returns what is to be done. Blocking; runs in a thread. The arguments follow the schema. Raises
    `ToolError` where it cannot be done as asked; the model is told why."""
    reads: bool = False
    """It changes nothing and starts nothing."""
    runs: bool = False
    """It starts programs: after a crash its outcome is unknown, and it is not started again by itself."""


Review = Callable[[ToolContext], ToolResult | None]
"""Looks at what the coder wrote before anything of it is run; None: it may be run."""


class TurnModel(Protocol):
    """Asks the models of the roles for their next step."""

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
        """Return the answer.

        Args:
            messages: the conversation.
            tools: those of the role.
            role: which model is asked, and how.
            session: id of the session.
            privacy: what the project lets leave this host in a prompt.
            beat: called with every piece that arrives.

        Raises:
            PlannerError: the service refuses, or the project's prompts may hold no code; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
        """
        ...
