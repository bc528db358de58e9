"""The project loop over HTTP, in the words of LO-3, with real workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.episodes import Working, eventually
from tests.support.gateway import enrol, gateway
from tests.support.loops import ObedientExecutor, ScriptedTaskPlanner, five_tasks, planner_of_goals
from tightloop.client import TightloopClient
from tightloop.host import state_folder
from tightloop.safety.seal import Role
from tightloop.settings import Settings


async def test_a_project_is_planned_dispatched_and_verified(
    tmp_path: Path,
    workspace: Path,
    client: TightloopClient,
    settings: Settings,
    working: Working,
    registry: Callable[..., dict[str, Any]],
) -> None:
    planner = ScriptedTaskPlanner(*five_tasks())
    parts = {**registry(command=ObedientExecutor()), "task_planners": lambda _kind, _model: planner}
    async with gateway(tmp_path, client, settings) as served, working(planner_of_goals(), **parts):
        project = enrol(served.ledger, workspace)
        token = served.token("anna", Role.OPERATOR, [project])
        async with served.http(token) as http:
            key = {"Idempotency-Key": "monday"}
            asked = {"goal": "make files", "gates": [{"run": "test -s all.txt"}]}
            path = f"/api/projects/{project}/plan?wait=60"
            first, again = [await http.post(path, json=asked, headers=key) for _ in range(2)]
            assert first.status_code == 201, first.text
            assert first.json() == again.json()
            plan = first.json()
            assert (plan["status"], len(plan["tasks"]), plan["projectId"]) == ("DRAFT", 5, project)
            assert plan["tasks"][0].keys() >= {"taskId", "description", "priority", "dependencies", "status"}
            at = first.headers["location"]
            early = await http.post(f"{at}/verify", json={})
            assert (early.status_code, early.json()["state"]) == (409, "DRAFT")
            assert "dispatch" in early.json()["possible"]
            sent = await http.post(f"{at}/dispatch", json={"parallel": True})
            assert sent.status_code == 200, sent.text
            assert sent.json().keys() == {"planId", "status", "runs", "executedAt"}
            first_three = [run["taskId"] for run in sent.json()["runs"]]
            assert first_three == ["ptask_1", "ptask_2", "ptask_3"], "those that wait for no other task"

            async def all_ended() -> bool:
                seen = (await http.get(f"{at}?fresh=true")).json()
                return "verify" in seen["possible"]

            await eventually(all_ended, seconds=120)
            done = await http.post(f"{at}/verify?wait=60", json={})
            assert done.status_code == 200, done.text
            assert (done.json()["status"], done.json()["gateResult"]["passed"]) == ("VERIFIED", True)
            assert done.json()["gateResult"]["checks"][0].keys() >= {"name", "passed", "message", "duration"}
            late = await http.post(f"{at}/dispatch", json={})
            assert (late.status_code, late.json()["state"]) == (409, "VERIFIED")
            wrong = await http.post(f"{at}/dispatch", json={"paralel": 1})
            assert wrong.status_code == 422
        async with served.http(served.token("eve", Role.ADMIN, ["other-0000000000000000"])) as other:
            for path in (at, f"{at}/timeline"):
                assert (await other.get(path)).status_code == 404
            for message in ("dispatch", "verify", "cancel"):
                assert (await other.post(f"{at}/{message}", json={})).status_code == 404
            assert (await other.post(f"/api/projects/{project}/plan", json={})).status_code == 404


async def test_a_project_is_added_by_its_first_plan(
    tmp_path: Path,
    workspace: Path,
    client: TightloopClient,
    settings: Settings,
    working: Working,
    registry: Callable[..., dict[str, Any]],
) -> None:
    planner = ScriptedTaskPlanner(*five_tasks())
    parts = {**registry(command=ObedientExecutor()), "task_planners": lambda _kind, _model: planner}
    async with gateway(tmp_path, client, settings) as served:
        async with served.http(served.token("anna", Role.OPERATOR)) as http:
            idle = await http.post("/api/projects", json={"workspace": str(workspace)})
            assert (idle.status_code, "no worker serves workspaces" in idle.json()["detail"]) == (503, True)
            async with working(planner_of_goals(), **parts):
                asked = {"workspace": str(workspace), "goal": "make files", "gates": [{"run": "true"}]}
                added = await http.post("/api/projects?wait=60", json=asked)
                assert added.status_code == 201, added.text
                plan = added.json()
                assert (plan["status"], plan["projectId"]) == ("DRAFT", state_folder(workspace).name)
                assert added.headers["location"] == f"/api/plans/{plan['planId']}"
                assert plan["estimate"] == {
                    "runs": 5,
                    "atOnce": 3,
                    "parallel": 4,
                    "executor": "command",
                    "isBounded": True,
                    "iterations": 5 * settings.budget.as_budget().max_iterations,
                    "tokens": None,
                    "costUsd": None,
                    "wallTime": 5 * 12 * 3600.0,
                    "checks": [check.run for task in five_tasks() for check in task.definition_of_done],
                }
                for path, word in ((f"{workspace}-none", "does not exist"), (str(tmp_path), "git working tree")):
                    wrong = await http.post("/api/projects", json={"workspace": path})
                    assert (wrong.status_code, word in wrong.json()["detail"]) == (422, True), wrong.text
        for name, role, projects in (("eve", Role.ADMIN, ["other-0000000000000000"]), ("vic", Role.VIEWER, [])):
            async with served.http(served.token(name, role, projects)) as other:
                assert (await other.post("/api/projects", json={"workspace": str(workspace)})).status_code == 403
