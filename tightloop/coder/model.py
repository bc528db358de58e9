"""The coder's models and roles."""

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from tightloop.errors import InvalidRequestError, SettingsError, did_you_mean
from tightloop.executor.model import ExecutorStatus, Usage
from tightloop.run.question import Question
from tightloop.safety.seal import Seal
from tightloop.value import ArtifactRef, Document, Sparse, Value, first_problem, format_count, shorten

CODER = "coder"
"""Name of the executor, and of the role that changes the code."""
# The path is part of the input of each new run, so it stays short.
PATH_LIMIT = 30
PLANNER, TESTER, REFLECTOR = "planner", "tester", "reflector"


class CoderState(StrEnum):
    """The state of the coder, which determines its next action."""

    INIT = "INIT"
    PLANNING = "PLANNING"
    CODING = "CODING"
    TESTING = "TESTING"
    REFLECTING = "REFLECTING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"


class CallHead(Sparse):
    """A tool call proposed by a model. The arguments are stored in the session journal."""

    tool: str
    reads: bool = False
    """True if the call is read-only. Such calls may run concurrently."""
    runs: bool = False
    """True if the call starts a program. Such a call needs its own activity with heartbeats."""


class CallResult(Sparse):
    """Result of a tool call."""

    result: ArtifactRef
    """Text for the model. Its length is bounded, and the beginning and end are kept."""
    failed: bool = False
    """True if the model has to try something else.

    Causes are wrong arguments, text that does not match, or a command that is refused or unknown.
    """
    mark: str = ""
    """Short digest that is the same for identical results of identical calls. Repeated marks indicate a loop."""
    question: Question | None = None
    """Question that has to be answered first.

    The call was not executed. It is repeated after the answer.
    """
    finished: bool = False
    """True if the model declares its part finished. In that case, the result contains its summary."""


class Turn(Sparse):
    """One reply of a model."""

    number: int
    node: ArtifactRef
    """The conversation up to and including this reply."""
    calls: tuple[CallHead, ...] = ()
    """Proposed tool calls, if any."""
    problem: str = ""
    """Error in the reply, addressed to the model: it was truncated, or a call could not be parsed.

    None of the reply's calls are executed.
    """
    usage: Usage = Usage.model_construct()
    prompt_tokens: int = 0
    """Estimated size of the prompt in tokens."""
    model: str = ""
    compacted: bool = False
    """True if older results were replaced with a digest before this turn."""


class Bounds(Sparse):
    """The limits for one delivery to the coder, from the settings of its host."""

    max_turns: int = 60
    """Maximum number of replies across all roles."""
    max_tokens: int = 1_000_000
    """Maximum number of input and output tokens, if the service reports them."""
    rounds: int = 3
    """Maximum number of coding rounds after failing checks."""
    planning: bool = False
    """True if the `planner` role first reads the code and writes a plan."""
    testing: bool = False
    """True if the `tester` role writes tests for the change once the checks pass."""
    turns_of: dict[str, int] = Field(default_factory=dict)
    """Maximum number of replies per part of the work, by role."""


class ConversationState(Sparse):
    """The state of the conversation with one role."""

    node: ArtifactRef | None = None
    """Latest node of the conversation, or None if it has not started."""
    turn: Turn | None = None
    """The reply whose tool calls are being executed."""
    results: tuple[CallResult, ...] = ()
    """Results of the tool calls in `turn`, in order."""
    said: tuple[ArtifactRef, ...] = ()
    """Messages that are sent to the model with the next turn."""
    correction: str = ""
    """Error in the last reply, as a message to the model."""
    turns: int = 0
    """Number of replies in the current part of the work."""
    silent: int = 0
    """Number of consecutive replies without a usable tool call."""
    marks: tuple[str, ...] = ()
    """Marks of the latest tool results, newest last."""
    nudged: bool = False
    """True if the model has already received the hint about repeated calls."""


class CoderProgress(Sparse):
    """The progress of the coder within one delivery."""

    state: CoderState = CoderState.INIT
    turns: int = 0
    usage: Usage = Usage.model_construct(input_tokens=0, cached_tokens=0, output_tokens=0, cost_usd=0.0)
    round: int = 1
    talks: dict[str, ConversationState] = Field(default_factory=dict)
    """Conversations by role."""
    tested: bool = False
    """True if the tester has run."""
    model: str = ""
    """Model that the `coder` role used last."""
    bandit_findings: int | None = None
    """Number of new Bandit findings in the change that passed the checks. None if it was not measured."""
    coverage: float | None = None
    """Share of the changed executable lines covered by tests that demonstrably can fail.

    None if it was not measured.
    """
    path: tuple[tuple[CoderState, int], ...] = ()
    """Latest states, each with the number of turns before it."""

    def entering(self, state: CoderState) -> "CoderProgress":
        """Return a copy in another state, with the state added to the path."""
        return self.evolve(state=state, path=(*self.path, (state, self.turns))[-PATH_LIMIT:])


class CoderResult(Sparse):
    """The result of a delivery to the coder."""

    status: ExecutorStatus
    session: str = ""
    progress: CoderProgress = CoderProgress.model_construct()
    error: str = ""
    question: Question | None = None


class CoderStatus(Sparse):
    """A snapshot of a running coder for display."""

    title: str = ""
    session: str = ""
    """Session folder below `coder/` in the project's state folder."""
    state: CoderState = CoderState.INIT
    turns: int = 0
    max_turns: int = 0
    round: int = 1
    usage: Usage = Usage.model_construct()

    @property
    def line(self) -> str:
        spent = (self.usage.input_tokens or 0) + (self.usage.output_tokens or 0)
        tokens = f", {spent} tokens" if self.usage.known else ""
        return f"{self.state.value}, turn {self.turns} of at most {self.max_turns}, round {self.round}{tokens}"


class CoderInput(Value):
    """The input of one delivery to the coder, including the progress of the previous run."""

    workspace: str = ""
    worktree: bool = False
    request: ArtifactRef | None = None
    """The stored `EpisodeRequest`."""
    home: str = ""
    absence_s: float = 60.0
    """Value of `absence_s` in the episode's `Queues`."""
    within: str = ""
    """Id of the workflow that owns the workspace."""
    key: str = ""
    """Key of the delivery in the outbox."""
    base_tree: str = ""
    """Tree at the start of the delivery."""
    title: str = ""
    wall_limit_s: float = 3600.0
    session: str = ""
    """Session id. This field and the next two are set in follow-up runs."""
    bounds: Bounds = Bounds.model_construct()
    progress: CoderProgress = CoderProgress.model_construct()
    worked_s: float = 0.0
    """Seconds worked in the previous runs."""
    sealed_as: Seal | None = None
    """Verified seal of the input. The converter sets it and overrides any value that was sent."""

    @property
    def goal(self) -> str:
        """Title to show in lists."""
        return self.title


# As in mini-swe-agent: 5,000 characters of each end.
HEAD_CHARACTERS = TAIL_CHARACTERS = 5_000
RESULT = "result:"
"""Prefix of the names by which `read_file` finds results."""
ID_DIGITS = 12


def result_name(sha256: str) -> str:
    """Return the name of a stored result, as shown to the model."""
    return f"{RESULT}{sha256[:ID_DIGITS]}"


def is_long(text: str) -> bool:
    """Return whether a result is too long to show in full."""
    return len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS


def keep_ends(text: str, sha256: str) -> str:
    """Return the beginning and end of a long result, with a reference to the full artifact `sha256`.

    The text must already be scrubbed, because a secret that is cut in two would not be recognised.
    """
    if not is_long(text):
        return text
    missing = format_count(len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS, "character")
    notice = f"\n[... {missing} omitted; to read everything: read_file {result_name(sha256)} ...]\n"
    return text[:HEAD_CHARACTERS] + notice + text[-TAIL_CHARACTERS:]


_SESSION = re.compile(r"[0-9a-f]{32}")


def session_of(key: str) -> str:
    """Return the id of the session that belongs to a delivery."""
    # Derived, not random: a retried delivery must find the session of its first attempt.
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def session_path(session: str) -> str:
    """Return the path of a session in the state folder of its project.

    Raises:
        InvalidRequestError: the id is not a session id, so the path could be outside the folder.
    """
    if not _SESSION.fullmatch(session):
        raise InvalidRequestError(f"{session[:80]!r} is not a coder session id")
    return f"coder/{session}"


FINISH = "finish"
REPORT_IMPOSSIBLE = "report_impossible"
"""The tool that ends a part of the work.

Every role has it, because otherwise a model would have to be stopped from outside.
"""

Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class Role(Document):
    """A role of the coder, with its prompt, tools and model parameters."""

    name: str
    prompt: str
    """Template of the system prompt, which stays the same throughout the session."""
    tools: tuple[str, ...]
    """Tool names in the order in which they are shown to the model.

    The order is part of the provider's cache key.
    """
    models: tuple[str, ...] = ()
    """Preferred models. The first available one is used. If empty, the models from the settings are used."""
    temperature: Temperature | None = None
    """Sampling temperature. None means the service's default."""
    top_p: TopP | None = None
    max_output_tokens: Positive = 8_000
    """Maximum number of output tokens per reply."""
    max_turns: Positive = 50
    """Maximum number of replies per part of the work."""
    answer: tuple[str, ...] = ()
    """Headings of the final summary."""

    @model_validator(mode="before")
    @classmethod
    def _can_finish(cls, value: Any) -> Any:
        tools = value.get("tools") if isinstance(value, dict) else None
        if isinstance(tools, list | tuple) and FINISH not in tools:
            # At the end, so that the order of the listed tools stays as in the file.
            return {**value, "tools": (*tools, FINISH)}
        return value


def read_role(name: str, text: str) -> Role:
    """Parse a role file.

    The file contains YAML between two `---` lines, followed by the prompt.

    Raises:
        SettingsError: the YAML header is missing, or a field is unknown or invalid.
    """
    # Deferred import: only hosts that do the work read roles; a client that starts episodes needs no YAML.
    import yaml

    from tightloop.value.documents import load_yaml

    opening, _, rest = text.partition("---\n")
    # The first closing line ends the head, so the prompt itself may contain `---` lines.
    head, ending, prompt = rest.partition("\n---\n")
    if opening.strip() or not ending or not prompt.strip():
        raise SettingsError(
            f"role {name} is malformed: write `---`, then fields such as `tools: [read_file]`, then `---`, then "
            "the prompt"
        )
    try:
        fields = load_yaml(head)
        if not isinstance(fields, dict):
            raise SettingsError(
                f"role {name} has no fields: add some between the `---` lines, for example `tools: [read_file]`"
            )
        return Role.model_validate({**fields, "name": name, "prompt": prompt.strip()})
    except yaml.YAMLError as error:
        raise SettingsError(f"role {name} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        suggestion = (
            f". {did_you_mean(str(first['loc'][0]), Role.model_fields)}" if first["type"] == "extra_forbidden" else ""
        )
        raise SettingsError(f"role {name}: {first_problem(error)}{suggestion}") from None


@cache
def known_roles() -> Mapping[str, Role]:
    """Read the role files and return the roles by name."""
    # The settings import this module; only users of the coder read the files.
    from importlib import resources

    # Sorted, because the order of a folder depends on the file system.
    files = sorted(resources.files("tightloop.coder").joinpath("roles").iterdir(), key=lambda file: file.name)
    named = [(file.name.removesuffix(".md"), file) for file in files if file.name.endswith(".md")]
    return {name: read_role(name, file.read_text("utf-8")) for name, file in named}


def known_tools() -> frozenset[str]:
    return frozenset(tool for role in known_roles().values() for tool in role.tools)


TITLE_CHARACTERS = 200


def details_markdown(status: CoderStatus) -> str:
    """Return the current details of a coder as Markdown for Temporal's Web UI."""
    return f"**{status.state.value}** - {shorten(status.title, TITLE_CHARACTERS)}\n- {status.line}"


def path_line(progress: CoderProgress) -> str:
    """Return the coder's states as text, such as `PLANNING (3 turns) > CODING (9 turns) > TESTING`."""
    ends = [*(turns for _, turns in progress.path[1:]), progress.turns]
    parts = []
    for (state, began), end in zip(progress.path, ends, strict=True):
        parts.append(state.value + (f" ({format_count(end - began, 'turn')})" if end > began else ""))
    return " > ".join(parts)


LINE_CHARACTERS = 500
"""Maximum length of a line. Longer lines are truncated; they are usually generated."""


def number_lines(lines: list[str], first: int = 1) -> str:
    """Return the lines without line endings, each prefixed with its number and a tab."""
    width = len(str(first + len(lines)))
    return "\n".join(f"{number:>{width}}\t{cut(line)}" for number, line in enumerate(lines, start=first))


def cut(line: str) -> str:
    """Truncate a line to `LINE_CHARACTERS` and append a marker. Shorter lines are returned unchanged."""
    surplus = len(line) - LINE_CHARACTERS
    return line if surplus <= 0 else f"{line[:LINE_CHARACTERS]} [... {surplus} more]"
