"""The commands that show episodes and plans: list, status, watch, timeline, checkpoints."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from tightloop.cli.follow import follow
from tightloop.cli.plan.stored import with_records
from tightloop.cli.render.episode import checkpoints_table
from tightloop.cli.render.plan import steps_table
from tightloop.cli.render.question import drift_lines, todo_lines
from tightloop.cli.render.terminal import as_plain_values, remark, show, show_either, show_json
from tightloop.cli.render.workflow import list_table, status_panel, timeline_table
from tightloop.cli.session import AsJson, EpisodeId, Id, JsonLines, Wait, leave, session_of, within
from tightloop.client import CLOSED_STATUSES, OPEN_STATUSES, Event, Kind, Status, Summary, TightloopClient
from tightloop.client.records.listing import START_HINT
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.display import reset_command
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.loop.model import LoopStatus
from tightloop.plan.request import StepLine
from tightloop.value import counted

EVENTS_SHOWN = 100
QUESTIONS_OF = 5
"""Workflows of a list whose questions are shown."""
QUESTION_SECONDS = 2.0
"""How long `list` waits for questions: it must be quick where no worker answers."""


def list_workflows(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help=f"One of {', '.join(OPEN_STATUSES + CLOSED_STATUSES)}.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only episodes, or only plans.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 50,
    as_json: AsJson = False,
) -> None:
    unread: list[SettingsError] = []

    async def question(client: TightloopClient, workflow_id: str) -> Status | None:
        try:
            return await within(QUESTION_SECONDS, client.status(workflow_id))
        except SettingsError as error:
            unread.append(error)
            return None

    async def look(client: TightloopClient) -> tuple[Sequence[Summary], list[Status | None]]:
        rows = await client.list(status, limit, kind=kind)
        waiting = [row.id for row in rows if row.pause_kind and not as_json][:QUESTIONS_OF]
        return rows, await asyncio.gather(*(question(client, one) for one in waiting))

    rows, waiting = session_of(context).run(look, compare_keys=False)
    if unread:
        remark(unread[0].message)
    if as_json:
        show_json(rows)
    elif rows:
        show(list_table(rows), *(line for one in waiting if one is not None for line in _named_todo(one)))
    else:
        what = kind or "episode or plan"
        show(f"no {what} is {status}" if status else f"no {what} yet. {START_HINT}")


def _named_todo(status: Status) -> list[str]:
    todo = todo_lines(status)
    name = status.episode_id if isinstance(status, EpisodeStatus) else status.plan_id
    return [f"{name}: {todo[0]}", *todo[1:], ""] if todo else []


def status(
    context: typer.Context,
    workflow: Id,
    steps: Annotated[bool, typer.Option("--steps", help="Also list all steps of a plan.")] = False,
    as_json: AsJson = False,
) -> None:

    async def look(client: TightloopClient, key: str) -> tuple[Status, tuple[StepLine, ...]]:
        try:
            return await client.status(key), await client.steps(key) if steps else ()
        except ServiceUnavailableError as error:
            found = with_records(await client.stored_status(key))
            remark(error.message)
            return found, ()

    found, lines = session_of(context).on(workflow, look)
    if as_json:
        document = found.model_dump(mode="json")
        show_json({**document, "steps": as_plain_values(lines)} if steps else document)
        return
    show(
        status_panel(found),
        *([steps_table(lines)] if steps else []),
        *drift_lines(() if isinstance(found, LoopStatus) else found.drifts),
    )


def watch(context: typer.Context, workflow: Id, wait: Wait = None, as_json: JsonLines = False) -> None:
    session = session_of(context)
    leave(follow(session, session.run(lambda client: client.resolve(workflow)), as_json=as_json, wait=wait))


def timeline(
    context: typer.Context,
    workflow: Id,
    after: Annotated[
        str, typer.Option(metavar="CURSOR", help="Only what follows the event with this cursor; see --json.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"Maximum number of events. Default: the last {EVENTS_SHOWN}.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All events, those of earlier runs included.")] = False,
    as_json: AsJson = False,
) -> None:
    most = limit or (None if after or all_ else EVENTS_SHOWN)

    async def look(client: TightloopClient, key: str) -> tuple[str, tuple[Event, ...]]:
        return key, await client.timeline(key, after=after, limit=most)

    key, found = session_of(context).on(workflow, look)
    show_either(found, timeline_table(found), as_json=as_json)
    if found and not as_json:
        if not after and len(found) == most:
            remark(f"earlier events: tightloop timeline {key} --all")
        remark(f"later ones: tightloop timeline {key} --after {found[-1].cursor}")


def checkpoints(
    context: typer.Context,
    workflow: EpisodeId,
    all_: Annotated[bool, typer.Option("--all", help="Also discarded ones, which an earlier restore left.")] = False,
    as_json: AsJson = False,
) -> None:

    async def look(client: TightloopClient, key: str) -> tuple[str, tuple[CheckpointRecord, ...]]:
        return key, tuple(await client.checkpoints(key))

    key, found = session_of(context).on(workflow, look, Kind.EPISODE)
    if as_json:
        show_json(found)
        return
    shown = [record for record in found if all_ or not record.discarded]
    show(checkpoints_table(shown))
    if hidden := len(found) - len(shown):
        remark(f"{counted(hidden, 'discarded checkpoint')} not shown; see them with --all. They can be restored, too.")
    if reset := reset_command(key, found):
        remark(f"to go back in Temporal, give run and event of a checkpoint (--json has both in full): {reset}")
