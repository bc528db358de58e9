"""Workflows that start workflows, from end to end: the real plan and episode workflows, worker, worktrees and files."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from activities.model.client import ModelService
from activities.plan.plan_writer import PlannerOptions, PlanWriter
from activities.plan.records import open_file_records
from tests.support.episodes import Working, eventually
from tests.support.git_sample import git, on_disk
from tests.support.model_server import ModelServer, says
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanResult
from tightloop.settings import PlanSettings, Settings

BOUND_S = 120.0


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The executor of episodes writes one line in each iteration."""
    executor = settings.executor.evolve(argv=("/bin/sh", "-c", "echo line >> log.txt"))
    return settings.evolve(executor=executor)


Run = Callable[..., Any]


@pytest.fixture
def run(temporal_client: Client, settings: Settings, workspace: Path) -> Run:
    """Run a plan of these steps to its end."""

    async def to_end(*steps: dict[str, Any], **fields: Any) -> tuple[str, PlanResult]:
        plans = TightloopClient(temporal_client, settings)
        text = json.dumps({"id": "p", "on_failure": "fail", "steps": steps, **fields})
        plan_id = await plans.start(PlanRequest(workspace=str(workspace), source=text))
        return plan_id, await asyncio.wait_for(plans.result(plan_id), BOUND_S)

    return to_end


def shell(step: str, run: str, **fields: Any) -> dict[str, Any]:
    return {"id": step, "shell": {"run": run}, **fields}


def worktrees(root: Path) -> list[Path]:
    folder = state_folder(root) / "worktrees"
    return list(folder.iterdir()) if folder.exists() else []


async def test_branch_of_subplans_takes_over_the_best_and_leaves_no_worktree(
    run: Run, workspace: Path, working: Working
) -> None:
    def way(name: str, lines: int) -> dict[str, Any]:
        inner = [shell("write", f"seq {lines} > result.txt"), shell("count", "wc -l < result.txt", needs=["write"])]
        return {"name": name, "steps": [{"id": "deep", "subplan": {"steps": inner}}]}

    branch = {"alternatives": [way("few", 2), way("many", 5)], "checks": ["grep -q edited notes.txt"]}
    steps = [
        shell("edit", "echo edited >> notes.txt"),
        {"id": "try", "needs": ["edit"], "branch": {**branch, "score": "wc -l < result.txt"}},
        shell("after", "cp result.txt copy-${try.winner}.txt", needs=["try"]),
    ]
    async with working():
        _, result = await run(*steps)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "copy-many.txt").read_text() == "1\n2\n3\n4\n5\n"
    assert (workspace / "notes.txt").read_text().endswith("edited\n")
    assert worktrees(workspace) == []
    assert len(git(workspace, "worktree", "list").splitlines()) == 1


async def test_branch_within_a_subplan_works_on_the_same_tree(run: Run, workspace: Path, working: Working) -> None:
    ways = [{"name": name, "steps": [shell("x", f"echo {name} > x.txt")]} for name in ("a", "b")]
    inner = [
        shell("first", "echo first > first.txt"),
        {
            "id": "try",
            "needs": ["first"],
            "branch": {"alternatives": ways, "checks": ["test -f first.txt", "grep b x.txt"]},
        },
    ]
    async with working():
        _, result = await run(
            {"id": "sub", "subplan": {"steps": inner}}, shell("see", "cat x.txt first.txt", needs=["sub"])
        )
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "x.txt").read_text() == "b\n"
    assert worktrees(workspace) == []


async def test_episode_works_in_the_tree_of_its_plan_and_its_result_goes_on(
    run: Run, workspace: Path, working: Working
) -> None:
    done = "test $(cat log.txt | wc -l) -ge 2"
    steps = [
        shell("before", "echo start > log.txt"),
        {"id": "agent", "needs": ["before"], "episode": {"goal": "write lines", "definition_of_done": [done]}},
        shell("after", "cp log.txt copy.txt; echo ${agent.outcome}", needs=["agent"]),
    ]
    async with working():
        plan_id, result = await run(*steps)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "copy.txt").read_text() == "start\nline\n"
    record = open_file_records(workspace).latest(plan_id, "after")
    assert record is not None
    assert record.outputs["stdout"] == "SUCCEEDED"


async def test_subplan_that_fails_fails_its_step_and_leaves_the_tree_as_it_was(
    run: Run, workspace: Path, working: Working
) -> None:
    inner = [shell("half", "echo half > half.txt"), shell("bad", "exit 4", needs=["half"])]
    async with working():
        _, result = await run({"id": "sub", "subplan": {"steps": inner}})
    assert result.outcome is PlanOutcome.FAILED
    assert "exit code 4" in result.reason
    assert not (workspace / "half.txt").exists()


async def test_plans_within_plans_have_a_bound(run: Run, working: Working) -> None:
    deepest = {"id": "c", "subplan": {"steps": [{"id": "d"}]}}
    steps = [{"id": "a", "subplan": {"steps": [{"id": "b", "subplan": {"steps": [deepest]}}]}}]
    async with working():
        _, result = await run(*steps, budget={"max_depth": 4})
    assert result.outcome is PlanOutcome.COMPLETED, result.reason


async def test_plan_for_a_goal_is_written_approved_and_carried_out(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    steps = [shell("w", "python3 -c 'open(str(1), chr(119))'"), shell("s", "ls 1", needs=["w"])]
    text = json.dumps({"id": "g", "steps": steps})
    with ModelServer() as server:
        server.queue(says({"rationale": "r", "plan": "id: g\nsteps: []\n"}), says({"rationale": "r", "plan": text}))
        service = ModelService(api_key="sk-key-of-a-test", base_url=server.url, models=("m-1",))
        writer = PlanWriter(PlannerOptions(service=service, caution=PlanSettings().caution(()), enabled=True))
        plans = TightloopClient(temporal_client, settings)
        async with working(plan_writer=writer):
            plan_id = await plans.start(PlanRequest(workspace=str(workspace), goal="make a file named 1"))

            async def waits() -> bool:
                return bool((await plans.status(plan_id)).questions)

            await eventually(waits)
            status = await plans.status(plan_id)
            assert "python3" in status.questions[0].title
            assert not (workspace / "1").exists()
            assert status.spent.api_calls == 2
            assert status.spent.tokens > 0
            await plans.answer(plan_id, "approve", by="ada")
            result = await asyncio.wait_for(plans.result(plan_id), BOUND_S)
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert (workspace / "1").exists()


async def test_goal_is_refused_while_the_setting_is_off(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    plans = TightloopClient(temporal_client, settings)
    async with working():
        plan_id = await plans.start(PlanRequest(workspace=str(workspace), goal="do something"))
        result = await asyncio.wait_for(plans.result(plan_id), BOUND_S)
    assert result.outcome is PlanOutcome.FAILED
    assert "plans.agent_planning is off. Set plans.agent_planning to true" in result.reason


async def test_cancelled_branch_stops_its_alternatives_and_leaves_nothing(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working
) -> None:
    before = on_disk(workspace)
    ways = [{"name": name, "steps": [shell("x", "touch begun; sleep 500")]} for name in ("a", "b")]
    text = json.dumps({"id": "p", "steps": [{"id": "try", "branch": {"alternatives": ways}}]})
    plans = TightloopClient(temporal_client, settings)
    async with working():
        plan_id = await plans.start(PlanRequest(workspace=str(workspace), source=text))

        async def both_run() -> bool:
            return len(list((state_folder(workspace) / "worktrees").glob("*/begun"))) == 2

        await eventually(both_run)
        await plans.cancel(plan_id, "enough", by="ada")
        result = await asyncio.wait_for(plans.result(plan_id), BOUND_S)
        children = [await plans.status(f"{plan_id}.try.1.{name}") for name in ("a", "b")]
    assert result.outcome is PlanOutcome.CANCELLED
    assert [child.outcome for child in children] == [PlanOutcome.CANCELLED, PlanOutcome.CANCELLED]
    assert worktrees(workspace) == []
    assert on_disk(workspace) == before


async def test_reset_of_a_plan_tries_its_alternatives_anew_from_the_same_files(
    run: Run, temporal_client: Client, workspace: Path, working: Working
) -> None:
    ways = [{"name": name, "steps": [shell("x", f"echo {name} >> notes.txt")]} for name in ("a", "b")]
    branch = {"alternatives": ways, "score": "wc -l < notes.txt"}
    async with working():
        plan_id, first = await run({"id": "try", "branch": branch})
        assert first.outcome is PlanOutcome.COMPLETED, first.reason
        lines = (workspace / "notes.txt").read_text()
        handle = temporal_client.get_workflow_handle(plan_id)
        events = [event async for event in handle.fetch_history_events()]
        started = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
        await temporal_client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=temporal_client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=plan_id, run_id=first_run(events)),
                reason="test",
                request_id=uuid4().hex,
                workflow_task_finish_event_id=started[1],
            )
        )
        second = await asyncio.wait_for(temporal_client.get_workflow_handle(plan_id).result(), BOUND_S)
        assert (await temporal_client.get_workflow_handle(plan_id).describe()).run_id != first_run(events)
    assert second["outcome"] == "COMPLETED"
    assert (workspace / "notes.txt").read_text() == lines
    assert second["tree"] == first.tree
    assert worktrees(workspace) == []


def first_run(events: list[Any]) -> str:
    run_id: str = events[0].workflow_execution_started_event_attributes.original_execution_run_id
    return run_id
