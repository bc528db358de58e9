"""The commands about things on this host: server and worker, files, settings, exports."""

import contextlib
import json
import os
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tightloop.checkpoint import CheckpointRecord, checkpoint_number
from tightloop.cli import render
from tightloop.cli.doctor import Finding, examine
from tightloop.cli.episodes import AsJson, Episode
from tightloop.cli.export import ask_all, json_text, writing
from tightloop.cli.server_part import Role, become_worker
from tightloop.cli.session import on_terminal, session_of
from tightloop.client import TightloopClient
from tightloop.errors import (
    EpisodeNotFoundError,
    GitError,
    InvalidRequestError,
    ServiceUnavailableError,
    WorkspaceError,
)

app = typer.Typer()
HOST = "This host"
GIT_TIMEOUT_S = 60


@app.command(rich_help_panel=HOST)
def up(
    context: typer.Context,
    role: Annotated[Role | None, typer.Option(help="What the worker is for. Default: all.")] = None,
    state_folder: Annotated[Path | None, typer.Option(help="Where histories and logs are kept.")] = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Turn payload encryption on, for workers and clients; makes a key.")
    ] = False,
) -> None:
    """Start the embedded Temporal server and a worker, until Ctrl-C."""
    options = [*(["--role", role.value] if role else []), *(["--encrypt"] if encrypt else [])]
    become_worker(session_of(context), "up", *options, state_folder=state_folder)


@app.command(rich_help_panel=HOST)
def replay(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="FILE|ID", help="A history or export file, an episode or a plan.")],
) -> None:
    """Replay a history against the current code, and tell what happened."""
    session = session_of(context)
    if not Path(what).exists() and Path(what).suffix != ".json":
        what = session.run(lambda client: _resolved(client, what))
    become_worker(session, "replay", what)


async def _resolved(client: TightloopClient, reference: str) -> str:
    try:
        return await client.resolve(reference)
    except EpisodeNotFoundError:
        with contextlib.suppress(EpisodeNotFoundError):
            return await client.plans.resolve(reference)
    raise EpisodeNotFoundError(
        f"there is no file, no episode and no plan {reference!r}. See: tightloop list, or tightloop plan list"
    )


@app.command(rich_help_panel="Look")
def diff(
    context: typer.Context,
    episode: Episode,
    before: Annotated[str, typer.Argument(metavar="A", help="Checkpoint, such as ckpt-1 or 1.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Checkpoint, such as ckpt-2 or 2.")],
    stat: Annotated[bool, typer.Option("--stat", help="Only the files and the number of lines.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how the files changed between two checkpoints."""

    async def look(client: TightloopClient, key: str) -> tuple[str, Path, tuple[CheckpointRecord, ...]]:
        workspace = (await client.summary(key)).workspace
        try:
            return key, Path(workspace), await client.checkpoints(key)
        except ServiceUnavailableError:
            # The refs in the workspace are enough; the list only helps with a fork.
            return key, Path(workspace), ()

    key, folder, records = session_of(context).on(episode, look)
    trees = [_tree(folder, key, name, records) for name in (before, after)]
    if as_json:
        render.show_json(_diff_document(folder, trees, stat=stat) | {"from": before, "to": after})
        return
    colour = "--color=always" if on_terminal() else "--color=never"
    typer.echo(_git(folder, *_DIFF, colour, *(["--stat"] if stat else []), *trees), nl=False)


_DIFF = ("diff", "--no-ext-diff", "--no-textconv")


def _diff_document(folder: Path, trees: list[str], *, stat: bool) -> dict[str, Any]:
    lines = _git(folder, *_DIFF, "--no-renames", "--numstat", "-z", *trees).split("\0")
    files = []
    for line in filter(None, lines):
        added, removed, path = line.split("\t", 2)
        binary = added == "-"
        files.append(
            {"path": path, "added": None if binary else int(added), "removed": None if binary else int(removed)}
        )
    return {"files": files} | ({} if stat else {"patch": _git(folder, *_DIFF, "--binary", *trees)})


def _tree(folder: Path, episode_id: str, name: str, records: tuple[CheckpointRecord, ...]) -> str:
    number = checkpoint_number(name)
    if number is None:
        raise InvalidRequestError(
            f"{name!r} is no checkpoint. Write it like ckpt-2 or 2; see: tightloop checkpoints {episode_id}"
        )
    if not folder.is_dir():
        raise WorkspaceError(_elsewhere(folder, episode_id))
    listed = [record.tree for record in records if record.number == number and record.tree]
    for candidate in (f"refs/tightloop/{episode_id}/{number}", *listed):
        found = _run_git(folder, "rev-parse", "--verify", "--quiet", f"{candidate}^{{tree}}")
        if found.returncode == 0:
            return found.stdout.strip()
    if _run_git(folder, "for-each-ref", "--count=1", f"refs/tightloop/{episode_id}").stdout.strip():
        raise InvalidRequestError(
            f"{episode_id} has no checkpoint {name} in {folder}. See: tightloop checkpoints {episode_id} --all"
        )
    raise WorkspaceError(_elsewhere(folder, episode_id))


def _elsewhere(folder: Path, episode_id: str) -> str:
    return (
        f"the files of {episode_id} are not in {folder} on this host ({socket.gethostname()}). "
        "Run this command on the host of its workspace"
    )


def _git(folder: Path, *arguments: str) -> str:
    done = _run_git(folder, *arguments)
    if done.returncode != 0:
        raise GitError(f"git {arguments[0]} failed in {folder}: {done.stderr.strip()}")
    return done.stdout


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # An inherited GIT_DIR or GIT_INDEX_FILE would point git at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ("git", "--no-pager", "-c", "core.fsmonitor=false", *arguments),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise GitError("git is not installed. Install it, for example: apt install git") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S} s in {folder}") from error


@app.command(rich_help_panel="Look")
def export(
    context: typer.Context,
    episode: Episode,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: stdout.")] = None,
) -> None:
    """Write everything about an episode, with its history, as one JSON document."""
    document = session_of(context).on(episode, _exported)
    for problem in document["problems"]:
        render.remark(problem)
    if out is None:
        render.show_json(document)
        return
    with writing(out):
        out.write_text(json_text(document), encoding="utf-8")
    render.show(f"wrote {out}. Replay it with: tightloop replay {out}")


async def _exported(client: TightloopClient, episode_id: str) -> dict[str, Any]:
    (status, request, timeline, checkpoints), problems = await ask_all(
        episode_id, client.status, client.request, client.timeline, client.checkpoints
    )
    return {
        "episode_id": episode_id,
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "problems": list(problems),
        "status": status,
        "request": request,
        "timeline": timeline,
        "checkpoints": checkpoints,
        "history": json.loads(await client.history_json(episode_id)),
    }


@app.command(rich_help_panel=HOST)
def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check this host and the Temporal server; exit code 1 when something needed is missing."""
    findings = examine(session_of(context))
    if as_json:
        render.show_json([vars(finding) for finding in findings])
    else:
        render.show(_findings_table(findings))
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)


def _findings_table(findings: list[Finding]) -> Any:
    made = render.table("WHAT", "STATE", "FOUND", "HOW TO GET IT")
    for finding in findings:
        state = "ok" if finding.ok else "missing" if finding.needed else "optional"
        name, found, remedy = map(Text, (finding.name, finding.found, "" if finding.ok else finding.remedy))
        made.add_row(name, render.coloured(state), found, remedy)
    return made


@app.command(rich_help_panel=HOST)
def settings(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the settings in force; secrets are masked."""
    found = session_of(context).settings
    if as_json:
        render.show_json(found)
    else:
        typer.echo(found.as_yaml(), nl=False)
