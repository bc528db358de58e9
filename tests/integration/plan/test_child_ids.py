"""Workflows of steps with names that are hard to tell apart, on the real worker and in real worktrees."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.checks.runner import CheckRunner
from activities.plan.children import StepChildren
from activities.plan.requests import OpenPlanRequest, PlanScope, RunStepRequest, SettleRequest, StepRun
from activities.sandbox.choose import choose_sandbox
from activities.workspace.working_tree import Workspaces
from tests.support.episodes import Working
from tests.support.git_sample import make_repository
from tests.support.plan.stage import SANDBOX, Stage, activities_for, stage
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.plan.child import StepResult, StepStatus, child_id
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.settings import Settings

BOUND_S = 60.0


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [
                {
                    "id": name,
                    "access": "reads",
                    "subplan": {"steps": [{"id": "x", "shell": {"run": f"sleep 1; echo {name}"}, "access": "reads"}]},
                }
                for name in ("a.b", "a_b")
            ],
            id="steps",
        ),
        pytest.param(
            [
                {
                    "id": "try",
                    "branch": {
                        "alternatives": [
                            {"name": name, "steps": [{"id": "x", "shell": {"run": f"sleep 1; echo {name} > x.txt"}}]}
                            for name in ("a b", "a_b")
                        ]
                    },
                }
            ],
            id="alternatives",
        ),
    ],
)
async def test_names_that_git_cannot_tell_apart_start_workflows_of_their_own(
    temporal_client: Client, settings: Settings, workspace: Path, working: Working, steps: list[dict[str, Any]]
) -> None:
    plans = TightloopClient(temporal_client, settings)
    text = json.dumps({"id": "p", "on_failure": "fail", "steps": steps})
    async with working():
        plan_id = await plans.start(PlanRequest(workspace=str(workspace), source=text))
        result = await asyncio.wait_for(plans.result(plan_id), BOUND_S)
        rows = [row for row in await plans.list(limit=500) if row.id.startswith(f"{plan_id}.")]
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert sorted(row.status for row in rows) == ["completed", "completed"]
    assert len({row.id for row in rows}) == 2


def test_branch_is_judged_under_the_ids_that_its_alternatives_were_started_with(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repo", {"a.txt": "one\n"})
    ways = [
        {"name": name, "steps": [{"id": "do", "shell": {"run": f"seq {lines} > a.txt; echo {name}"}}]}
        for name, lines in (("first.way", 9), ("other.way", 2))
    ]
    plan = _opened(root, {"id": "try", "branch": {"alternatives": ways}})
    request = RunStepRequest(scope=plan.scope, step="try", expected_tree=plan.tree)
    run: StepRun = plan.call("prepare_children", request)
    children = tuple(child_id(plan.plan_id, "try", 1, name) for name in run.names)
    trees = tuple(_carried_out(plan, child, name) for child, name in zip(run.plans, children, strict=True))
    settle = SettleRequest(run=request, children=children, outcomes=("COMPLETED",) * 2, reasons=("",) * 2, trees=trees)
    result: StepResult = plan.call("settle_children", settle)
    assert result.status is StepStatus.COMPLETED, result.failure
    assert (root / "a.txt").read_text() == "1\n2\n"
    assert plan.record("try").outputs["do"]["stdout"] == "other.way"
    assert list((state_folder(root) / "worktrees").iterdir()) == []


def _opened(root: Path, *steps: dict[str, Any]) -> Stage:
    checks = CheckRunner(choose_sandbox(SANDBOX), SANDBOX)
    children = StepChildren(Workspaces(), checks, Settings())
    return stage(root, *steps, activities=activities_for(plan_children=children))


def _carried_out(plan: Stage, request: PlanRequest, identity: str) -> str:
    """Carry out the one step of an alternative as its workflow would, and return the tree."""
    scope = PlanScope(episode_id=identity, workspace=request.workspace, worktree=True)
    opened = plan.call("open_plan", OpenPlanRequest(scope=scope, request=request, opening="run-1"))
    scope = scope.evolve(plan=opened.plan, base_tree=opened.tree)
    done: StepResult = plan.call("run_shell", RunStepRequest(scope=scope, step="do", expected_tree=opened.tree))
    assert done.status is StepStatus.COMPLETED, done.failure
    return done.tree
