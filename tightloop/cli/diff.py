"""The command that shows what changed between two checkpoints: the files, or the plan."""

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tightloop.cli.render.terminal import on_terminal, plain, show_json
from tightloop.cli.session import AsJson, EpisodeId, session_of
from tightloop.cli.store import Store
from tightloop.client import Kind, TightloopClient
from tightloop.episode.checkpoint import CheckpointRecord, checkpoint_number
from tightloop.episode.messages.plan_change import PlanDelta, show_change, show_delta
from tightloop.episode.model import CheckpointFile
from tightloop.episode.planning import PlanRecord
from tightloop.errors import GitError, InvalidRequestError, ServiceUnavailableError, WorkspaceError
from tightloop.executor.messages.message import render_plan
from tightloop.host import store_folder

app = typer.Typer()
GIT_TIMEOUT_S = 60
# The user's own settings may name programs for differences: the output is ours to show.
_DIFF = ("diff", "--no-ext-diff", "--no-textconv")


@app.command(rich_help_panel="Look")
def diff(
    context: typer.Context,
    workflow: EpisodeId,
    before: Annotated[str, typer.Argument(metavar="A", help="Checkpoint, such as ckpt-1 or 1.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Checkpoint, such as ckpt-2 or 2.")],
    stat: Annotated[bool, typer.Option("--stat", help="Only the files and the number of lines.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="The text of the plan instead of the files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how the files, or the plan, of an episode changed between two checkpoints."""

    async def look(client: TightloopClient, key: str) -> tuple[str, Path, tuple[CheckpointRecord, ...]]:
        workspace = (await client.summary(key)).workspace
        try:
            return key, Path(workspace), await client.checkpoints(key)
        except ServiceUnavailableError:
            # The references in the store are enough for files; the list only helps with a fork.
            if plan:
                raise
            return key, Path(workspace), ()

    key, folder, records = session_of(context).on(workflow, look, Kind.EPISODE)
    numbers = [_number(key, name) for name in (before, after)]
    if plan:
        _show_plan_diff(Store(folder, key), records, numbers, as_json=as_json)
        return
    trees = [_tree(folder, key, number, records) for number in numbers]
    folder = store_folder(folder)
    if as_json:
        show_json(_diff_document(folder, trees, stat=stat) | {"from": before, "to": after})
        return
    colour = "--color=always" if on_terminal() else "--color=never"
    typer.echo(_git(folder, *_DIFF, colour, *(["--stat"] if stat else []), *trees), nl=False)


def _number(episode_id: str, name: str) -> int:
    number = checkpoint_number(name)
    if number is None:
        raise InvalidRequestError(
            f"{name!r} is not a checkpoint. Write it like ckpt-2 or 2; see: tightloop checkpoints {episode_id}"
        )
    return number


# -- the plan -----------------------------------------------------------------------------------


def _show_plan_diff(
    store: Store, records: Sequence[CheckpointRecord], numbers: Sequence[int], *, as_json: bool
) -> None:
    files = [_checkpoint_file(store, records, number) for number in numbers]
    old, new = (_plan_text(store, file) for file in files)
    delta = store.stored(files[1].plan_delta, PlanDelta) if files[1].plan_delta else None
    try:
        change = show_delta(old, delta) if delta is not None else show_change(old, new)
    except ValueError:
        # A delta leads from the plan of the checkpoint before it; other pairs are compared here.
        change = show_change(old, new)
    a, b = (f"ckpt-{number}" for number in numbers)
    if as_json:
        show_json({"from": a, "to": b, "plan_change": change})
        return
    typer.echo(plain(change or f"the plan is the same in {a} and {b}").rstrip("\n"))


def _checkpoint_file(store: Store, records: Sequence[CheckpointRecord], number: int) -> CheckpointFile:
    record = next((one for one in records if one.number == number), None)
    if record is None or record.state is None:
        known = ", ".join(one.id for one in records) or "none yet"
        raise InvalidRequestError(f"{store.workflow_id} has no checkpoint ckpt-{number}. Known: {known}")
    return store.stored(record.state, CheckpointFile)


def _plan_text(store: Store, file: CheckpointFile) -> str:
    """Return the plan that a checkpoint has; empty before the first plan."""
    message = store.stored(file.state.plan, PlanRecord).message if file.state.plan else None
    return render_plan(message) if message is not None else ""


# -- the files ----------------------------------------------------------------------------------


def _diff_document(folder: Path, trees: list[str], *, stat: bool) -> dict[str, Any]:
    # With renames, `-z` writes the two paths as fields of their own.
    lines = _git(folder, *_DIFF, "--no-renames", "--numstat", "-z", *trees).split("\0")
    files = []
    for line in filter(None, lines):
        added, removed, path = line.split("\t", 2)
        binary = added == "-"
        files.append(
            {"path": path, "added": None if binary else int(added), "removed": None if binary else int(removed)}
        )
    return {"files": files} | ({} if stat else {"patch": _git(folder, *_DIFF, "--binary", *trees)})


def _tree(workspace: Path, episode_id: str, number: int, records: tuple[CheckpointRecord, ...]) -> str:
    folder = store_folder(workspace)
    if folder.is_dir():
        # A fork has checkpoints of the episode that it was made from: their refs have another name.
        listed = [record.tree for record in records if record.number == number and record.tree]
        for candidate in (f"refs/tightloop/{episode_id}/{number}", *listed):
            found = _run_git(folder, "rev-parse", "--verify", "--quiet", f"{candidate}^{{tree}}")
            if found.returncode == 0:
                return found.stdout.strip()
        if _run_git(folder, "for-each-ref", "--count=1", f"refs/tightloop/{episode_id}").stdout.strip():
            raise InvalidRequestError(
                f"{episode_id} has no checkpoint ckpt-{number} in {folder}. "
                f"See: tightloop checkpoints {episode_id} --all"
            )
    raise WorkspaceError(
        f"{episode_id} works in {workspace}, and its snapshots are not in {folder} on this host "
        f"({socket.gethostname()}). Run this command on the host of its workspace, as the user of its worker"
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
            ("git", "--no-pager", f"--git-dir={folder}", *arguments),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            # Files need not be UTF-8.
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise GitError("git is not installed. Install it, for example: apt install git") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took longer than {GIT_TIMEOUT_S} s in {folder}") from error
