"""The project loop on the real server: inspect, plan, dispatch, verify, record."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.episodes import Git, Working, eventually
from tests.support.loops import (
    LOOP_SECONDS,
    ObedientExecutor,
    ScriptedTaskPlanner,
    ended,
    five_tasks,
    planned,
    planner_of_goals,
    task,
)
from tightloop.client import TightloopClient
from tightloop.client.proof.verify import find_proof
from tightloop.client.scenarios import ScenarioStore
from tightloop.database.ledger import open_project
from tightloop.episode.model import EpisodePhase, EpisodeRequest, EpisodeStatus
from tightloop.errors import InvalidRequestError, WorkspaceBusyError
from tightloop.executor.model import ExecutorChoice
from tightloop.host import state_folder
from tightloop.loop.model import LoopRequest, LoopResult, LoopState, LoopStatus, LoopTask, TaskState
from worker.build import Adapters

Looping = Callable[..., Any]


@pytest.fixture
def looping(working: Working, registry: Callable[..., dict[str, Any]]) -> Looping:
    """Run workers whose coding agent does what the tasks say, and whose planner writes these tasks."""

    def run(*tasks: LoopTask, **changes: Any) -> Any:
        planner = ScriptedTaskPlanner(*tasks)
        parts = {**registry(command=ObedientExecutor()), "task_planners": lambda _kind, _model: planner, **changes}
        return working(planner_of_goals(), **parts)

    return run


def request_on(workspace: Path, *gates: str, **changes: Any) -> LoopRequest:
    return LoopRequest.model_validate(
        {"workspace": str(workspace), "goal": "make files", "gates": gates or ("test -s all.txt",), **changes}
    )


async def status_of(client: TightloopClient, plan_id: str) -> LoopStatus:
    status = await client.status(plan_id)
    assert isinstance(status, LoopStatus)
    return status


def states(status: LoopStatus) -> dict[str, TaskState]:
    return {each.task_id: each.state for each in status.tasks}


async def result_of(client: TightloopClient, plan_id: str) -> LoopResult:
    result = await client.result(plan_id)
    assert isinstance(result, LoopResult)
    return result


async def test_whole_loop_ends_verified_with_its_evidence(
    client: TightloopClient, looping: Looping, workspace: Path, git: Git
) -> None:
    async with looping(*five_tasks()):
        plan_id = await planned(client, request_on(workspace, "test -s all.txt", "true"))
        draft = await status_of(client, plan_id)
        said = await client.dispatch(plan_id, by="ada")
        done = await ended(client, plan_id)
        await client.verify(plan_id, by="ada")
        result = await result_of(client, plan_id)
        timeline = await client.timeline(plan_id)
        listed = {row.id: row for row in await client.list(kind="loop")}
    assert (draft.status, len(draft.tasks), plan_id[:5]) == (LoopState.DRAFT, 5, "plan_")
    assert draft.gates == ("gate:test -s all.txt", "gate:true")
    assert draft.gate_result is None
    assert "5 tasks" in said
    assert set(states(done).values()) == {TaskState.COMPLETE}
    assert all(each.run_id.startswith(f"{plan_id}.{each.task_id}.") for each in done.tasks)
    assert result.outcome is LoopState.VERIFIED
    assert result.gate_result is not None
    assert [(check.name, check.passed) for check in result.gate_result.checks] == [
        ("gate:test -s all.txt", True),
        ("gate:true", True),
    ]
    assert (workspace / "all.txt").read_text() == "1\n2\n3\n"
    assert listed[plan_id].status == "verified"
    kinds = [event.kind for event in timeline]
    expected = ["plan_created", "plan_dispatched", "plan_completed", "plan_verified"]
    assert [kind for kind in kinds if kind in expected] == expected
    recorded = [event.kind for event in open_project(workspace).events(plan_id)]
    rest = iter(recorded)
    assert all(kind in rest for kind in kinds), f"the trail on the host has every line: {recorded}"
    assert len(git(workspace, "worktree", "list").splitlines()) == 1


async def test_the_gates_and_tasks_of_a_project_in_a_folder_start_there(
    client: TightloopClient, looping: Looping, workspace: Path, git: Git
) -> None:
    (workspace / "svc").mkdir()
    (workspace / "svc/Makefile").write_text("test:\n\ttest -s made.txt\n")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "Add a service")
    async with looping(task(1, "echo 1 > svc/made.txt", "test -s made.txt")):
        plan_id = await planned(client, request_on(workspace).evolve(folder="svc", gates=()))
        draft = await status_of(client, plan_id)
        await client.dispatch(plan_id, by="ada")
        done = await ended(client, plan_id)
        await client.verify(plan_id, by="ada")
        result = await result_of(client, plan_id)
        request = await client.request(done.tasks[0].run_id)
    assert draft.gates == ("gate:cd svc && make test",)
    assert isinstance(request, EpisodeRequest)
    assert (request.folder, request.definition_of_done[0].run) == ("svc", "cd svc && test -s made.txt")
    assert result.outcome is LoopState.VERIFIED


async def test_a_check_that_could_not_run_at_the_start_is_no_gate_at_the_end(
    client: TightloopClient, looping: Looping, workspace: Path, git: Git
) -> None:
    (workspace / "Makefile").write_text("test:\n\tpython -m unittest\nlint:\n\techo no such module; exit 2\n")
    case = "class T(unittest.TestCase):\n    def test_made(self):\n        assert os.stat('made.txt')\n"
    (workspace / "test_made.py").write_text(f"import os, unittest\n\n\n{case}")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "Add a Makefile")
    ci = "on: push\\njobs: {t: {runs-on: ubuntu-latest, steps: [{run: make lint}, {run: mypy --version}]}}"
    lint = f"mkdir -p .github/workflows; printf '{ci}' > .github/workflows/ci.yml"
    async with looping(task(1, f"echo 1 > made.txt; {lint}", "test -s made.txt")):
        plan_id = await planned(client, request_on(workspace).evolve(goal="fix test_made", gates=()))
        draft = await status_of(client, plan_id)
        await client.dispatch(plan_id, by="ada")
        await ended(client, plan_id)
        await client.verify(plan_id, by="ada")
        result = await result_of(client, plan_id)
    assert draft.gates == ("gate:make test",)
    assert result.gate_result is not None
    assert [check.name for check in result.gate_result.checks] == ["gate:make test", "gate:mypy --version"]
    assert result.outcome is LoopState.VERIFIED


async def test_failing_gate_fails_the_plan_and_nothing_is_tried_again(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    gates = ("true", "echo '1 failed, 2 passed in 0.1s'; exit 1", "true")
    async with looping(five_tasks()[0]):
        plan_id = await planned(client, request_on(workspace, *gates))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
        status = await status_of(client, plan_id)
        ran = [event.step for event in await client.timeline(plan_id) if event.kind == "gate_running"]
        with pytest.raises(InvalidRequestError, match="closed"):
            await client.verify(plan_id)
    assert result.outcome is status.status is LoopState.FAILED
    assert result.gate_result is not None
    assert not result.gate_result.passed
    assert [check.passed for check in result.gate_result.checks] == [True, False, True]
    assert "1 failed, 2 passed" in result.gate_result.checks[1].message
    assert len(ran) == len(gates), "each has run once"
    assert (workspace / "made1.txt").exists(), "what the tasks did stays"


async def test_planner_that_cannot_decompose_fails_the_plan_and_says_why(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    planner = ScriptedTaskPlanner(problem="the goal contradicts itself")
    async with looping(task_planners=lambda _kind, _model: planner):
        plan_id = await client.plan_project(request_on(workspace))
        result = await result_of(client, plan_id)
    assert result.outcome is LoopState.FAILED
    assert result.gate_result is not None
    [check] = result.gate_result.checks
    assert (check.name, check.passed, check.message) == ("plan_generation", False, "the goal contradicts itself")


async def test_rules_make_a_task_of_each_failing_check_and_order_them(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    gates = ("test -s fixed.txt", "ruff format --check app.py || exit 1", "true")
    (workspace / "app.py").write_text("print( 'hello' )\n")
    async with working():
        plan_id = await planned(client, request_on(workspace, *gates, goal=""))
        status = await status_of(client, plan_id)
        await client.cancel(plan_id)
        await result_of(client, plan_id)
        clean = await planned(client, request_on(workspace, "true", goal=""))
        nothing = await result_of(client, clean)
    assert [each.dependencies for each in status.tasks] == [(), ("ptask_1",)]
    assert "fixed.txt" in status.tasks[0].description
    assert nothing.outcome is LoopState.FAILED
    assert "nothing to do" in nothing.reason


async def test_run_that_cannot_start_is_an_error_and_the_rest_goes_on(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    first, second, third, fourth, fifth = five_tasks()
    # No check at all: an episode that could not tell when it is done is refused.
    broken = second.evolve(definition_of_done=())
    async with looping(first, broken, third, fourth, fifth):
        plan_id = await planned(client, request_on(workspace))
        await client.dispatch(plan_id)
        status = await ended(client, plan_id)
        possible = status.possible
        await client.cancel(plan_id)
        await result_of(client, plan_id)
    assert list(states(status).values()) == [
        TaskState.COMPLETE,
        TaskState.ERROR,
        TaskState.COMPLETE,
        TaskState.ERROR,
        TaskState.ERROR,
    ]
    assert "definition of done" in status.tasks[1].message
    assert "depends on ptask_2" in status.tasks[3].message
    assert "depends on ptask_4" in status.tasks[4].message
    assert status.status is LoopState.RUNNING
    assert "verify" in possible


async def test_conflict_becomes_a_task_and_both_changes_are_in_the_tree(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    resolves = r"if grep -q '^<<<<<<<' notes.txt; then sed -i '/^[<=>]\{7\}/d' notes.txt; else "
    both = (
        task(1, f"{resolves} sed -i '1s/.*/one/' notes.txt; fi", "grep -qx one notes.txt"),
        task(2, f"{resolves} sed -i '1s/.*/two/' notes.txt; fi", "grep -qx two notes.txt"),
        task(3, "cp notes.txt seen.txt", "grep -qx one seen.txt && grep -qx two seen.txt", 1, 2),
    )
    async with looping(*both):
        plan_id = await planned(client, request_on(workspace, "test -s seen.txt"))
        await client.dispatch(plan_id)
        status = await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert set(states(status).values()) == {TaskState.COMPLETE}, status.tasks
    made = status.tasks[3]
    assert made.conflict_of in ("ptask_1", "ptask_2")
    assert made.run_id.startswith(f"{plan_id}.ptask_4.")
    lines = (workspace / "seen.txt").read_text().splitlines()
    assert sorted(lines[:2]) == ["one", "two"]
    assert lines[2] == "line 1"
    assert result.outcome is LoopState.VERIFIED


async def test_what_a_state_does_not_allow_is_refused_with_what_it_does(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    async with looping(task(1, "while test ! -e ../go; do sleep 0.1; done; echo > made.txt", "test -e made.txt")):
        plan_id = await planned(client, request_on(workspace, "true"))
        with pytest.raises(
            InvalidRequestError, match=r"verify: the plan is DRAFT\. Available operations: dispatch, cancel"
        ):
            await client.verify(plan_id)
        with pytest.raises(InvalidRequestError, match="parallel must be between 1 and"):
            await client.dispatch(plan_id, parallel=0)
        await client.dispatch(plan_id)

        async def runs() -> bool:
            return states(await status_of(client, plan_id))["ptask_1"] is TaskState.RUNNING

        await eventually(runs, seconds=LOOP_SECONDS)
        with pytest.raises(InvalidRequestError, match=r"dispatch: the plan is RUNNING, and 1 task has not ended"):
            await client.dispatch(plan_id)
        with pytest.raises(InvalidRequestError, match=r"verify: the plan is RUNNING.*Available operations: cancel"):
            await client.verify(plan_id)
        await client.cancel(plan_id, "enough", by="ada")
        result = await result_of(client, plan_id)
        with pytest.raises(InvalidRequestError, match="closed"):
            await client.dispatch(plan_id)
        with pytest.raises(InvalidRequestError, match="a project plan"):
            await client.respond(plan_id, "hello")
    assert (result.outcome, result.reason) == (LoopState.CANCELLED, "enough (by ada)")
    assert result.tasks[0].state is TaskState.CANCELLED


async def test_run_that_waits_for_a_person_shows_in_the_plan_and_goes_on_with_the_answer(
    client: TightloopClient, working: Working, workspace: Path
) -> None:
    planner = ScriptedTaskPlanner(task(1, "by hand", "test -e made.txt"))
    async with working(planner_of_goals(), task_planners=lambda _kind, _model: planner):
        plan_id = await planned(client, request_on(workspace, "true", executor=ExecutorChoice(name="person")))
        await client.dispatch(plan_id)

        async def asks() -> LoopStatus | None:
            status = await status_of(client, plan_id)
            return status if status.children else None

        status = await eventually(asks, seconds=LOOP_SECONDS)
        [wait] = status.children
        state = status.tasks[0].state
        run = await client.status(wait.workflow_id)
        (state_folder(workspace) / "worktrees" / wait.workflow_id / "made.txt").write_text("by hand\n")
        await client.answer(wait.workflow_id, wait.question.options[0].name)
        done = await ended(client, plan_id)
        await client.cancel(plan_id)
        await result_of(client, plan_id)
    assert state is TaskState.AWAITING_RESPONSE
    assert wait.step == "ptask_1"
    assert run.status == "paused"
    assert done.tasks[0].state is TaskState.COMPLETE
    assert done.children == ()
    assert (workspace / "made.txt").exists()


async def test_paused_plan_starts_nothing_until_it_is_resumed(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    async with looping(five_tasks()[0]):
        plan_id = await planned(client, request_on(workspace, "true"))
        await client.pause(plan_id, "lunch", by="ada")

        async def is_paused() -> bool:
            return (await client.summary(plan_id)).status == "paused"

        await eventually(is_paused)
        with pytest.raises(InvalidRequestError, match="paused"):
            await client.dispatch(plan_id)
        await client.resume(plan_id)
        await eventually(partial(_is_dispatched, client, plan_id), seconds=LOOP_SECONDS)
        await ended(client, plan_id)
        await client.cancel(plan_id)
        result = await result_of(client, plan_id)
    assert result.tasks[0].state is TaskState.COMPLETE


async def _is_dispatched(client: TightloopClient, plan_id: str) -> bool:
    try:
        await client.dispatch(plan_id)
    except InvalidRequestError:
        return False
    return True


async def test_twenty_tasks_run_beside_each_other_on_one_worker(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    tasks = tuple(task(n, f"echo {n} > made{n}.txt", f"test -s made{n}.txt") for n in range(1, 21))
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, "test $(ls made*.txt | wc -l) -eq 20", parallel=20))
        await client.dispatch(plan_id)
        status = await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert set(states(status).values()) == {TaskState.COMPLETE}, status.tasks
    assert result.outcome is LoopState.VERIFIED, result.gate_result


async def test_plan_of_an_episode_that_ended_knows_its_goal(
    client: TightloopClient, looping: Looping, workspace: Path, request_for: Callable[..., Any]
) -> None:
    async with looping(five_tasks()[0]) as adapters:
        assert isinstance(adapters, Adapters)
        episode = await client.start(request_for(goal="RUN: seq 3 > log.txt", executor=ExecutorChoice()))
        await client.result(episode)
        plan_id = await planned(client, LoopRequest(workspace=str(workspace), episode=episode))
        status = await status_of(client, plan_id)
        other = await planned(client, LoopRequest(workspace=str(workspace), episode="ep-none"))
        missing = await result_of(client, other)
        again = await planned(client, LoopRequest(workspace=str(workspace), packet_id=status.packet_id))
        same = await status_of(client, again)
        await asyncio.gather(client.cancel(plan_id), client.cancel(again))
    assert status.goal == "RUN: seq 3 > log.txt"
    assert status.run_id == episode
    assert "no such episode in this project: 'ep-none'" in missing.reason
    assert same.packet_id == status.packet_id


async def test_plan_whose_workspace_is_busy_stays_a_draft_and_is_dispatched_later(
    client: TightloopClient, looping: Looping, workspace: Path, request_for: Callable[..., Any]
) -> None:
    async with looping(five_tasks()[0]):
        plan_id = await planned(client, request_on(workspace, "true"))
        asked = request_for(goal="RUN: while test ! -e ../go; do sleep 0.1; done", executor=ExecutorChoice())

        async def works() -> str | None:
            # The plan gives the workspace back a moment after it is a draft.
            episode = await client.start(asked)
            while (status := await client.status(episode)).status == "running":
                assert isinstance(status, EpisodeStatus)
                if status.phase is EpisodePhase.EXECUTING:
                    return episode
                await asyncio.sleep(0.1)
            return None

        other = await eventually(works, seconds=LOOP_SECONDS)
        with pytest.raises(WorkspaceBusyError, match=f"dispatch: {other} is using"):
            await client.dispatch(plan_id)
        refused = await status_of(client, plan_id)
        (workspace.parent / "go").touch()
        await client.cancel(other)
        await client.result(other)
        (workspace / "mine.txt").write_text("by hand\n")
        await client.dispatch(plan_id)
        done = await ended(client, plan_id)
        await client.cancel(plan_id)
        await result_of(client, plan_id)
    assert (refused.status, refused.possible) == (LoopState.DRAFT, ("dispatch", "cancel"))
    assert states(done) == {"ptask_1": TaskState.COMPLETE}
    assert (workspace / "mine.txt").read_text() == "by hand\n"


async def test_plan_of_a_busy_workspace_fails_and_says_who_works_there(
    client: TightloopClient, looping: Looping, workspace: Path, request_for: Callable[..., Any]
) -> None:
    async with looping(five_tasks()[0]):
        goal = "RUN: while test ! -e ../go; do sleep 0.1; done"
        other = await client.start(request_for(goal=goal, executor=ExecutorChoice()))

        async def works() -> bool:
            status = await client.status(other)
            return isinstance(status, EpisodeStatus) and status.phase is EpisodePhase.EXECUTING

        await eventually(works, seconds=LOOP_SECONDS)
        plan_id = await client.plan_project(request_on(workspace))
        result = await result_of(client, plan_id)
        status = await status_of(client, plan_id)
        (workspace.parent / "go").touch()
        await client.cancel(other)
        await client.result(other)
    assert result.outcome is status.status is LoopState.FAILED
    assert result.gate_result is not None
    [check] = result.gate_result.checks
    assert (check.name, check.passed) == ("plan_generation", False)
    assert f"{other} is using" in check.message


async def test_task_that_waits_for_a_person_gives_its_place_to_the_next(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    tasks = (task(1, "date +%N >> tried.txt", "test -e never.txt"), task(2, "echo 2 > made2.txt", "test -s made2.txt"))
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, "sh ./x/y.sh", budget={"max_iterations": 1}))
        await client.dispatch(plan_id, parallel=False)

        async def second_is_done() -> LoopStatus | None:
            status = await status_of(client, plan_id)
            return status if states(status)["ptask_2"] is TaskState.COMPLETE else None

        status = await eventually(second_is_done, seconds=LOOP_SECONDS)
        [wait] = status.children
        await client.cancel(wait.workflow_id, "give it up", by="ada")
        await ended(client, plan_id)
        await client.verify(plan_id)
        result = await result_of(client, plan_id)
    assert states(status)["ptask_1"] is TaskState.AWAITING_RESPONSE
    assert (result.outcome, result.reason) == (
        LoopState.FAILED, "gate:sh ./x/y.sh did not pass; not complete: ptask_1",
    )  # fmt: skip


async def test_conflict_is_resolved_while_a_task_beside_it_runs(
    client: TightloopClient, looping: Looping, workspace: Path
) -> None:
    resolves = r"if grep -q '^<<<<<<<' notes.txt; then sed -i '/^[<=>]\{7\}/d' notes.txt; else "
    tasks = (
        task(1, f"{resolves} sed -i '1s/.*/one/' notes.txt; fi", "grep -qx one notes.txt"),
        task(2, f"{resolves} sed -i '1s/.*/two/' notes.txt; fi", "grep -qx two notes.txt"),
        task(3, f"while test ! -e {workspace.parent}/go; do sleep 0.1; done; echo > made.txt", "test -e made.txt"),
    )
    async with looping(*tasks):
        plan_id = await planned(client, request_on(workspace, "true"))
        await client.dispatch(plan_id)

        async def is_resolved() -> LoopStatus | None:
            status = await status_of(client, plan_id)
            known = states(status)
            return status if known["ptask_1"] is known["ptask_2"] is TaskState.COMPLETE else None

        status = await eventually(is_resolved, seconds=LOOP_SECONDS)
        (workspace.parent / "go").touch()
        done = await ended(client, plan_id)
        await client.cancel(plan_id)
        await result_of(client, plan_id)
    assert states(status)["ptask_3"] is TaskState.RUNNING
    assert set(states(done).values()) == {TaskState.COMPLETE}


async def test_commands_show_a_plan_and_what_can_be_done_with_it(
    client: TightloopClient, looping: Looping, workspace: Path, cli: Callable[..., Any]
) -> None:
    async with looping(five_tasks()[0]):
        night = {"unattended": True, "budget": {"until": "2099-01-01T07:00+00:00"}}
        plan_id = await planned(client, request_on(workspace, "true", **night))
        shown = await cli("loop", "show", plan_id)
        early = await cli("loop", "verify", plan_id)
        dispatched = await cli("loop", "dispatch", plan_id, "--parallel", "2")
        await ended(client, plan_id)
        status = await cli("status", plan_id)
        verified = await cli("loop", "verify", plan_id)
        await result_of(client, plan_id)
        watched = await cli("watch", plan_id)
        listed = await cli("list")
    for text in ("ptask_1", "gate:true", "2099-01-01 07:00 UTC", "alerts instead of pauses"):
        assert text in shown[1]
    assert f"tightloop loop dispatch {plan_id}" in shown[1]
    assert early[0] != 0
    assert "Available operations: dispatch, cancel" in early[1]
    assert "1 task dispatched, 2 at a time" in dispatched[1]
    assert f"tightloop loop verify {plan_id}" in status[1]
    assert verified == (0, "the gates are running\n")
    assert watched[0] == 0
    assert "VERIFIED: 1 gate passed" in watched[1]
    assert "verified" in listed[1]


@pytest.mark.parametrize("expected", ["1", "2"])
async def test_a_project_plan_is_verified_also_by_hidden_scenarios(
    client: TightloopClient, looping: Looping, workspace: Path, settings, tmp_path: Path, expected: str
) -> None:
    hidden = tmp_path / "hidden.yaml"
    hidden.write_text(f"- grep -qx {expected} made1.txt\n")
    with pytest.raises(InvalidRequestError, match="require a gate"):
        LoopRequest(workspace=str(workspace), scenarios=ScenarioStore(settings).commit(hidden)).check()
    async with looping(five_tasks()[0]):
        scenarios = ScenarioStore(settings).commit(hidden)
        plan_id = await planned(client, request_on(workspace, "test -s made1.txt", scenarios=scenarios))
        await client.dispatch(plan_id)
        await ended(client, plan_id)
        await client.verify(plan_id)

        async def is_over() -> LoopStatus | None:
            status = await status_of(client, plan_id)
            return status if status.questions or not status.possible else None

        status: LoopStatus = await eventually(is_over, seconds=LOOP_SECONDS)
        if status.questions:
            await client.answer(plan_id, "accept", by="ada")
        result = await result_of(client, plan_id)
        proof = await find_proof(client, plan_id)
    assert result.outcome is LoopState.VERIFIED
    assert (proof.scenarios is not None, proof.delivered_tree) == (True, result.tree)
    titles = [question.title for question in status.questions]
    if expected == "1":
        assert (titles, result.qualifier) == ([], "")
        assert "also 1 hidden scenario" in result.reason
    else:
        assert titles == ["the checks pass, but the proof has a finding (scenarios_failed): the hidden scenario fails"]
        assert "ada accepted the result despite this finding: the hidden" in result.qualifier
