"""Commands for this host: workers, deployments, identity, keys and tokens."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from rich.text import Text

from tightloop.cli.host.doctor import Finding, examine
from tightloop.cli.host.server_part import Role, become_server_part, become_worker
from tightloop.cli.look import require_ledger, resolve_project
from tightloop.cli.parameters import Argument, AsJson, DryRun, Option
from tightloop.cli.session import Session, session_of
from tightloop.cli.terminal import apply_colour, show, show_either, show_json, table
from tightloop.client import Poller, TightloopClient
from tightloop.client.keys import key_file, new_ring, read_ring, write_ring
from tightloop.client.setup import connect_and_set_up
from tightloop.client.sign_in import page_link, signed_in, temporal_variables
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, SettingsError
from tightloop.host.identity import HostIdentity, adopt_host, queue_of, read_identity
from tightloop.host.programs import find_trusted_program, own_environment, trusted_path
from tightloop.ledger.alert import episode_link
from tightloop.safety.seal import Role as SealRole
from tightloop.settings import PrivacySettings

if TYPE_CHECKING:
    from tightloop.database.access import Token, Tokens


def up(
    context: click.Context,
    role: Annotated[Role | None, Option(help="Type of work that the worker does. Default: all.")] = None,
    state_folder: Annotated[Path | None, Option(help="Folder for histories and logs.")] = None,
    encrypt: Annotated[
        bool,
        Option("--encrypt", help="Keep content out of the worker's logs (turns on privacy.encrypt)."),
    ] = False,
) -> None:
    options = [*(["--role", role.value] if role else []), *(["--encrypt"] if encrypt else [])]
    become_worker(session_of(context), "up", *options, state_folder=state_folder)


def gc(
    context: click.Context,
    older_than: Annotated[
        str | None,
        Option(
            help="Remove only the data of runs that ended at least this long ago, for example 30d or 12h. Default: "
            "server.retention_days."
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    options = ["--older-than", str(read_days(older_than))] if older_than is not None else []
    become_worker(session_of(context), "gc", *options, *(["--dry-run"] if dry_run else []))


def keep(
    _context: click.Context,
    workflow: Annotated[str, Argument(metavar="ID", help="Id of an episode or a plan on this host.")],
    release: Annotated[
        bool, Option("--release", help="Remove the protection so that `tightloop gc` can delete the data.")
    ] = False,
) -> None:
    from tightloop.database.ledger import local_ledger

    # Not the shared database: `tightloop gc` reads the marks of its own host.
    ledger = local_ledger()
    line = ledger.workflow(workflow)
    ledger.of(line.project).mark(line.id, protect=not release)
    show(f"{line.id} is {'no longer ' if release else ''}protected from tightloop gc")


def rebuild(context: click.Context) -> None:
    become_worker(session_of(context), "ledger", "rebuild")


def upgrade(context: click.Context) -> None:
    become_worker(session_of(context), "ledger", "upgrade")


def show_hooks(context: click.Context) -> None:
    become_worker(session_of(context), "hooks", "show")


def install_hooks(context: click.Context) -> None:
    become_worker(session_of(context), "hooks", "install")


def remove_hooks(context: click.Context) -> None:
    become_worker(session_of(context), "hooks", "remove")


def read_days(text: str, option: str = "--older-than") -> float:
    """Parse an option value such as `30d` or `12h` into days.

    Raises:
        InvalidRequestError: the value is not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([dh])", text.strip())
    if match is None:
        raise InvalidRequestError(
            f"{option} {text!r} is not a valid duration. Use days or hours, for example 30d or 12h"
        )
    return float(match[1]) / (24 if match[2] == "h" else 1)


def run(
    context: click.Context,
    role: Annotated[Role, Option(help="Type of work that the worker does.")] = Role.ALL,
) -> None:
    become_worker(session_of(context), "run", "--role", role.value)


def ui(
    context: click.Context,
    reference: Annotated[
        str, Argument(metavar="ID", help="Id of an episode or a plan, a unique prefix of the id, or 'last'.")
    ] = "",
) -> None:
    session = session_of(context)
    temporal = session.settings.temporal
    key = session.run(lambda client: client.resolve(reference)) if reference else ""
    url = episode_link(temporal.ui_url, temporal.namespace, key) if key else temporal.ui_url
    click.echo(signed_in(session.settings, url))


def open_page(
    context: click.Context,
    show: Annotated[bool, Option("--print", help="Print the link without opening a browser.")] = False,
) -> None:
    link = page_link(session_of(context).settings)
    # Always printed, for a browser on another machine.
    click.echo(link)
    if not show and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin"):
        _open_browser(link)


def _open_browser(link: str) -> None:
    """Open a page in the user's browser, if there is one. The link is always printed."""
    names = ("/usr/bin/open",) if sys.platform == "darwin" else ("xdg-open", "gio", "sensible-browser", "firefox")
    program = next((program for name in names if (program := find_trusted_program(name))), None)
    if program is not None:
        command = program.command(*(("open",) if program.name == "gio" else ()), link)
        # Do not wait: some browsers run as long as their window.
        subprocess.Popen(
            command,
            env={**own_environment(), "PATH": trusted_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def gateway(context: click.Context) -> None:
    become_server_part(session_of(context), "gateway")


def env(context: click.Context) -> None:
    for name, value in temporal_variables(session_of(context).settings).items():
        click.echo(f"export {name}={value}")


def replay(
    context: click.Context,
    what: Annotated[str, Argument(metavar="FILE|ID", help="History or export file, or id of an episode or plan.")] = "",
    query: Annotated[
        str | None,
        Option(help="Replay all workflows that match a Temporal query, such as 'TaskQueue=\"q\"'."),
    ] = None,
    days: Annotated[
        int | None,
        Option(min=0, help="Number of days to look back. Replays open workflows and those that ended in this period."),
    ] = None,
    junit: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a JUnit XML test report to this file (requires --query or --days)."),
    ] = None,
) -> None:
    session = session_of(context)
    if bool(what) == (query is not None or days is not None):
        raise InvalidRequestError(
            "specify one file or id, or use --query or --days, for example: tightloop replay --days 7"
        )
    if junit is not None and what:
        raise InvalidRequestError("--junit requires --query or --days")
    if not what:
        many = {"--query": query, "--days": days, "--junit": junit}
        # With `=`, because a query may start with a dash.
        become_worker(session, "replay", *(f"{name}={value}" for name, value in many.items() if value is not None))
    # A missing .json file is a mistyped path, and reported as such by the server part.
    if not Path(what).exists() and Path(what).suffix != ".json":
        what = session.run(lambda client: _resolve_run(client, what))
    become_worker(session, "replay", what)


async def _resolve_run(client: TightloopClient, reference: str) -> str:
    try:
        return await client.resolve(reference)
    except EpisodeNotFoundError as error:
        raise EpisodeNotFoundError(
            f"no such file, episode or plan: {reference!r}. List runs with: tightloop list"
        ) from error


def doctor(context: click.Context, as_json: AsJson = False) -> None:
    findings = examine(session_of(context))
    if as_json:
        show_json([vars(finding) for finding in findings])
    else:
        show(_findings_table(findings))
    if any(finding.needed and not finding.ok for finding in findings):
        raise click.exceptions.Exit(1)


def _findings_table(findings: list[Finding]) -> Any:
    result = table("CHECK", "STATE", "FOUND", "FIX")
    for finding in findings:
        state = "ok" if finding.ok else "missing" if finding.needed else "optional"
        name, detail, fix = map(Text, (finding.name, finding.found, "" if finding.ok else finding.fix))
        result.add_row(name, apply_colour(state), detail, fix)
    return result


def setup(
    context: click.Context,
    namespace: Annotated[
        str | None,
        Option(
            help="Namespace to set up, created if missing. Default: the namespace in the settings, which must exist."
        ),
    ] = None,
    retention: Annotated[
        int | None, Option(min=1, help="Days to keep the histories of closed episodes. Default: unchanged.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    session = session_of(context)
    if namespace:
        session = replace(session, namespace=namespace)
    days = None if retention is None else timedelta(days=retention)
    create = namespace is not None
    parts = asyncio.run(connect_and_set_up(session.settings, create=create, retention=days, dry_run=dry_run))
    if as_json:
        show_json([part._asdict() for part in parts])
        return
    for part in parts:
        click.echo(f"{part.name}: {part.outcome.value}{f' ({part.detail})' if part.detail else ''}")


def settings(context: click.Context, as_json: AsJson = False) -> None:
    session_settings = session_of(context).settings
    if as_json:
        show_json(session_settings)
    else:
        click.echo(session_settings.as_yaml(), nl=False)


Days = Annotated[
    int,
    Option(
        min=0,
        help="Before the change, replay all workflows that are still open or that ended in the last N days.",
    ),
]


def show_builds(context: click.Context) -> None:
    become_worker(session_of(context), "deploy", "status")


def promote(
    context: click.Context,
    days: Days = 7,
    unversioned: Annotated[
        bool,
        Option(
            "--unversioned", help="Start new workflows on workers that have no version (worker.deployment is not set)."
        ),
    ] = False,
) -> None:
    more = ("--unversioned",) if unversioned else ()
    become_worker(session_of(context), "deploy", "promote", "--days", str(days), *more)


def ramp(
    context: click.Context,
    percent: Annotated[
        float, Option(min=0, max=100, help="Percentage of new workflows to start on this build. 0 ends the ramp.")
    ],
    days: Days = 7,
) -> None:
    become_worker(session_of(context), "deploy", "ramp", "--percent", str(percent), "--days", str(days))


def show_host(context: click.Context, as_json: AsJson = False) -> None:
    settings = session_of(context).settings
    identity = read_identity(settings)
    if identity is None:
        raise InvalidRequestError(
            "this host does not have a name yet. One is assigned when the first worker starts. To start a worker, "
            "run: tightloop up"
        )
    document = {"name": identity.name, "adopted": identity.adopted, "queues": identity.queues(settings)}
    show_either(document, _line(identity), as_json=as_json)


def adopt_state(
    context: click.Context,
    name: Annotated[str, Argument(metavar="HOST", help="Name or task queue of the other host.")],
    release: Annotated[bool, Option("--release", help="Return the work to the other host.")] = False,
) -> None:
    session = session_of(context)
    # Both forms are accepted: the name, and the task queue that `doctor` shows.
    queue = queue_of(session.settings, name.removeprefix(queue_of(session.settings, "")))
    old_identity = read_identity(session.settings)
    # The queues of this host are polled by its own workers: adopting again is harmless.
    if not release and (old_identity is None or queue not in old_identity.queues(session.settings)):

        async def ask(client: TightloopClient) -> tuple[Poller, ...]:
            return await client.pollers(queue)

        if pollers := session.run(ask):
            raise InvalidRequestError(
                f"worker {pollers[0].process} is still running as {name!r}, so two hosts would do the same work. Stop "
                "that worker first. Temporal may list a killed worker for another minute"
            )
    identity = adopt_host(session.settings, name, release=release)
    click.echo(f"{_line(identity)}. Restart the workers on this host to apply the change")


def _line(identity: HostIdentity) -> str:
    adopted = f" and does the work of {', '.join(identity.adopted)}" if identity.adopted else ""
    return f"this host is {identity.name}{adopted}"


_KEEP = "Keep a copy of the file in a safe place. Without its keys, encrypted histories cannot be read"


def new_keys(context: click.Context) -> None:
    privacy = _of_a_file(session_of(context).settings.privacy)
    path, ring = key_file(privacy), new_ring()
    write_ring(path, ring)
    show(f"created key {ring.current} in {path}. {_KEEP}")


def list_keys(context: click.Context, as_json: AsJson = False) -> None:
    ring = read_ring(session_of(context).settings.privacy)
    if as_json:
        show_json([{"id": key_id, "current": key_id == ring.current} for key_id in ring.ids])
        return
    for key_id in ring.ids:
        show(f"{key_id}{'  current' if key_id == ring.current else ''}")


def rotate_keys(context: click.Context) -> None:
    privacy = _of_a_file(session_of(context).settings.privacy)
    path, ring = key_file(privacy), read_ring(privacy).with_new_key()
    write_ring(path, ring, replace=True)
    show(
        f"key {ring.current} is now current. Older keys in {path}: {len(ring.keys) - 1}. {_KEEP}. Copy the file to the "
        "other hosts and restart all workers. Until the restart, the workers encrypt with the old key"
    )


def _of_a_file(privacy: PrivacySettings) -> PrivacySettings:
    if privacy.keys_env:
        raise SettingsError(
            f"the keys are read from the variable {privacy.keys_env} (privacy.keys_env), which this command cannot "
            "change. Change the variable where it is set, or clear privacy.keys_env to use a key file"
        )
    return privacy


def create_token(
    context: click.Context,
    name: Annotated[
        str, Argument(help="Name of the token's holder, for example anna. The name is shown in answers and approvals.")
    ],
    role: Annotated[
        SealRole, Option(help="Token permissions. Each role includes the roles before it.")
    ] = SealRole.VIEWER,
    project: Annotated[
        list[str] | None,
        Option(
            help="Id of a project that the token can access, or a unique prefix of the id. Repeatable. Default: all "
            "projects."
        ),
    ] = None,
    episode: Annotated[str, Option(help="Episode that the agent works on. Only valid with --role agent.")] = "",
    expires: Annotated[str, Option(help="Lifetime of the token, for example 90d or 12h, or 'never'.")] = "90d",
    as_json: AsJson = False,
) -> None:
    lasts = None if expires == "never" else timedelta(days=read_days(expires, "--expires"))
    ledger = require_ledger(session_of(context).settings)
    projects = [resolve_project(ledger, reference) for reference in project or ()]
    # An agent sees no more than the project of its episode.
    if episode and not projects:
        projects = [ledger.workflow(episode).project]
    token, text = _tokens(session_of(context)).create(name, role, projects, episode=episode, lasts=lasts)
    show_either({**token.model_dump(mode="json"), "token": text}, text, as_json=as_json)


def list_tokens(context: click.Context, as_json: AsJson = False) -> None:
    tokens = _tokens(session_of(context)).all()
    if as_json:
        show_json([token.model_dump(mode="json") for token in tokens])
        return
    tokens_table = table("NAME", "ROLE", "STATE", "EXPIRES", "PROJECTS", "EPISODE")
    for token in tokens:
        expires = f"{token.expires.astimezone():%Y-%m-%d %H:%M}" if token.expires else "never"
        tokens_table.add_row(
            token.name,
            token.role.value,
            apply_colour(_state(token)),
            expires,
            ", ".join(token.projects) or "all",
            token.episode,
        )
    show(tokens_table if tokens else "no tokens yet. Create one: tightloop token create NAME --role operator")


def revoke_token(context: click.Context, name: Annotated[str, Argument(help="Name of the token.")]) -> None:
    _tokens(session_of(context)).revoke(name)
    show(f"{name} was revoked")


def _tokens(session: Session) -> "Tokens":
    ledger = require_ledger(session.settings)
    # After `require_ledger`, which explains that the server part is missing.
    from tightloop.database.access import Tokens

    return Tokens(ledger.database)


def _state(token: "Token") -> str:
    if token.revoked is not None:
        return "revoked"
    return "valid" if token.is_valid(datetime.now(UTC)) else "expired"
