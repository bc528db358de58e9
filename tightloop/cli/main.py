"""The command line: `tightloop COMMAND`."""

import logging
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tightloop.cli import diff, export, look, proof, start, steer
from tightloop.cli.host import commands as host
from tightloop.cli.host import keys
from tightloop.cli.plan import commands as plans
from tightloop.cli.plan.file import problem_line
from tightloop.cli.render.terminal import complain
from tightloop.cli.session import FAILED, INTERRUPTED, Session
from tightloop.errors import InvalidRequestError, PlanError, SettingsError, TightloopError
from tightloop.log import set_up

WRONG_INPUT = 2


class Sentences(TyperGroup):
    """Turns our errors into one sentence and an exit code; nobody is shown a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except TightloopError as error:
            for sentence in _sentences(error):
                complain(sentence)
            raise typer.Exit(WRONG_INPUT if isinstance(error, InvalidRequestError) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        # `tightloop list | head` closes the pipe early.
        except BrokenPipeError:
            raise typer.Exit(FAILED) from None
        except OSError as error:
            complain(f"error: the operating system refused: {error}")
            raise typer.Exit(FAILED) from None


def _sentences(error: TightloopError) -> list[str]:
    """Return each problem as `error: what`, those of a plan file as `file:line:column: error: what`."""
    if isinstance(error, PlanError):
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
for part in (start, look, diff, export, proof, steer, host):
    app.add_typer(part.app)
app.add_typer(plans.app, name="plan", rich_help_panel=start.START)
app.add_typer(keys.app, name="keys", rich_help_panel=host.HOST)


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
    """Keep the global options for the commands."""
    context.obj = Session(settings, address, namespace)


def main() -> None:
    """Run the command line; the entry point of the package."""
    code: Any = 0
    set_up(logging.WARNING, content=True)
    try:
        app()
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
