"""The commands about this host: server and workers, replay, checks, settings."""

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tightloop.alert import episode_link
from tightloop.cli.host.doctor import Finding, examine
from tightloop.cli.host.server_part import Role, become_worker
from tightloop.cli.render.terminal import coloured, show, show_json, table
from tightloop.cli.session import AsJson, session_of
from tightloop.client import TightloopClient
from tightloop.client.installation.setup import connect_and_set_up
from tightloop.client.ui_session import signed_in, temporal_variables
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError

app = typer.Typer()
workers = typer.Typer(help="Workers for a Temporal server of your own.", no_args_is_help=True)
HOST = "This host"
app.add_typer(workers, name="worker", rich_help_panel=HOST)


@app.command(rich_help_panel=HOST)
def up(
    context: typer.Context,
    role: Annotated[Role | None, typer.Option(help="Which work the worker takes. Default: all.")] = None,
    state_folder: Annotated[Path | None, typer.Option(help="Folder for histories and logs.")] = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Keep content out of logs, too: turns privacy.encrypt on.")
    ] = False,
) -> None:
    """Run the embedded Temporal server and a worker until Ctrl-C."""
    options = [*(["--role", role.value] if role else []), *(["--encrypt"] if encrypt else [])]
    become_worker(session_of(context), "up", *options, state_folder=state_folder)


@app.command(rich_help_panel=HOST)
def gc(
    context: typer.Context,
    older_than: Annotated[
        str | None, typer.Option(help="Time since the end, such as 30d or 12h. Default: server.retention_days.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False,
) -> None:
    """Free what closed episodes left on this host; what is open, or ended lately, is kept. Safe beside workers."""
    options = ["--older-than", str(read_days(older_than))] if older_than else []
    become_worker(session_of(context), "gc", *options, *(["--dry-run"] if dry_run else []))


def read_days(text: str) -> float:
    """Return the days of a time such as `30d` or `12h`.

    Raises:
        InvalidRequestError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([dh])", text.strip())
    if found is None:
        raise InvalidRequestError(f"--older-than {text!r} is not a time. Write days or hours, such as 30d or 12h")
    return float(found[1]) / (24 if found[2] == "h" else 1)


@workers.command()
def run(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="Which work the worker takes.")] = Role.ALL,
) -> None:
    """Run a worker for a Temporal server that is already there, until Ctrl-C or SIGTERM."""
    become_worker(session_of(context), "run", "--role", role.value)


@app.command(rich_help_panel=HOST)
def ui(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="[ID]", help="Id of an episode or plan, or a unique part of it, or last.")
    ] = "",
) -> None:
    """Print a link to the Temporal Web UI that signs one browser in."""
    session = session_of(context)
    found = session.settings.temporal
    key = session.run(lambda client: client.resolve(reference)) if reference else ""
    url = episode_link(found.ui_url, found.namespace, key) if key else found.ui_url
    typer.echo(signed_in(session.settings, url))


@app.command(rich_help_panel=HOST)
def env(context: typer.Context) -> None:
    """Print the variables with which the `temporal` command talks to this server: eval "$(tightloop env)"."""
    for name, value in temporal_variables(session_of(context).settings).items():
        typer.echo(f"export {name}={value}")


@app.command(rich_help_panel=HOST)
def replay(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="FILE|ID", help="History or export file, or id of an episode or plan.")
    ],
) -> None:
    """Replay a history against the current code and print the events."""
    session = session_of(context)
    if not Path(what).exists() and Path(what).suffix != ".json":
        what = session.run(lambda client: _resolved(client, what))
    become_worker(session, "replay", what)


async def _resolved(client: TightloopClient, reference: str) -> str:
    try:
        return await client.resolve(reference)
    except EpisodeNotFoundError as error:
        raise EpisodeNotFoundError(f"no file, episode or plan is named {reference!r}. See: tightloop list") from error


@app.command(rich_help_panel=HOST)
def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check this host and the Temporal server; exit code 1 when something needed is missing."""
    findings = examine(session_of(context))
    if as_json:
        show_json([vars(finding) for finding in findings])
    else:
        show(_findings_table(findings))
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)


def _findings_table(findings: list[Finding]) -> Any:
    made = table("CHECK", "STATE", "FOUND", "FIX")
    for finding in findings:
        state = "ok" if finding.ok else "missing" if finding.needed else "optional"
        name, found, fix = map(Text, (finding.name, finding.found, "" if finding.ok else finding.fix))
        made.add_row(name, coloured(state), found, fix)
    return made


@app.command(rich_help_panel=HOST)
def setup(
    context: typer.Context,
    namespace: Annotated[
        str | None,
        typer.Option(help="Namespace, made if it is missing. Default: that of the settings, which must exist."),
    ] = None,
    retention: Annotated[
        int | None, typer.Option(min=1, help="Days for which histories of closed episodes are kept. Default: as it is.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be made.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set a namespace of Temporal up: search attributes, retention. What is there already stays."""
    session = session_of(context)
    if namespace:
        session = replace(session, namespace=namespace)
    days = None if retention is None else timedelta(days=retention)
    create = namespace is not None
    parts = asyncio.run(connect_and_set_up(session.settings, create=create, retention=days, dry_run=dry_run))
    if as_json:
        show_json([vars(part) for part in parts])
        return
    for part in parts:
        typer.echo(f"{part.name}: {part.done.value}{f' ({part.detail})' if part.detail else ''}")


@app.command(rich_help_panel=HOST)
def settings(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the settings in force; secrets are masked."""
    found = session_of(context).settings
    if as_json:
        show_json(found)
    else:
        typer.echo(found.as_yaml(), nl=False)
