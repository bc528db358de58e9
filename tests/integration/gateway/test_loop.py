"""The project loop over HTTP, in the words of LO-3, with real workers."""

import re
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

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*"
STATES = "DRAFT|DISPATCHING|RUNNING|VERIFYING|VERIFIED|FAILED|CANCELLED"
TASK = {"taskId": r"ptask_\w+", "description": ".+", "priority": r"\d+", "status": "[A-Z_]+"}
PLANNED = {
    "planId": r"plan_[\w-]+",
    "projectId": ".+",
    "orgId": ".+",
    "status": STATES,
    "createdAt": TIME,
    "updatedAt": TIME,
}
VERIFIED = {"executedAt": TIME, "completedAt": TIME, "verifiedAt": TIME, "verifyRunId": r"verify_plan_.+"}
CHECK = {"name": ".+", "passed": "True|False", "message": "(?s).*", "duration": r"\d+"}
"""Fields of the specification with the values that they may have."""


def has_fields(document: dict[str, Any], fields: dict[str, str]) -> bool:
    """True if a document has all fields, each with a value that it may have."""
    wrong = {
        name: document.get(name) for name, value in fields.items() if not re.fullmatch(value, str(document.get(name)))
    }
    assert not wrong
    return True


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
            assert has_fields(plan, PLANNED | dict.fromkeys(("runId", *VERIFIED, "gateResult"), "None"))
            assert re.fullmatch("pkt_[0-9a-f]{16}", plan["packetId"])
            assert all(has_fields(task, TASK | {"status": "CREATED", "runId": "None"}) for task in plan["tasks"])
            assert [task["dependencies"] for task in plan["tasks"]][3:] == [
                ["ptask_1", "ptask_2"],
                ["ptask_4", "ptask_3"],
            ]
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
            assert has_fields(done.json(), {name: VERIFIED[name] for name in ("verifyRunId", "verifiedAt")})
            assert all(has_fields(check, CHECK) for check in done.json()["gateResult"]["checks"])
            whole = (await http.get(f"{at}?fresh=true")).json()
            assert has_fields(whole, PLANNED | VERIFIED)
            assert all(has_fields(task, TASK | {"status": "COMPLETE", "runId": ".+"}) for task in whole["tasks"])
            # A plan made from a packet, as the specification's example does it.
            of_packet = await http.post(path, json={"packetId": plan["packetId"], "model": "claude-sonnet-4-20250514"})
            assert (of_packet.status_code, of_packet.json().get("packetId")) == (201, plan["packetId"]), of_packet.text
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
            assert (idle.status_code, "no workspace worker is running" in idle.json()["detail"]) == (503, True)
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
