"""Commands for the project loop: plan, show, dispatch and verify."""

import contextlib
from typing import Annotated

import click

from tightloop.cli.follow import follow
from tightloop.cli.loop_views import gates_table, tasks_table
from tightloop.cli.parameters import Argument, AsJson, By, LoopId, NewId, Option, Watch
from tightloop.cli.session import exit_with_status, session_of, wait_at_most
from tightloop.cli.start import (
    Executor,
    ExecutorOptions,
    Model,
    Planner,
    Result,
    Scenarios,
    Setup,
    Unattended,
    Until,
    Workspace,
    budget_of,
    commit,
    drop_none,
    executor_values,
    find_project,
)
from tightloop.cli.steer import send
from tightloop.cli.terminal import show, show_either, show_json
from tightloop.cli.views import status_panel, todo_lines
from tightloop.client import Check, Kind, TightloopClient
from tightloop.errors import InvalidRequestError
from tightloop.executor.model import ExecutorChoice
from tightloop.loop.model import LoopRequest, LoopState, LoopStatus
from tightloop.operations import BY_NAME

PLAN_SECONDS = 60.0
"""Maximum time in seconds that `plan` waits for the tasks."""


def plan(
    context: click.Context,
    goal: Annotated[str, Argument(help="Goal in plain words. Default: fix the project's open problems.")] = "",
    workspace: Workspace = None,
    episode: Annotated[
        str, Option(help="Finished episode whose result the plan builds on. The project is not inspected again.")
    ] = "",
    packet: Annotated[
        str, Option(help="Id of an earlier inspection (pkt_...) to plan from. Default: inspect the project again.")
    ] = "",
    gate: Annotated[
        list[str] | None,
        Option(
            help='Command that must pass at the end, for example "pytest -q". Repeatable. Default: the project\'s '
            "own checks."
        ),
    ] = None,
    scenarios: Scenarios = None,
    parallel: Annotated[int | None, Option(help="Maximum number of concurrent tasks. Default: 4.")] = None,
    planner: Planner = None,
    model: Annotated[str, Option(help="Model that divides the work into tasks.")] = "",
    executor: Executor = None,
    executor_model: Model = None,
    executor_option: ExecutorOptions = None,
    unattended: Unattended = None,
    until: Until = None,
    setup: Setup = None,
    result: Result = None,
    new_id: NewId = None,
    as_json: AsJson = False,
) -> None:
    choice = drop_none(name=executor, model=executor_model, options=executor_values(executor_option))
    session, place = session_of(context), find_project(workspace or ".")
    request = LoopRequest(
        workspace=place["workspace"],
        folder=place.get("folder", ""),
        goal=goal,
        episode=episode,
        packet_id=packet,
        model=model,
        gates=tuple(Check(run=command) for command in gate or ()),
        scenarios=commit(session, scenarios, place["workspace"]),
        **drop_none(
            parallel=parallel,
            planner=planner,
            result=result,
            setup=setup,
            unattended=unattended,
            budget=budget_of(None, until),
            executor=ExecutorChoice(**choice) if choice else None,
        ),
    )

    async def start(client: TightloopClient) -> tuple[str, LoopStatus | None]:
        started = await client.plan_project(request, new_id=new_id)
        # A model may plan for minutes; by then the id is more useful than waiting.
        return started, await wait_at_most(PLAN_SECONDS, _wait_for_draft(client, started))

    started, status = session.run(start)
    if status is None:
        message = f"{started} is still being planned. Show its status: tightloop status {started}"
        show_either({"id": started, "status": LoopState.DRAFT.value}, message, as_json=as_json)
        return
    if as_json:
        show_json(status.model_dump(mode="json"))
    else:
        _show(status)
    if status.status is LoopState.FAILED:
        raise click.exceptions.Exit(1)


def show_plan(context: click.Context, workflow: LoopId, as_json: AsJson = False) -> None:
    status = session_of(context).on(workflow, _status, Kind.LOOP)
    if as_json:
        show_json(status.model_dump(mode="json"))
    else:
        _show(status)


def verify(
    context: click.Context, workflow: LoopId, by: By = None, watch: Watch = False, as_json: AsJson = False
) -> None:
    key = send(context, BY_NAME["verify"], workflow, by=by, as_json=as_json)
    if watch:
        exit_with_status(follow(session_of(context), key, as_json=as_json))


async def _wait_for_draft(client: TightloopClient, plan_id: str) -> LoopStatus:
    """Wait until a plan has become a draft with tasks, or has ended."""
    async with contextlib.aclosing(client.watch(plan_id)) as changes:
        async for status in changes:
            assert isinstance(status, LoopStatus)
            # A plan that failed during planning allows nothing any more.
            if "dispatch" in status.possible or not status.possible:
                return status
    return await _status(client, plan_id)


async def _status(client: TightloopClient, plan_id: str) -> LoopStatus:
    status = await client.status(plan_id)
    if not isinstance(status, LoopStatus):
        raise InvalidRequestError(f"{plan_id} is not a project plan")
    return status


def _show(status: LoopStatus) -> None:
    checks = status.gate_result.checks if status.gate_result is not None else ()
    parts = [tasks_table(status.tasks)] if status.tasks else []
    show(status_panel(status), *parts, *([gates_table(checks)] if checks else []), *todo_lines(status))
