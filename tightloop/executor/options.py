"""Options of executors."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from tightloop.errors import ExecutorError, did_you_mean
from tightloop.executor.model import ExecutorChoice, ExecutorStatus, Usage
from tightloop.value import Document, first_problem


class FileText(Document):
    """A file and what to put into it."""

    path: str
    text: str = ""


class FilePath(Document):
    """A file or a folder."""

    path: str


class Orphan(Document):
    """A process that leaves session, parent and environment behind, and edits the tree later."""

    path: str
    text: str = "late"
    after_s: float = Field(default=5.0, ge=0)


class ScriptedUsage(Usage):
    """What the step pretends to have cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Texts = Annotated[tuple[FileText, ...], BeforeValidator(_as_list)]
Paths = Annotated[tuple[FilePath, ...], BeforeValidator(_as_list)]


class ScriptStep(Document):
    """What happens in one iteration: the actions in the order of the fields, then the ending."""

    write: Texts = ()
    append: Texts = ()
    delete: Paths = ()
    """Files or folders; one that does not exist is ignored."""
    run: tuple[str, ...] = ()
    """Program and arguments. Its exit code is noted and does not change the ending."""
    orphan: Orphan | None = None
    stall: str | None = None
    """A program prints this text, which may be empty, and then waits until it is ended."""
    sleep: float = Field(default=0.0, ge=0)
    """Seconds."""
    crash: bool | Literal["before"] = False
    """After the actions, or before them, the worker's process kills itself, once for each delivery."""
    hang: bool = False
    """After the actions nothing happens until cancel or wall limit."""
    status: ExecutorStatus = ExecutorStatus.COMPLETED
    summary: str = ""
    error: str = ""
    limit_tries: int = Field(default=0, ge=0)
    """Number of tries of the iteration that end with `limit_hit` first, before any action."""
    retry_after_s: float | None = Field(default=None, ge=0)
    evidence: str = ""
    usage: ScriptedUsage | None = None


class Script(Document):
    """A whole script."""

    steps: tuple[ScriptStep, ...] = Field(min_length=1)
    repeat: bool = False
    effects_outside: str = ""
    """What it pretends to change outside the working tree."""


class CommandOptions(Document):
    """Of `command`; the person who starts the episode vouches for it."""

    argv: tuple[str, ...] = ()
    """Template of one command that takes the whole plan."""
    stdin: bool = False
    """Give it the plan on its standard input, too."""
    network: tuple[str, ...] = ()
    """More hosts that it may reach, in the words of `sandbox.network`, such as that of the model it asks."""
    read: tuple[str, ...] = ()
    """More absolute paths that it may read, such as the folder of its login."""
    write: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Names of variables of the worker that it gets, such as that of its key."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that it gets.

        Raises:
            ExecutorError: the worker does not have one of them.
        """
        missing = [name for name in self.environment if name not in environ]
        if missing:
            raise ExecutorError(
                f"option environment of the command executor names {missing[0]}, which the worker does not have. "
                "Set it where the worker is started"
            )
        return {name: environ[name] for name in self.environment}


class AcpOptions(Document):
    """Of `acp`."""

    argv: tuple[str, ...] = ()
    """The whole command line; the person who starts the episode vouches for it."""


class ClaudeOptions(Document):
    """Of `claude`."""

    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Calls of the model in one delivery; the smaller one of it and of `max_model_calls` counts."""
    max_budget_usd: Annotated[float, Field(gt=0)] | None = None
    """By Claude Code's own price list; it notices after the call that exceeds it."""


class CodexOptions(Document):
    """Of `codex`."""

    network: bool = False
    """Let the commands that it runs reach the hosts of `sandbox.network`. Its own sandbox could only give them all of
    the host's network, so it is off then, and the fence of other agents stands around it."""
    effort: str = ""
    """`model_reasoning_effort`, such as `low`, `medium` or `high`; empty: the model's own."""


class CursorGuiOptions(Document):
    """Of `cursor-gui`."""

    inline: bool = False
    """Paste the whole plan, in place of one line that names a file with it."""


_NONE = ("coder", "person", "cursor", "codex-acp", "copilot", "cursor-acp", "gemini", "opencode")
OPTIONS: Mapping[str, type[Document]] = {
    "acp": AcpOptions,
    "claude": ClaudeOptions,
    "codex": CodexOptions,
    "command": CommandOptions,
    "cursor-gui": CursorGuiOptions,
    "scripted": Script,
    **dict.fromkeys(_NONE, Document),
}
"""By the name of the executor."""
_NEAR = 0.7
"""An unknown name that is closer than this to a shipped one is a slip; others may be a worker's own executors."""


def choice_problem(choice: ExecutorChoice) -> str:
    """Return what is wrong with the names and the options of a choice, and the nearest right name; empty: nothing."""
    # Who only looks at episodes chooses no executor.
    from difflib import get_close_matches

    for name in (choice.name, *choice.fallback):
        if name not in OPTIONS and (near := get_close_matches(name, OPTIONS, 1, _NEAR)):
            return f"the executor {name!r} is unknown. Did you mean {near[0]!r}?"
    model, options = OPTIONS.get(choice.name), choice.options
    # A script may be in a file of the workspace.
    if model is None or (model is Script and ("script" in options or not options)):
        return ""
    try:
        model.model_validate(options)
    except ValidationError as error:
        return option_problem(error, model, choice.name)
    return ""


def option_problem(error: ValidationError, model: type[Document], name: str) -> str:
    """Return what is wrong with the options of an executor."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden":
        return f"the options of the executor {name} are wrong: {first_problem(error)}"
    *above, last = map(str, first["loc"])
    where = f" in {'.'.join(above)}" if above else ""
    advice = did_you_mean(last, model.model_fields) if not above else ""
    return f"the executor {name} has no option {last!r}{where}. {advice or 'It has none'}"
