"""The commands that steer an episode: pause, answer, give more, change, go back, end."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from tightloop.cli import render
from tightloop.cli.episodes import AsJson, Checkpoint, Episode
from tightloop.cli.session import operator, session_of, within
from tightloop.client import TightloopClient
from tightloop.control import ExecutorAmendment
from tightloop.errors import InvalidRequestError
from tightloop.executor import AnswerKind, PermissionRule

app = typer.Typer()
STEER = "Steer"
END_SECONDS = 5

Reason = Annotated[str, typer.Option(help="Why; kept in the timeline.")]
Steering = Callable[[TightloopClient, str], Awaitable[str]]


def _steer(context: typer.Context, episode: str, work: Steering, *, as_json: bool) -> None:
    """Do one thing with an episode, and show the sentence that came of it."""

    async def named(client: TightloopClient, key: str) -> tuple[str, str]:
        return key, await work(client, key)

    key, sentence = session_of(context).on(episode, named)
    render.answer({"episode_id": key, "message": sentence}, sentence, as_json=as_json)


@app.command(rich_help_panel=STEER)
def pause(context: typer.Context, episode: Episode, reason: Reason = "", as_json: AsJson = False) -> None:
    """Pause an episode at its next safe point; what runs now may finish."""

    async def work(client: TightloopClient, key: str) -> str:
        await client.pause(key, reason, by=operator())
        return f"{key} pauses at its next safe point. Go on with: tightloop resume {key}"

    _steer(context, episode, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def resume(
    context: typer.Context,
    episode: Episode,
    note: Annotated[str, typer.Option(help="Something that the planner shall know.")] = "",
    checkpoint: Annotated[str | None, typer.Option(help="Go back to this checkpoint first.")] = None,
    as_json: AsJson = False,
) -> None:
    """End a pause; edits that you made meanwhile are kept."""

    async def work(client: TightloopClient, key: str) -> str:
        await client.resume(key, note=note, checkpoint_id=checkpoint, by=operator())
        return f"{key} goes on" + (f" from {checkpoint}" if checkpoint else "")

    _steer(context, episode, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def answer(
    context: typer.Context,
    episode: Episode,
    kind: Annotated[
        AnswerKind,
        typer.Argument(metavar="ANSWER", help="allow or deny a permission; done, failed or refused for work."),
    ],
    text: Annotated[str, typer.Option(help="What you did, or why not.")] = "",
    as_json: AsJson = False,
) -> None:
    """Answer what an executor asks; see what it is with: tightloop status ID."""
    _steer(context, episode, lambda client, key: client.answer(key, kind, text, by=operator()), as_json=as_json)


@app.command(rich_help_panel=STEER)
def restore(
    context: typer.Context, episode: Episode, checkpoint: Checkpoint, reason: Reason = "", as_json: AsJson = False
) -> None:
    """Go back to a checkpoint, state and files; opens a closed episode again."""

    async def work(client: TightloopClient, key: str) -> str:
        return await client.restore(key, checkpoint, reason=reason, by=operator())

    _steer(context, episode, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def respond(
    context: typer.Context,
    episode: Episode,
    text: Annotated[str, typer.Argument(help="What the planner shall know.")],
    as_json: AsJson = False,
) -> None:
    """Tell the planner something, or report on the work you were asked for; ends a pause."""
    _steer(context, episode, lambda client, key: client.respond(key, text, by=operator()), as_json=as_json)


@app.command("top-up", rich_help_panel=STEER)
def top_up(
    context: typer.Context,
    episode: Episode,
    iterations: Annotated[int, typer.Option(help="More iterations.")] = 0,
    tokens: Annotated[int, typer.Option(help="More tokens.")] = 0,
    cost_usd: Annotated[float, typer.Option(help="More dollars.")] = 0.0,
    wall_minutes: Annotated[float, typer.Option(help="More minutes of work.")] = 0.0,
    executor_failures: Annotated[int, typer.Option(help="More failures of the executor.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Raise the budget; an episode that waits for it goes on."""

    async def work(client: TightloopClient, key: str) -> str:
        return await client.top_up(
            key,
            iterations=iterations,
            tokens=tokens,
            cost_usd=cost_usd,
            wall_minutes=wall_minutes,
            executor_failures=executor_failures,
        )

    _steer(context, episode, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def amend(
    context: typer.Context,
    episode: Episode,
    goal: Annotated[str, typer.Option(help="The new goal.")] = "",
    done: Annotated[list[str] | None, typer.Option(help="The new definition of done. Repeatable.")] = None,
    executor: Annotated[str, typer.Option(help="Who does the work from now on.")] = "",
    fallback: Annotated[list[str] | None, typer.Option(help="Its fallbacks. Repeatable.")] = None,
    permissions: Annotated[PermissionRule | None, typer.Option(help="What it is answered when it asks.")] = None,
    planner: Annotated[str, typer.Option(help="Who plans from now on.")] = "",
    as_json: AsJson = False,
) -> None:
    """Change the goal, the definition of done, or who works on it."""
    choice = ExecutorAmendment(name=executor, fallback=tuple(fallback) if fallback else None, permissions=permissions)
    checks = [command for command in done or () if command.strip()]
    if not (goal.strip() or checks or planner or choice != ExecutorAmendment()):
        raise InvalidRequestError('nothing is changed. Give --goal "...", --done "pytest -q" or --executor NAME')

    async def work(client: TightloopClient, key: str) -> str:
        changes = None if choice == ExecutorAmendment() else choice
        return await client.amend_goal(
            key, goal=goal, definition_of_done=done or (), executor=changes, planner=planner, by=operator()
        )

    _steer(context, episode, work, as_json=as_json)


@app.command(rich_help_panel=STEER)
def abort(context: typer.Context, episode: Episode, reason: Reason = "", as_json: AsJson = False) -> None:
    """End an episode for good; its files stay as they are."""

    async def work(client: TightloopClient, key: str) -> str:
        await client.abort(key, reason, by=operator())
        if await within(END_SECONDS, client.result(key)) is None:
            return f"{key} aborts as soon as a worker takes the message"
        return f"{key} is aborted; its files are as it left them"

    _steer(context, episode, work, as_json=as_json)
