"""The commands about builds of the workers."""

from typing import Annotated

import typer

from tightloop.cli.host.server_part import become_worker
from tightloop.cli.session import session_of

Days = Annotated[int, typer.Option(min=0, help="Replay first what is open, or ended in so many days.")]


def status(context: typer.Context) -> None:
    become_worker(session_of(context), "deploy", "status")


def promote(
    context: typer.Context,
    days: Days = 7,
    unversioned: Annotated[
        bool, typer.Option("--unversioned", help="Send them back to workers without a version (no worker.deployment).")
    ] = False,
) -> None:
    more = ("--unversioned",) if unversioned else ()
    become_worker(session_of(context), "deploy", "promote", "--days", str(days), *more)


def ramp(
    context: typer.Context,
    percent: Annotated[float, typer.Option(min=0, max=100, help="Share of new workflows; 0 ends the ramp.")],
    days: Days = 7,
) -> None:
    become_worker(session_of(context), "deploy", "ramp", "--percent", str(percent), "--days", str(days))
