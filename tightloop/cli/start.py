"""The commands that start episodes, and the moment after any start."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from tightloop.cli.follow import follow
from tightloop.cli.render.terminal import remark, show_either
from tightloop.cli.request import (
    build_request,
    given,
    json_or_text,
    read_pairs,
    read_request_file,
    with_iterations,
    with_timeout,
)
from tightloop.cli.session import AsJson, Checkpoint, EpisodeId, Wait, leave, operator, session_of, within
from tightloop.client import Kind, TightloopClient
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeStatus
from tightloop.episode.progress.presets import Preset
from tightloop.episode.proof import ProofRule
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.executor.model import AgentMode, OnCrash
from tightloop.plan.request import PlanRequest
from tightloop.safety.verdict import Verdict

app = typer.Typer()
START = "Start"
OPENING_SECONDS = 3.0
"""How long a start waits for the workspace to be accepted or refused."""


@app.command(rich_help_panel=START)
def start(
    context: typer.Context,
    goal: Annotated[str | None, typer.Argument(help="The goal in plain words.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Top of the git working tree. Default: this folder.")] = None,
    done: Annotated[
        list[str] | None,
        typer.Option(help='Command that passes when the goal is met, such as "pytest -q". Repeatable.'),
    ] = None,
    check_timeout: Annotated[
        float | None, typer.Option(help="Seconds that each check may take, unless --file says otherwise. Default: 600.")
    ] = None,
    planner: Annotated[str | None, typer.Option(help="auto, openai or heuristic.")] = None,
    executor: Annotated[str | None, typer.Option(help="Executor that does the work; see: tightloop doctor.")] = None,
    fallback: Annotated[
        list[str] | None, typer.Option(help="Executor to use where the previous one is not available. Repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model for the executor.")] = None,
    mode: Annotated[
        AgentMode | None, typer.Option(help="What an agent may do to this host. Default: workspace.")
    ] = None,
    permissions: Annotated[
        Verdict | None, typer.Option(help="Answer to an agent that asks for permission. Default: allow.")
    ] = None,
    on_crash: Annotated[
        OnCrash | None, typer.Option(help="What to do when the worker dies during a delivery. Default: retry if safe.")
    ] = None,
    executor_option: Annotated[
        list[str] | None, typer.Option(help="Executor option as name=value, the value as JSON. Repeatable.")
    ] = None,
    preset: Annotated[
        Preset | None, typer.Option(help="How soon a person is asked about a deviation. Default: normal.")
    ] = None,
    allow: Annotated[
        list[ProofRule] | None,
        typer.Option(help="What may speak against the proof without a question, such as tests_changed. Repeatable."),
    ] = None,
    max_iterations: Annotated[int | None, typer.Option(help="Pause after this number of iterations.")] = None,
    worktree: Annotated[bool | None, typer.Option("--worktree", help="Work in a new git worktree.")] = None,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the episode. Default: a new one.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With the --id of a closed episode: start again, and keep what it left.")
    ] = False,
    file: Annotated[Path | None, typer.Option(help="Request as YAML or JSON; options override it.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the episode until it ends.")] = False,
    wait: Wait = None,
    as_json: AsJson = False,
) -> None:
    """Start an episode: one goal, pursued until its checks pass."""
    if replace and new_id is None:
        raise InvalidRequestError("--replace starts again under the id of a closed episode. Name it: --id ID --replace")
    session = session_of(context)
    written = read_request_file(file) if file else {}
    pairs = read_pairs("--executor-option", executor_option or [], "model=gpt-5.1")
    values = {name: json_or_text(value) for name, value in pairs.items()} or None
    choice = given(name=executor, fallback=fallback, model=model, mode=mode, permissions=permissions, options=values)
    choice |= given(on_crash=on_crash)
    budget = None if max_iterations is None else with_iterations(max_iterations)
    checks = with_timeout(done or written.get("definition_of_done"), check_timeout)
    options = given(
        goal=goal, definition_of_done=checks, planner=planner, preset=preset, worktree=worktree, allow=allow
    )
    options |= given(executor=choice or None, budget=budget)
    folder = Path(workspace or written.get("workspace") or ".").expanduser().resolve()
    request = build_request(session.settings, written, options, {"workspace": str(folder)})
    queue = session.settings.temporal.task_queue
    started, note = session.run(lambda client: start_and_wait(client, request, queue, new_id, replace=replace))
    if note:
        remark(note)
    hint = "" if watch else f"\nFollow it: tightloop watch {started}"
    show_either({"id": started}, f"started {started}{hint}", as_json=as_json)
    if watch:
        leave(follow(session, started, as_json=as_json, wait=wait))


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
        if not await client.pollers(task_queue):
            return (started, f"no worker polls task queue {task_queue!r}; {started} waits. Start one: tightloop up")
    await within(OPENING_SECONDS, _begun(client, started))
    return started, ""


async def _begun(client: TightloopClient, started: str) -> None:
    async with contextlib.aclosing(client.watch(started)) as changes:
        async for status in changes:
            if status.status == "failed" and (isinstance(status, EpisodeStatus) or not status.counts):
                raise InvalidRequestError(f"{started} could not start: {status.reason}")
            opened = status.phase is not EpisodePhase.OPENING if isinstance(status, EpisodeStatus) else status.counts
            if opened:
                return


@app.command(rich_help_panel=START)
def fork(
    context: typer.Context,
    workflow: EpisodeId,
    checkpoint: Checkpoint,
    new_id: Annotated[str | None, typer.Option("--id", help="Id of the new episode.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a new episode from a checkpoint, in a git worktree of its own."""
    made = session_of(context).on(
        workflow, lambda client, key: client.fork(key, checkpoint, new_id, by=operator()), Kind.EPISODE
    )
    show_either({"id": made}, f"started {made}", as_json=as_json)
