"""Entry point of the command line: `tightloop COMMAND`."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import click

from tightloop.cli import INTERRUPTED, LOG, WRONG_INPUT
from tightloop.cli.commands import COMMANDS, Group
from tightloop.cli.parameters import Option, parameters_of
from tightloop.errors import InvalidRequestError, PlanError, SettingsError, TightloopError
from tightloop.run.outcome import FAILED


class RootGroup(Group):
    """The root command group. Prints tightloop errors as one sentence and sets the exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and handle its errors."""
        try:
            return super().invoke(ctx)
        except TightloopError as error:
            _print_errors(*_sentences(error))
            ctx.exit(WRONG_INPUT if isinstance(error, InvalidRequestError) else FAILED)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        # `tightloop list | head` closes the pipe early.
        except BrokenPipeError:
            ctx.exit(FAILED)
        except OSError as error:
            _print_errors(f"error: operating system error: {error}")
            ctx.exit(FAILED)


def _print_errors(*sentences: str) -> None:
    # Lazy import: help and completion do not need Rich.
    from tightloop.cli.terminal import print_error

    for sentence in sentences:
        print_error(sentence)


def _sentences(error: TightloopError) -> list[str]:
    """Return one line for each problem in an error.

    A line has the form `error: problem`, or `file:line:column: error: problem` for plan files.
    """
    if isinstance(error, PlanError):
        from tightloop.cli.plan_file import problem_line

        return [problem_line(problem) for problem in error.problems]
    lines = error.message.splitlines() if isinstance(error, SettingsError) else [error.message]
    return [f"error: {line}" for line in lines]


def _print_version(context: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    if requested:
        try:
            click.echo(f"tightloop {version('tightloop')}")
        # A source tree on the path without an installation.
        except PackageNotFoundError:
            click.echo("tightloop (not installed)")
        context.exit()


def _show_completion(context: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    if requested:
        from tightloop.cli.parameters import completion_script

        click.echo(completion_script(context.find_root().command))
        context.exit()


def _install_completion(context: click.Context, _parameter: click.Parameter, requested: bool) -> None:
    if requested:
        from tightloop.cli.parameters import install_completion

        click.echo(install_completion(context.find_root().command))
        context.exit()


def options(
    context: click.Context,
    settings: Annotated[Path | None, Option(help="Settings file to use instead of the default files.")] = None,
    address: Annotated[str | None, Option(help="Address of the Temporal server (host:port).")] = None,
    namespace: Annotated[str | None, Option(help="Temporal namespace.")] = None,
) -> None:
    """Store the global options, which apply to all commands."""
    # `main` passes the logging setup as `obj`; tests and completion pass nothing.
    if context.obj is not None:
        context.meta[LOG] = context.obj
    # Not a `Session` yet, and no logging setup: the help of a command needs neither.
    context.obj = {"settings_file": settings, "address": address, "namespace": namespace}


app = RootGroup(
    "tightloop",
    "Durable coding-agent loops on Temporal: start, watch and steer episodes and plans.",
    "",
    *COMMANDS,
)
app.callback = click.pass_context(options)
app.params = parameters_of(options)
for _name, _act, _help in (
    ("--version", _print_version, "Show the version."),
    ("--install-completion", _install_completion, "Install completion for the current shell."),
    ("--show-completion", _show_completion, "Show completion for the current shell, to copy it or customize it."),
):
    # Eager: handled before Click complains about a missing command.
    app.params.append(
        click.Option((_name,), is_flag=True, is_eager=True, expose_value=False, callback=_act, help=_help)
    )


def _log() -> None:
    import logging

    from tightloop.host.log import set_up

    set_up(logging.WARNING, content=True)


def main() -> None:
    """Run the command line. This is the package's entry point."""
    code: Any = 0
    try:
        app(obj=_log)
    except SystemExit as end:
        code = end.code
    # Skip the interpreter's shutdown: threads of the Temporal SDK (1.35) may still release Python objects, and about
    # one in five runs that failed to connect ended in an abort (134) or a crash (139).
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or FAILED
    os._exit(code if isinstance(code, int) else 0 if code is None else FAILED)


if __name__ == "__main__":
    main()
