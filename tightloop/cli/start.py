"""The commands that start episodes, and the moment after any start."""

import contextlib
from typing import Annotated

import typer

from tightloop.cli import options
from tightloop.cli.follow import follow
from tightloop.cli.render.terminal import remark, show_either
from tightloop.cli.request import budget_of, executor_values, given, read_request
from tightloop.cli.session import AsJson, Checkpoint, EpisodeId, Session, Wait, leave, operator, session_of, within
from tightloop.client import Kind, TightloopClient
from tightloop.client.workers import explain_idle
from tightloop.coder.model import CODER
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeStatus
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.loop.model import LoopStatus
from tightloop.plan.request import PlanRequest

OPENING_SECONDS = 3.0
"""How long a start waits for the workspace to be accepted or refused."""


def start(
    context: typer.Context,
    goal: options.Goal = None,
    workspace: options.Workspace = None,
    done: options.Done = None,
    check_timeout: options.CheckTimeout = None,
    planner: options.Planner = None,
    executor: options.Executor = None,
    fallback: options.Fallback = None,
    model: options.Model = None,
    mode: options.Mode = None,
    permissions: options.Permissions = None,
    on_crash: options.WhenCrashed = None,
    executor_option: options.ExecutorOptions = None,
    preset: options.ChosenPreset = None,
    allow: options.Allow = None,
    max_iterations: options.MaxIterations = None,
    worktree: options.Worktree = None,
    new_id: options.EpisodeNewId = None,
    replace: options.Replace = False,
    file: options.RequestFile = None,
    watch: options.Watch = False,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    if replace and new_id is None:
        raise InvalidRequestError("--replace starts again under the id of a closed episode. Name it: --id ID --replace")
    session = session_of(context)
    choice = given(name=executor, fallback=fallback, model=model, mode=mode, permissions=permissions)
    choice |= given(on_crash=on_crash, options=executor_values(executor_option))
    asked = given(goal=goal, definition_of_done=done, planner=planner, preset=preset, worktree=worktree, allow=allow)
    asked |= given(executor=choice or None, budget=budget_of(max_iterations))
    request = read_request(session.settings, file, asked, workspace=workspace, check_timeout=check_timeout)
    started = start_now(session, request, new_id, replace=replace, as_json=as_json, followed=watch)
    if watch:
        leave(follow(session, started, as_json=as_json, wait=wait))


def code(
    context: typer.Context,
    goal: options.Goal = None,
    workspace: options.Workspace = None,
    done: options.Done = None,
    check_timeout: options.CheckTimeout = None,
    model: options.Model = None,
    allow: options.Allow = None,
    max_iterations: options.MaxIterations = None,
    worktree: options.Worktree = None,
    new_id: options.EpisodeNewId = None,
    watch: options.Watch = False,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    session = session_of(context)
    asked = given(goal=goal, definition_of_done=done, worktree=worktree, allow=allow)
    asked |= given(executor=given(name=CODER, model=model), budget=budget_of(max_iterations))
    request = read_request(session.settings, None, asked, workspace=workspace, check_timeout=check_timeout)
    started = start_now(session, request, new_id, replace=False, as_json=as_json, followed=watch)
    if watch:
        leave(follow(session, started, as_json=as_json, wait=wait))


def start_now(
    session: Session,
    request: EpisodeRequest,
    new_id: str | None,
    *,
    replace: bool,
    as_json: bool,
    followed: bool,
) -> str:
    """Start an episode, say so, and return its id."""
    queue = session.settings.temporal.task_queue
    started, note = session.run(lambda client: start_and_wait(client, request, queue, new_id, replace=replace))
    if note:
        remark(note)
    hint = "" if followed else f"\nFollow it: tightloop watch {started}"
    show_either({"id": started}, f"started {started}{hint}", as_json=as_json)
    return started


async def start_and_wait(
    client: TightloopClient,
    request: EpisodeRequest | PlanRequest,
    task_queue: str,
    new_id: str | None,
    *,
    replace: bool = False,
) -> tuple[str, str]:
    """Start an episode or a plan, and wait for the moment in which it may be refused.

    Returns its id, and a remark where no worker is there to take it.

    Raises:
        InvalidRequestError: it was refused; the message says why.
    """
    started = await client.start(request, new_id=new_id, replace=replace)
    # Only a hint: a failure to ask for pollers must not stop the start.
    with contextlib.suppress(TightloopError):
        workers = await client.pollers(task_queue)
        if not workers:
            return (started, f"no worker polls task queue {task_queue!r}; {started} waits. Start one: tightloop up")
        if idle := explain_idle(task_queue, workers):
            return started, f"{started} waits. {idle}"
    await within(OPENING_SECONDS, _begun(client, started))
    return started, ""


async def _begun(client: TightloopClient, started: str) -> None:
    async with contextlib.aclosing(client.watch(started)) as changes:
        async for status in changes:
            assert not isinstance(status, LoopStatus)
            if status.status == "failed" and (isinstance(status, EpisodeStatus) or not status.counts):
                raise InvalidRequestError(f"{started} could not start: {status.reason}")
            opened = status.phase is not EpisodePhase.OPENING if isinstance(status, EpisodeStatus) else status.counts
            if opened:
                return


def fork(
    context: typer.Context,
    workflow: EpisodeId,
    checkpoint: Checkpoint,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the new episode.")] = None,
    as_json: AsJson = False,
) -> None:
    made = session_of(context).on(
        workflow, lambda client, key: client.fork(key, checkpoint, new_id, by=operator()), Kind.EPISODE
    )
    show_either({"id": made}, f"started {made}", as_json=as_json)
