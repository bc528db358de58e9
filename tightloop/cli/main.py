"""The command line: `tightloop COMMAND`."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tightloop.cli import FAILED, INTERRUPTED, WRONG_INPUT
from tightloop.cli.commands import COMMANDS
from tightloop.errors import InvalidRequestError, PlanError, SettingsError, TightloopError


class Sentences(TyperGroup):
    """Has all commands, and turns our errors into one sentence and an exit code; nobody is shown a traceback."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": {command.name: command for command in COMMANDS}})

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except TightloopError as error:
            _complain(*_sentences(error))
            raise typer.Exit(WRONG_INPUT if isinstance(error, InvalidRequestError) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        # `tightloop list | head` closes the pipe early.
        except BrokenPipeError:
            raise typer.Exit(FAILED) from None
        except OSError as error:
            _complain(f"error: the operating system refused: {error}")
            raise typer.Exit(FAILED) from None


def _complain(*sentences: str) -> None:
    from tightloop.cli.terminal import complain

    for sentence in sentences:
        complain(sentence)


def _sentences(error: TightloopError) -> list[str]:
    """Return each problem as `error: what`, those of a plan file as `file:line:column: error: what`."""
    if isinstance(error, PlanError):
        from tightloop.cli.plan.file import problem_line

        return [problem_line(problem) for problem in error.problems]
    lines = error.message.splitlines() if isinstance(error, SettingsError) else [error.message]
    return [f"error: {line}" for line in lines]


app = typer.Typer(
    cls=Sentences,
    name="tightloop",
    help="Durable coding-agent loops on Temporal: start an episode or a plan, watch it, steer it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"tightloop {version('tightloop')}")
        except PackageNotFoundError:
            typer.echo("tightloop (not installed)")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    settings: Annotated[Path | None, typer.Option(help="Settings file to use instead of the default ones.")] = None,
    address: Annotated[str | None, typer.Option(help="Address of the Temporal server, host:port.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Temporal namespace.")] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep the global options for the command that follows."""
    if context.obj is not None:
        context.obj()
    # Not a `Session` yet: the help of a command needs none.
    context.obj = {"settings_file": settings, "address": address, "namespace": namespace}


def _log() -> None:
    import logging

    from tightloop.host.log import set_up

    set_up(logging.WARNING, content=True)


def main() -> None:
    """Run the command line; the entry point of the package."""
    code: Any = 0
    try:
        app(obj=_log)
    except SystemExit as end:
        code = end.code
    # Without the interpreter's own shutdown: threads of the Temporal SDK (1.35) may still be letting go of Python
    # objects, and about one run in five that failed to connect then ended in an abort (134) or a crash (139).
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or FAILED
    os._exit(code if isinstance(code, int) else 0 if code is None else FAILED)


if __name__ == "__main__":
    main()
