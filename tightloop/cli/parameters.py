"""Command parameters derived from function signatures, and shell completion."""

import inspect
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click

from tightloop.errors import InvalidRequestError

Complete = Callable[[str], Sequence[tuple[str, str]]]
"""Returns the completions for a prefix, each with a description."""


REQUIRED: Any = inspect.Parameter.empty


class Option:
    """A command-line option, as in `reason: Annotated[str, Option(help="Why.")] = ""`.

    Args:
        spellings: names of the option, such as `--json`. The default is derived from the parameter's
            name.
        help: description of the option.
        metavar: placeholder shown in the help.
        min: lower bound of a number.
        max: upper bound of a number.
    """

    def __init__(
        self, *spellings: str, help: str, metavar: str | None = None, min: float | None = None, max: float | None = None
    ) -> None:
        self.spellings, self.help, self.metavar, self.min, self.max = spellings, help, metavar, min, max


class Argument:
    """Positional argument."""

    def __init__(self, *, help: str, metavar: str | None = None, complete: Complete | None = None) -> None:
        self.help, self.metavar, self.complete = help, metavar, complete


class Choice(click.Choice[Any]):
    """A Click parameter type that accepts the values of an enum."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a command-line value to the enum member."""
        return value if isinstance(value, self._kind) else self._kind(super().convert(value, param, ctx))


def parameters_of(function: Callable[..., Any]) -> list[click.Parameter]:
    """Return a function's Click parameters. Parameters without an `Option` or `Argument` are skipped."""
    hints = get_type_hints(function, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        marked = [
            declaration for declaration in get_args(hints.get(name))[1:] if isinstance(declaration, Option | Argument)
        ]
        if get_origin(hints.get(name)) is Annotated and marked:
            parameters.append(parameter_of(name, get_args(hints[name])[0], marked[0], parameter.default))
    return parameters


def parameter_of(
    name: str, kind: Any, declaration: Option | Argument, default: Any = inspect.Parameter.empty
) -> click.Parameter:
    """Return the Click parameter for a type. The parameter is required if there is no default."""
    # Click has no optional types; an omitted option is None anyway.
    kind = (
        next((member for member in get_args(kind) if member is not NoneType), kind)
        if NoneType in get_args(kind)
        else kind
    )
    repeated = get_origin(kind) is list
    kind = get_args(kind)[0] if repeated else kind
    required = default is REQUIRED
    options: dict[str, Any] = {"help": declaration.help, "metavar": declaration.metavar, "required": required}
    # Click accepts only a sequence as default of a repeatable option, and gives an empty one without it.
    if not required and not repeated:
        options["default"] = default
    if isinstance(declaration, Argument):
        if declaration.complete is not None:
            options["shell_complete"] = _completing(declaration.complete)
        # Click marks optional arguments only if it makes the placeholder itself.
        if declaration.metavar and not required:
            options["metavar"] = f"[{declaration.metavar}]{'...' if repeated else ''}"
        return click.Argument((name,), type=_type(kind), nargs=-1 if repeated else 1, **options)
    if kind is bool:
        options["is_flag"] = True
    else:
        options |= {"type": _type(kind, declaration.min, declaration.max), "multiple": repeated}
        options["show_default"] = bool(options.get("default"))
    return click.Option((name, *(declaration.spellings or (f"--{name.replace('_', '-')}",))), **options)


def _type(kind: Any, low: float | None = None, high: float | None = None) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Choice(kind)
    if kind is Path:
        return click.Path(path_type=Path)
    if (low, high) != (None, None):
        return (click.IntRange if kind is int else click.FloatRange)(low, high)  # type: ignore[arg-type]
    return kind


def _completing(complete: Complete) -> Callable[..., list[Any]]:
    def items(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(completion, help=text) for completion, text in complete(incomplete)]

    return items


COMPLETION_SECONDS = 2.0
"""Time limit for completion after pressing Tab, in seconds."""


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """Provide completions for ids. Print nothing if Temporal does not respond immediately."""
    # Lazy imports: every command loads this module, only the Tab key needs these.
    import asyncio

    async def rows() -> list[tuple[str, str]]:
        from tightloop.client import TightloopClient

        async with asyncio.timeout(COMPLETION_SECONDS):
            client = await TightloopClient.connect()
            return [(row.id, f"{row.status}: {row.goal[:60]}") for row in await client.list()]

    try:
        ids = [("last", "the newest"), *asyncio.run(rows())]
    except Exception:  # noqa: BLE001 - a shell that completes must never see an error
        return []
    return [pair for pair in ids if pair[0].startswith(incomplete)]


def _id_of(what: str) -> Argument:
    return Argument(metavar="ID", help=f"Id of {what}, a unique prefix of the id, or 'last'.", complete=complete_id)


_OF_ANY, _OF_EPISODE = _id_of("an episode or a plan"), _id_of("an episode")
_OF_PLAN, _OF_LOOP = _id_of("a plan"), _id_of("a project plan")
Id = Annotated[str, _OF_ANY]
EpisodeId = Annotated[str, _OF_EPISODE]
PlanId = Annotated[str, _OF_PLAN]
LoopId = Annotated[str, _OF_LOOP]
AS_JSON = Option("--json", help="Print the result as one JSON document.")
AsJson = Annotated[bool, AS_JSON]
JsonLines = Annotated[bool, Option("--json", help="Print each change as one line of JSON.")]
Wait = Annotated[
    bool | None,
    Option(
        "--wait/--no-wait",
        help="Keep waiting while human input is needed. With --no-wait, exit with code 3 instead. Default: wait if the "
        "output is a terminal.",
    ),
]
Project = Annotated[str, Option(help="Id of the project, or a unique prefix of the id. Default: all projects.")]
NEW_ID = Option("--id", help="Id of the new run. Default: a generated id.")
NewId = Annotated[str | None, NEW_ID]
Watch = Annotated[bool, Option("--watch", help="Follow the run until it ends.")]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would change, without changing anything.")]
BY = Option(help="Name to record for this action. Default: your user name.")
By = Annotated[str | None, BY]


def run_argument(kinds: tuple[str, ...]) -> click.Parameter:
    """Return the positional argument that selects a run of these kinds."""
    marks: dict[tuple[str, ...], Argument] = {("episode",): _OF_EPISODE, ("loop",): _OF_LOOP}
    return parameter_of("workflow", str, marks.get(kinds, _OF_ANY if "episode" in kinds else _OF_PLAN))


VARIABLE = "_TIGHTLOOP_COMPLETE"
_FILES = {
    "bash": ".local/share/bash-completion/completions/tightloop",
    "zsh": ".zfunc/_tightloop",
    "fish": ".config/fish/completions/tightloop.fish",
}
_HINTS = {"zsh": "Add this line to ~/.zshrc if it is missing: fpath+=~/.zfunc; autoload -Uz compinit; compinit. "}


def completion_script(command: click.Command, shell: str = "") -> str:
    """Return the completion script for a shell. The default is the user's shell.

    Raises:
        InvalidRequestError: the shell is not supported.
    """
    from click.shell_completion import get_completion_class

    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidRequestError(
            f"shell completion is not available for {shell!r}. Set SHELL to one of {', '.join(_FILES)}"
        )
    return kind(command, {}, "tightloop", VARIABLE).source()


def install_completion(command: click.Command) -> str:
    """Install the completion script for the user's shell and return a confirmation."""
    shell = Path(os.environ.get("SHELL", "")).name
    text = completion_script(command, shell)
    # Other shells were already rejected by `completion_script`.
    file = Path.home() / _FILES[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return f"wrote {file}. {_HINTS.get(shell, '')}Completion takes effect in the next shell"
