"""The command that shows what changed between two checkpoints: the files, or the plan."""

from pathlib import Path
from typing import Annotated

import typer

from tightloop.cli.render.terminal import on_terminal, plain, show_json
from tightloop.cli.session import AsJson, EpisodeId, session_of
from tightloop.client import Kind, TightloopClient
from tightloop.client.records.changes import TreeChange, plan_change, read_number
from tightloop.client.records.store import Store
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import ServiceUnavailableError


def diff(
    context: typer.Context,
    workflow: EpisodeId,
    before: Annotated[str, typer.Argument(metavar="A", help="Checkpoint, such as ckpt-1 or 1.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Checkpoint, such as ckpt-2 or 2.")],
    stat: Annotated[bool, typer.Option("--stat", help="Only the files and the number of lines.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="The text of the plan instead of the files.")] = False,
    as_json: AsJson = False,
) -> None:

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
    numbers = [read_number(key, name) for name in (before, after)]
    if plan:
        _show_plan(Store(folder, key), numbers, records, as_json=as_json)
    else:
        _show_files(TreeChange(folder, key, numbers, records), before, after, stat=stat, as_json=as_json)


def _show_plan(store: Store, numbers: list[int], records: tuple[CheckpointRecord, ...], *, as_json: bool) -> None:
    change = plan_change(store, numbers, records)
    a, b = (f"ckpt-{number}" for number in numbers)
    if as_json:
        show_json({"from": a, "to": b, "plan_change": change})
        return
    typer.echo(plain(change or f"the plan is the same in {a} and {b}").rstrip("\n"))


def _show_files(change: TreeChange, before: str, after: str, *, stat: bool, as_json: bool) -> None:
    if not as_json:
        colour = "--color=always" if on_terminal() else "--color=never"
        typer.echo(change.text(colour, *(["--stat"] if stat else [])), nl=False)
        return
    patch = {} if stat else {"patch": change.text("--binary")}
    files = [file.model_dump() for file in change.files()]
    show_json({"files": files, **patch, "from": before, "to": after})
