"""Options of executors."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from tightloop.errors import ExecutorError, did_you_mean
from tightloop.executor.model import ExecutorChoice, ExecutorStatus, Usage
from tightloop.value import Document, first_problem


class FileText(Document):
    """Path and new content of a file."""

    path: str
    text: str = ""


class FilePath(Document):
    """A file or a folder."""

    path: str


class Orphan(Document):
    """A detached process that edits the tree after a delay.

    The process runs in its own session, without its parent and without its environment variables.
    """

    path: str
    text: str = "late"
    after_s: float = Field(default=5.0, ge=0)


class ScriptedUsage(Usage):
    """Simulated usage of a step."""

    # `Usage` ignores unknown fields; in a script a misspelt one must be an error.
    model_config = ConfigDict(frozen=True, extra="forbid")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Texts = Annotated[tuple[FileText, ...], BeforeValidator(_as_list)]
Paths = Annotated[tuple[FilePath, ...], BeforeValidator(_as_list)]


class ScriptStep(Document):
    """Iteration of a script. The actions run in the order of the fields."""

    write: Texts = ()
    append: Texts = ()
    delete: Paths = ()
    """Files or folders to delete. Missing ones are ignored."""
    run: tuple[str, ...] = ()
    """Program and arguments to run. The exit code is recorded but does not affect the end of the iteration."""
    orphan: Orphan | None = None
    stall: str | None = None
    """Start a program that prints this text, which may be empty, and then waits until it is killed."""
    sleep: float = Field(default=0.0, ge=0)
    """Time to sleep, in seconds."""
    crash: bool | Literal["before"] = False
    """Kill the worker's process once per delivery, after the actions or, with `before`, before them."""
    hang: bool = False
    """Do nothing after the actions until the delivery is cancelled or reaches the wall limit."""
    status: ExecutorStatus = ExecutorStatus.COMPLETED
    summary: str = ""
    error: str = ""
    limit_tries: int = Field(default=0, ge=0)
    """Number of attempts at the iteration that end with `limit_hit` before any action is performed."""
    retry_after_s: float | None = Field(default=None, ge=0)
    evidence: str = ""
    usage: ScriptedUsage | None = None


class Script(Document):
    """Script for the executor `scripted`."""

    steps: tuple[ScriptStep, ...] = Field(min_length=1)
    repeat: bool = False
    effects_outside: str = ""
    """Simulated side effects outside the working tree."""


class CommandOptions(Document):
    """Options for the `command` executor.

    The person who starts the episode is responsible for the command.
    """

    argv: tuple[str, ...] = ()
    """Template of a single command that processes the whole plan."""
    stdin: bool = False
    """Also pass the plan to the command's standard input."""
    network: tuple[str, ...] = ()
    """Additional allowed hosts, in the syntax of `sandbox.network`, such as the host of the command's model provider.
    """
    read: tuple[str, ...] = ()
    """Additional absolute paths that the command may read, such as the folder that contains its login."""
    write: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Worker environment variables to pass to the command, such as the one that contains its API key."""

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables to pass to the command.

        Raises:
            ExecutorError: one of the variables is not set in the worker's environment.
        """
        missing = [name for name in self.environment if name not in environ]
        if missing:
            raise ExecutorError(
                f"the command executor's environment option lists {missing[0]}, which is not set in the worker's "
                "environment. Set the variable and restart the worker"
            )
        return {name: environ[name] for name in self.environment}


class AcpOptions(Document):
    """Options of `acp`."""

    argv: tuple[str, ...] = ()
    """Complete command line. The person who starts the episode is responsible for it."""


class ClaudeOptions(Document):
    """Options of `claude`."""

    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of model calls per delivery. The lower of this and `max_model_calls` applies."""
    max_budget_usd: Annotated[float, Field(gt=0)] | None = None
    """Cost limit in USD, based on Claude Code's own price list. Claude Code only notices that the limit is exceeded
    after the call that exceeds it.
    """


class CodexOptions(Document):
    """Options of `codex`."""

    network: bool = False
    """Allow the commands that Codex runs to access the hosts in `sandbox.network`. Codex's own sandbox could only give
    them full access to the host's network, so it is disabled and replaced by the sandbox that other agents use.
    """
    effort: str = ""
    """Value of `model_reasoning_effort`, such as `low`, `medium` or `high`. If empty, the model's default is used."""


class CursorGuiOptions(Document):
    """Options of `cursor-gui`."""

    inline: bool = False
    """Paste the whole plan. By default, a single line with the path of the plan file is pasted."""


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
"""Models of the options, by executor name."""
_NO_AGENT = ("coder", "command", "cursor-gui", "person", "scripted")
"""Built-in executors that are not agents.

They always work in the sandbox (except for people and windows) and never ask for permission.
"""
_NO_MODEL = ("acp", "command", "cursor-acp", "cursor-gui", "person", "scripted")
_NEAR = 0.7
"""Similarity to a known name above which an unknown name is taken for a typo.

Other names may be those of the worker's own executors.
"""


def choice_problem(choice: ExecutorChoice) -> str:
    """Return the error in an executor's name or options, or "" if they are valid.

    For a misspelled name, the closest valid name is suggested.
    """
    # Deferred import: viewers of episodes choose no executor.
    from difflib import get_close_matches

    for name in (choice.name, *choice.fallback):
        if name not in OPTIONS and (close_names := get_close_matches(name, OPTIONS, 1, _NEAR)):
            return f"unknown executor {name!r}. Did you mean {close_names[0]!r}?"
    if problem := _ignored(choice):
        return problem
    model, options = OPTIONS.get(choice.name), choice.options
    # The script may be in a file of the workspace.
    if model is None or (model is Script and ("script" in options or not options)):
        return ""
    try:
        model.model_validate(options)
    except ValidationError as error:
        return option_problem(error, model, choice.name)
    return ""


def _ignored(choice: ExecutorChoice) -> str:
    """Return an error if the executor or one of its fallbacks would ignore a field, otherwise ""."""
    if choice.model and choice.name in _NO_MODEL:
        return f"the executor {choice.name} cannot select a model, so it would ignore {choice.model!r}. Omit the model"
    defaults = ExecutorChoice.model_construct()
    for name in (choice.name, *choice.fallback):
        for field in ("mode", "permissions", "max_model_calls", "max_events"):
            value = getattr(choice, field)
            if name in _NO_AGENT and value != getattr(defaults, field):
                return (
                    f"only agents such as claude or codex support {field}: the executor {name} would ignore "
                    f"{getattr(value, 'value', value)}. Omit {field}, or choose an agent"
                )
    return ""


def option_problem(error: ValidationError, model: type[Document], name: str) -> str:
    """Describe the first error in an executor's options, as a sentence."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden":
        return f"the options of the executor {name} are not valid: {first_problem(error)}"
    *above, last = map(str, first["loc"])
    where = f" in {'.'.join(above)}" if above else ""
    advice = did_you_mean(last, model.model_fields) if not above else ""
    return f"the executor {name} has no option {last!r}{where}. {advice or 'It has no options'}"
