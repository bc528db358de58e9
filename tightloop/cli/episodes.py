"""The commands about episodes: start them, look at them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tightloop.cli import render
from tightloop.cli.follow import follow_as_json, follow_lines, follow_live, remark_silence
from tightloop.cli.opening import opened
from tightloop.cli.request import build_request, defaults_from, read_options, read_request_file, with_iterations
from tightloop.cli.session import Session, complete_episode, exit_code, on_terminal, operator, session_of
from tightloop.client import CLOSED_STATUSES, OPEN_STATUSES, TightloopClient
from tightloop.episode import EpisodePhase, EpisodeRequest, EpisodeStatus
from tightloop.executor import AgentMode, PermissionRule
from tightloop.settings import Settings

app = typer.Typer()
START, LOOK = "Start", "Look"

Episode = Annotated[
    str,
    typer.Argument(metavar="ID", help="Episode id, its beginning, or 'last'.", autocompletion=complete_episode),
]
Checkpoint = Annotated[str, typer.Argument(metavar="CKPT", help="Checkpoint, such as ckpt-2 or 2.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for programs.")]


@app.command(rich_help_panel=START)
def start(
    context: typer.Context,
    goal: Annotated[str | None, typer.Argument(help="What shall be reached.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Top of the git working tree. Default: this folder.")] = None,
    done: Annotated[
        list[str] | None,
        typer.Option(help='Command that passes when the goal is met, such as "pytest -q". Repeatable.'),
    ] = None,
    planner: Annotated[str | None, typer.Option(help="auto, openai or heuristic.")] = None,
    executor: Annotated[str | None, typer.Option(help="Who does the work; see: tightloop doctor.")] = None,
    fallback: Annotated[
        list[str] | None, typer.Option(help="Executor to use where the one before cannot be. Repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model that the executor shall use.")] = None,
    mode: Annotated[
        AgentMode | None, typer.Option(help="What an agent may do to this host. Default: workspace.")
    ] = None,
    permissions: Annotated[
        PermissionRule | None, typer.Option(help="What an agent is answered that asks first. Default: allow.")
    ] = None,
    executor_option: Annotated[
        list[str] | None, typer.Option(help="name=value, the value as JSON. Repeatable.")
    ] = None,
    max_iterations: Annotated[int | None, typer.Option(help="Pause after so many iterations.")] = None,
    worktree: Annotated[bool | None, typer.Option("--worktree", help="Work in a git worktree of its own.")] = None,
    episode_id: Annotated[str | None, typer.Option("--id", help="Id of the episode. Default: a new one.")] = None,
    file: Annotated[Path | None, typer.Option(help="Request as YAML or JSON; options win over it.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show what happens.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start an episode: one goal, pursued until its checks are green."""
    session = session_of(context)
    written = read_request_file(file) if file else {}
    given: dict[str, Any] = {"goal": goal, "definition_of_done": done, "planner": planner, "worktree": worktree}
    options = {name: value for name, value in given.items() if value is not None}
    choice: dict[str, Any] = {
        "name": executor,
        "fallback": fallback,
        "model": model,
        "mode": mode,
        "permissions": permissions,
    }
    choice["options"] = read_options(executor_option) if executor_option else None
    if given_choice := {name: value for name, value in choice.items() if value is not None}:
        options["executor"] = given_choice
    if max_iterations is not None:
        options["budget"] = with_iterations(max_iterations)
    folder = Path(workspace or written.get("workspace") or ".").expanduser().resolve()
    request = build_request(defaults_from(session.settings), written, options, {"workspace": str(folder)})
    new_id, missing = session.run(lambda client: _started(client, request, session.settings, episode_id))
    if missing:
        render.remark(missing)
    if as_json:
        render.show_json({"episode_id": new_id})
    else:
        render.show(f"started {new_id}", *([] if watch else [f"Look at it: tightloop watch {new_id}"]))
    if watch:
        _watch(session, new_id, as_json=as_json)


async def _started(
    client: TightloopClient, request: EpisodeRequest, settings: Settings, episode_id: str | None
) -> tuple[str, str]:
    """Start an episode, and stay for the moment in which its workspace may be refused.

    Returns the id, and a sentence where no worker is there to take it.
    """
    new_id = await client.start(request, episode_id=episode_id)
    changes = client.watch(new_id)
    return new_id, await opened(client, settings.temporal.task_queue, new_id, changes, _has_begun)


def _has_begun(status: EpisodeStatus) -> bool:
    return status.status != "failed" and status.phase is not EpisodePhase.OPENING


@app.command("list", rich_help_panel=LOOK)
def list_episodes(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help=f"One of {', '.join(OPEN_STATUSES + CLOSED_STATUSES)}.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List episodes, the newest first."""
    rows = session_of(context).run(lambda client: client.list(status, limit))
    if as_json:
        render.show_json(rows)
    elif rows:
        render.show(render.episodes_table(rows))
    else:
        which = f"no episode is {status}" if status else "there are no episodes yet"
        render.show(f'{which}. Start one: tightloop start "make the tests pass" --done "pytest -q"')


@app.command(rich_help_panel=LOOK)
def status(context: typer.Context, episode: Episode, as_json: AsJson = False) -> None:
    """Show where an episode is, and what it waits for."""
    found = session_of(context).on(episode, lambda client, key: client.status(key))
    render.answer(found, render.status_panel(found), as_json=as_json)


@app.command(rich_help_panel=LOOK)
def watch(
    context: typer.Context,
    episode: Episode,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line, one line a change.")] = False,
) -> None:
    """Show what happens until the episode ends; exit code 0 when it succeeded, 1 when not."""
    _watch(session_of(context), episode, as_json=as_json)


def _watch(session: Session, reference: str, *, as_json: bool) -> None:
    async def follow(client: TightloopClient, episode_id: str) -> EpisodeStatus | None:
        changes = client.watch(episode_id, on_silence=remark_silence)
        if as_json:
            return await follow_as_json(changes)
        return await (follow_live if on_terminal() else follow_lines)(changes)

    last = session.on(reference, follow)
    if last is not None and exit_code(last):
        raise typer.Exit(exit_code(last))


@app.command(rich_help_panel=LOOK)
def checkpoints(
    context: typer.Context,
    episode: Episode,
    all_: Annotated[bool, typer.Option("--all", help="Also those that the episode went back behind.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints that an episode can go back to."""
    found = session_of(context).on(episode, lambda client, key: client.checkpoints(key))
    if as_json:
        render.show_json(found)
        return
    shown = [record for record in found if all_ or not record.discarded]
    render.show(render.checkpoints_table(shown))
    hidden = len(found) - len(shown)
    if hidden:
        render.remark(f"{hidden} discarded not shown; see them with --all. They can be restored, too.")


@app.command(rich_help_panel=LOOK)
def timeline(context: typer.Context, episode: Episode, as_json: AsJson = False) -> None:
    """Show what happened in an episode, newest last."""
    found = session_of(context).on(episode, lambda client, key: client.timeline(key))
    render.answer(found, render.timeline_table(found), as_json=as_json)


@app.command(rich_help_panel=START)
def fork(
    context: typer.Context,
    episode: Episode,
    checkpoint: Checkpoint,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the new episode.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a new episode from a checkpoint, in a git worktree of its own."""
    made = session_of(context).on(episode, lambda client, key: client.fork(key, checkpoint, new_id, by=operator()))
    render.answer({"episode_id": made}, f"started {made}", as_json=as_json)
