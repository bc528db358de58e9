"""Partial failure of a project's plan, and tasks and gates that attack it, on the real server with real git."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.support.doubles import ScriptedPlanner, claims_done
from tests.support.doubles import planned as step
from tests.support.episodes import Git, Working, eventually
from tests.support.loops import (
    LOOP_SECONDS,
    ObedientExecutor,
    ScriptedTaskPlanner,
    ended,
    planned,
    planner_of_goals,
    task,
)
from tightloop.client import TightloopClient
from tightloop.errors import InvalidRequestError
from tightloop.host import store_folder
from tightloop.loop.model import LoopRequest, LoopResult, LoopState, LoopStatus, LoopTask, TaskState
from tightloop.run.outcome import FAILED, exit_code

Looping = Callable[..., Any]
NEVER = "test -e never.txt"


@pytest.fixture
def looping(working: Working, registry: Callable[..., dict[str, Any]]) -> Looping:
    def run(*tasks: LoopTask, planner: ScriptedPlanner | None = None) -> Any:
        of_tasks = ScriptedTaskPlanner(*tasks)
        parts = {**registry(command=ObedientExecutor()), "task_planners": lambda _kind, _model: of_tasks}
        return working(planner or planner_of_goals(), **parts)

    return run


def request_on(workspace: Path, *gates: str, **changes: Any) -> LoopRequest:
    return LoopRequest.model_validate(
        {"workspace": str(workspace), "goal": "make files", "gates": gates or ("true",), **changes}
    )


async def status_of(client: TightloopClient, plan_id: str) -> LoopStatus:
    status = await client.status(plan_id)
    assert isinstance(status, LoopStatus)
    return status


async def result_of(client: TightloopClient, plan_id: str) -> LoopResult:
    result = await client.result(plan_id)
    assert isinstance(result, LoopResult)
    return result


def states(tasks: tuple[LoopTask, ...]) -> list[str]:
    return [each.state.value for each in tasks]


async def run_wait(client: TightloopClient, plan_id: str) -> Any:
    """Wait until a run of the plan asks a person; return the question."""

    async def asks() -> Any:
        children = (await status_of(client, plan_id)).children
        return children[0] if children else None

    return await eventually(asks, seconds=LOOP_SECONDS)


async def test_failed_task_is_retried_by_a_person_or_given_up_and_nothing_of_the_rest_is_lost(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    """An episode that spent its budget asks; cancelled it is an error, and so is what depends on it."""
    tasks = (
        task(1, "echo 1 > made1.txt", "test -s made1.txt"),
        task(2, "date +%N >> tried.txt", NEVER),
        task(3, "echo 3 > made3.txt", "test -s made3.txt", 2),
    )
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, "test -s made1.txt", budget={"max_iterations": 1}))
        await client.dispatch(plan_id)
        wait = await run_wait(client, plan_id)
        with pytest.raises(InvalidRequestError, match=r"verify: the plan is RUNNING, and [23] tasks have not ended"):
            await client.verify(plan_id)
        await client.top_up(wait.workflow_id, iterations=1)
        again = await eventually(_asks_again(client, plan_id, wait.question.id), seconds=LOOP_SECONDS)
        await client.cancel(again.workflow_id, "give it up", by="ada")
        status = await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert states(status.tasks) == ["COMPLETE", "ERROR", "ERROR"]
    assert "give it up" in status.tasks[1].message
    assert status.tasks[2].message == "the task depends on ptask_2, which did not complete"
    assert (result.outcome, result.reason) == (LoopState.FAILED, "not complete: ptask_2, ptask_3")
    assert result.gate_result is not None
    assert result.gate_result.passed
    assert (workspace / "made1.txt").exists()
    assert not (workspace / "tried.txt").exists(), "what a failed task did is kept aside"


def _asks_again(client: TightloopClient, plan_id: str, before: str) -> Callable[[], Any]:
    async def asks() -> Any:
        children = (await status_of(client, plan_id)).children
        return next((wait for wait in children if wait.question.id != before), None)

    return asks


@pytest.mark.parametrize("end", ["cancelled", "terminated"])
async def test_plan_with_a_task_that_did_not_complete_is_never_verified(
    client: TightloopClient, temporal_client: Client, looping: Looping, workspace: Path, end: str
) -> None:
    tasks = (task(1, "echo 1 > made1.txt", "test -s made1.txt"), task(2, "date +%N >> tried.txt", NEVER))
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, "test -s made1.txt", budget={"max_iterations": 1}))
        await client.dispatch(plan_id)
        wait = await run_wait(client, plan_id)
        if end == "terminated":
            await temporal_client.get_workflow_handle(wait.workflow_id).terminate("by an operator of Temporal")
        else:
            await client.cancel(wait.workflow_id, "give it up", by="ada")
        await ended(client, plan_id)
        # Nothing leads around the task: it is neither skipped nor retried, and the plan has no text to replace.
        for ask in (
            client.answer(plan_id, "skip", by="ada"),
            client.run_step(plan_id, "ptask_2"),
            client.replan(plan_id, "id: p\nsteps: []\n"),
        ):
            with pytest.raises(InvalidRequestError):
                await ask
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
        status = await status_of(client, plan_id)
    assert states(result.tasks) == ["COMPLETE", "ERROR"]
    assert (result.outcome, result.reason, result.qualifier) == (LoopState.FAILED, "not complete: ptask_2", "")
    assert exit_code(status.list_status, status.qualifier, is_closed=True) == FAILED


@pytest.mark.parametrize("gate", ["kill -9 $$", "echo 'no tests ran in 0.01s'; exit 5", "no-such-program"])
async def test_plan_with_a_gate_that_did_not_pass_is_never_verified(
    client: TightloopClient, looping: Looping, workspace: Path, gate: str
) -> None:
    async with looping(task(1, "echo 1 > made1.txt", "test -s made1.txt")):
        plan_id = await planned(client, request_on(workspace, {"run": gate, "name": "bad"}, "test -s made1.txt"))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert (result.outcome, result.reason) == (LoopState.FAILED, "gate:bad did not pass")


async def test_plan_that_is_cancelled_while_its_gates_run_is_not_verified(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    async with looping(task(1, "echo 1 > made1.txt", "test -s made1.txt")):
        plan_id = await planned(client, request_on(workspace, "sleep 60", "test -s made1.txt"))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)

        async def runs() -> bool:
            gates = (await status_of(client, plan_id)).gate_result
            return gates is not None and any(check.running for check in gates.checks)

        await eventually(runs, seconds=LOOP_SECONDS)
        await client.cancel(plan_id, "enough", by="ada")
        result = await result_of(client, plan_id)
    assert (result.outcome, result.reason) == (LoopState.CANCELLED, "enough (by ada)")
    assert result.gate_result is None or not result.gate_result.passed


async def test_conflict_that_nobody_resolves_fails_the_plan(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    # Neither command removes the conflict markers, so the task that resolves the conflict cannot end.
    tasks = (
        task(1, "sed -i '1s/.*/one/' notes.txt", "grep -qx one notes.txt"),
        task(2, "sed -i '1s/.*/two/' notes.txt", "grep -qx two notes.txt"),
    )
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, budget={"max_iterations": 1}))
        await client.dispatch(plan_id)
        wait = await run_wait(client, plan_id)
        await client.cancel(wait.workflow_id, "give it up", by="ada")
        await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert sorted(states(result.tasks)) == ["COMPLETE", "ERROR", "ERROR"]
    assert result.outcome is LoopState.FAILED
    assert result.reason.startswith("not complete: ptask_")
    assert "ptask_3" in result.reason


@pytest.mark.parametrize(
    ("tasks", "qualifier"),
    [
        pytest.param(
            (task(1, "echo 1 > made1.txt", "test -e app.py"), task(2, "echo 2 > made2.txt", "test -s made2.txt")),
            "not proven: no proof of ptask_1",
            id="a check that never failed",
        ),
        pytest.param(
            (task(1, "echo 1 > made1.txt", "test -s made1.txt"), task(2, "rm made1.txt", "test ! -e made1.txt", 1)),
            "not proven: 0 files changed",
            id="undone work",
        ),
        pytest.param(
            (task(1, "true", "test -e app.py"),),
            "not proven: 0 files changed, no proof of ptask_1",
            id="no work, and a check that never failed",
        ),
    ],
)
async def test_verified_says_what_is_not_proven(
    client: TightloopClient,
    looping: Looping,
    workspace: Path,
    cli: Callable[..., Any],
    tasks: tuple[LoopTask, ...],
    qualifier: str,
) -> None:
    once = ScriptedPlanner(lambda briefing: step(briefing.goal) if briefing.iteration == 1 else claims_done())
    async with looping(*tasks, planner=once):
        plan_id = await planned(client, request_on(workspace, "test -e app.py"))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
        watched = await cli("watch", plan_id)
        shown = await cli("status", plan_id)
    assert (result.outcome, result.qualifier) == (LoopState.VERIFIED, qualifier)
    assert result.files_changed == (0 if "0 files" in qualifier else None)
    assert watched[0] == 4
    assert f"VERIFIED, {qualifier} (1 gate passed)" in watched[1]
    assert f"verified, {qualifier}" in " ".join(shown[1].replace("│", " ").split())


async def test_planner_that_returns_no_tasks_fails_the_plan(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    async with looping():
        plan_id = await client.plan_project(request_on(workspace))
        result = await result_of(client, plan_id)
    assert (result.outcome, result.reason) == (LoopState.FAILED, "the planner returned no tasks")


async def test_cancel_in_the_middle_of_dispatch_keeps_what_was_merged(
    client: TightloopClient, looping: Looping, workspace: Path, git: Git
) -> None:
    tasks = (
        task(1, "echo 1 > made1.txt", "test -s made1.txt"),
        task(2, "sleep 60", "true", 1),
        task(3, "echo 3 > made3.txt", "test -s made3.txt", 2),
    )
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, parallel=1))
        await client.dispatch(plan_id)

        async def second_runs() -> bool:
            return (await status_of(client, plan_id)).tasks[1].state is TaskState.RUNNING

        await eventually(second_runs, seconds=LOOP_SECONDS)
        await client.cancel(plan_id, "enough", by="ada")
        result = await result_of(client, plan_id)
        with pytest.raises(InvalidRequestError, match="closed"):
            await client.verify(plan_id)
        after = await planned(client, request_on(workspace))
        await client.cancel(after)
        await result_of(client, after)
    assert (result.outcome, result.reason) == (LoopState.CANCELLED, "enough (by ada)")
    assert states(result.tasks) == ["COMPLETE", "CANCELLED", "CANCELLED"]
    assert (workspace / "made1.txt").exists()
    assert len(git(workspace, "worktree", "list").splitlines()) == 1, "no worktree is left over"


async def test_task_that_deletes_everything_fails_the_gates_and_all_of_it_can_be_brought_back(
    client: TightloopClient, looping: Looping, workspace: Path, git: Git
) -> None:
    (workspace / "mine.txt").write_text("never committed\n")
    committed = git(workspace, "ls-files")
    tasks = (
        task(1, "printf 'gates: {checks: [true]}\\n' > tightloop.yaml", "test -e tightloop.yaml"),
        task(2, "find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +", 'test -z "$(ls)"', 1),
    )
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, "test -s mine.txt"))
        await client.dispatch(plan_id)
        status = await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert states(status.tasks) == ["COMPLETE", "COMPLETE"]
    assert result.outcome is LoopState.FAILED
    assert result.gate_result is not None
    assert [check.name for check in result.gate_result.checks] == ["gate:test -s mine.txt"], "not the task's own"
    assert not (workspace / "mine.txt").exists()
    assert git(workspace, "ls-files") == committed, "the index and the commits of the user are as they were"
    kept = f"refs/tightloop/{plan_id}/plan.base:mine.txt"
    assert git(workspace, f"--git-dir={store_folder(workspace)}", "show", kept).strip() == "never committed"


async def test_gate_that_never_ends_or_prints_without_end_is_bounded(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    gates = (
        {"run": "sleep 600", "name": "endless", "timeout_s": 2},
        {"run": "yes not ok 1 - x | head -c 100000000; echo; echo '1..1'; exit 1", "name": "loud", "timeout_s": 60},
        {"run": "true", "name": "last"},
    )
    async with looping(task(1, "echo 1 > made1.txt", "test -s made1.txt")):
        plan_id = await planned(client, request_on(workspace, *gates))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        begun = time.monotonic()
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert time.monotonic() - begun < 60
    assert result.outcome is LoopState.FAILED
    assert result.gate_result is not None
    ran = {check.name: check for check in result.gate_result.checks if not check.within}
    assert [check.passed for check in ran.values()] == [False, False, True]
    assert "timed out" in ran["gate:endless"].message
    assert len(result.gate_result.model_dump_json()) < 50_000
