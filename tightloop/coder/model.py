"""Models of the coder, and its roles."""

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
from tightloop.value import ArtifactRef, Document, Sparse, Value, counted, first_problem, shorten

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
    usage: Usage = Usage.model_construct()
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
    usage: Usage = Usage.model_construct(input_tokens=0, cached_tokens=0, output_tokens=0, cost_usd=0.0)
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
    progress: CoderProgress = CoderProgress.model_construct()
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
    usage: Usage = Usage.model_construct()

    @property
    def line(self) -> str:
        spent = (self.usage.input_tokens or 0) + (self.usage.output_tokens or 0)
        known = f", {spent} tokens" if self.usage.known else ""
        return f"{self.state.value}, turn {self.turns} of at most {self.max_turns}, round {self.round}{known}"


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
    bounds: Bounds = Bounds.model_construct()
    progress: CoderProgress = CoderProgress.model_construct()
    worked_s: float = 0.0
    """Of the runs before."""
    sealed_as: Seal | None = None
    """What the input's seal says; set by the converter, whatever is sent."""

    @property
    def goal(self) -> str:
        """What lists show."""
        return self.title


# As mini-swe-agent has it: 5,000 characters of each end.
HEAD_CHARACTERS = TAIL_CHARACTERS = 5_000
RESULT = "result:"
"""Begins the name under which `read_file` finds a result."""
ID_DIGITS = 12


def result_name(sha256: str) -> str:
    """Return the name of a stored result, as a model is told of it."""
    return f"{RESULT}{sha256[:ID_DIGITS]}"


def is_long(text: str) -> bool:
    """Return whether only the ends of a result are shown."""
    return len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS


def keep_ends(text: str, sha256: str) -> str:
    """Return the head and the tail of a long result, and where the rest can be read: the artifact `sha256`.

    The text is scrubbed already: a secret that is cut in two would not be known for what it is.
    """
    if not is_long(text):
        return text
    missing = counted(len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS, "character")
    mark = f"\n[... {missing} left out; all of it: read_file {result_name(sha256)} ...]\n"
    return text[:HEAD_CHARACTERS] + mark + text[-TAIL_CHARACTERS:]


_SESSION = re.compile(r"[0-9a-f]{32}")


def session_of(key: str) -> str:
    """Return the id of the session that a delivery begins."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def place_of(session: str) -> str:
    """Return where a session lies in the state folder of its project.

    Raises:
        InvalidRequestError: the id is not one of ours; the path could leave the folder.
    """
    if not _SESSION.fullmatch(session):
        raise InvalidRequestError(f"{session[:80]!r} is not the id of a coder's session")
    return f"coder/{session}"


FINISH = "finish"
"""The tool that ends a part of the work. Every role has it: a model without it could only be stopped."""

Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class Role(Document):
    """One role: what it is asked with, and what it may use."""

    name: str
    prompt: str
    """Template of the system prompt: the part that stays the same for the whole session."""
    tools: tuple[str, ...]
    """Names, in the order in which a model is shown them; the order is part of what providers cache."""
    models: tuple[str, ...] = ()
    """The first that the service has is used; empty: those of the settings."""
    temperature: Temperature | None = None
    """None: what the service takes by itself."""
    top_p: TopP | None = None
    max_output_tokens: Positive = 8_000
    """For one answer."""
    max_turns: Positive = 50
    """Answers for one part of the work."""
    answer: tuple[str, ...] = ()
    """Headings of what the role says when it finishes."""

    @model_validator(mode="before")
    @classmethod
    def _can_finish(cls, value: Any) -> Any:
        tools = value.get("tools") if isinstance(value, dict) else None
        if isinstance(tools, list | tuple) and FINISH not in tools:
            return {**value, "tools": (*tools, FINISH)}
        return value


def read_role(name: str, text: str) -> Role:
    """Read the file of a role: YAML between two lines `---`, then the prompt.

    Raises:
        SettingsError: it has no such head, or a field is unknown or not allowed.
    """
    # Roles are read where work is done; a client that only starts episodes needs no YAML.
    import yaml

    from tightloop.value.documents import load_yaml

    opening, _, rest = text.partition("---\n")
    head, ending, prompt = rest.partition("\n---\n")
    if opening.strip() or not ending or not prompt.strip():
        raise SettingsError(f"role {name}: write `---`, fields such as `tools: [read_file]`, `---`, then the prompt")
    try:
        fields = load_yaml(head)
        if not isinstance(fields, dict):
            raise SettingsError(f"role {name}: between the lines `---` stand fields such as `tools: [read_file]`")
        return Role.model_validate({**fields, "name": name, "prompt": prompt.strip()})
    except yaml.YAMLError as error:
        raise SettingsError(f"role {name}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        near = (
            f". {did_you_mean(str(first['loc'][0]), Role.model_fields)}" if first["type"] == "extra_forbidden" else ""
        )
        raise SettingsError(f"role {name}: {first_problem(error)}{near}") from None


@cache
def known_roles() -> Mapping[str, Role]:
    """Return the roles by name, as their files say."""
    # The settings import this module; only who works with the coder reads the files.
    from importlib import resources

    files = sorted(resources.files("tightloop.coder").joinpath("roles").iterdir(), key=lambda file: file.name)
    named = [(file.name.removesuffix(".md"), file) for file in files if file.name.endswith(".md")]
    return {name: read_role(name, file.read_text("utf-8")) for name, file in named}


def known_tools() -> frozenset[str]:
    return frozenset(tool for role in known_roles().values() for tool in role.tools)


TITLE_CHARACTERS = 200


def details_markdown(status: CoderStatus) -> str:
    """Return the current details, for Temporal's Web UI."""
    return f"**{status.state.value}** - {shorten(status.title, TITLE_CHARACTERS)}\n- {status.line}"


def path_line(progress: CoderProgress) -> str:
    """Return the states that a coder went through, such as `PLANNING (3 turns) > CODING (9 turns) > TESTING`."""
    ends = [*(turns for _, turns in progress.path[1:]), progress.turns]
    parts = []
    for (state, began), end in zip(progress.path, ends, strict=True):
        parts.append(state.value + (f" ({counted(end - began, 'turn')})" if end > began else ""))
    return " > ".join(parts)


LINE_CHARACTERS = 500
"""Longer lines are cut: they are generated, not written."""


def numbered(lines: list[str], first: int = 1) -> str:
    """Return lines, which have no line ends, each behind its number and a tab."""
    width = len(str(first + len(lines)))
    return "\n".join(f"{number:>{width}}\t{cut(line)}" for number, line in enumerate(lines, start=first))


def cut(line: str) -> str:
    """Return a line, marked where it was cut."""
    surplus = len(line) - LINE_CHARACTERS
    return line if surplus <= 0 else f"{line[:LINE_CHARACTERS]} [... {surplus} more]"
