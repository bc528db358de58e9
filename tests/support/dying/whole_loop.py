"""A project's plan over HTTP by a client that sends again what was not answered, and the evidence that it leaves."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from temporalio.client import Client

from tests.support.episodes import Git, eventually
from tightloop.database.ledger import Ledger
from tightloop.host import state_folder
from tightloop.ledger.model import WorkflowFilter

AGAIN_S = 0.2
BUSY = frozenset({"urn:tightloop:problem:key-in-use", "urn:tightloop:problem:unavailable"})
GATES = [{"run": "test -s all.txt"}, {"run": "test $(cat all.txt | wc -l) -eq 3"}]


class PatientClient:
    """Sends each request with a key of its own until it is answered; everything else than success is an error."""

    def __init__(self, http: httpx2.AsyncClient, keys: str, seconds: float) -> None:
        self._http, self._keys, self._seconds = http, keys, seconds
        self.repeated = 0
        """Requests that were sent again."""
        self.busy = 0
        """Answers that say: later."""

    async def post(self, path: str, body: dict[str, Any], what: str) -> dict[str, Any]:
        """Send a request; `what` names its key."""
        key = {"Idempotency-Key": f"{self._keys}-{what}"}
        return await self._answered(lambda: self._http.post(path, json=body, headers=key))

    async def get(self, path: str) -> dict[str, Any]:
        """Read."""
        return await self._answered(lambda: self._http.get(path))

    async def until(self, plan: str, wanted: str) -> None:
        """Wait until something is possible, or nothing any more."""

        async def is_there() -> bool:
            possible = (await self.get(f"{plan}?fresh=true"))["possible"]
            return wanted in possible or not possible

        await eventually(is_there, seconds=self._seconds)

    async def _answered(self, send: Callable[[], Awaitable[httpx2.Response]]) -> dict[str, Any]:
        async with asyncio.timeout(self._seconds):
            while True:
                try:
                    answer = await send()
                except httpx2.TransportError:
                    self.repeated += 1
                else:
                    body: dict[str, Any] = answer.json()
                    if answer.is_success:
                        return body
                    assert body["type"] in BUSY, answer.text
                    self.busy += 1
                await asyncio.sleep(AGAIN_S)


async def whole_loop(client: PatientClient, project: str) -> str:
    """Plan, dispatch and verify the five tasks; return the plan's id."""
    asked = {"goal": "make files", "gates": GATES}
    planning = (f"/api/projects/{project}/plan?wait=20", asked, "plan")
    planned = await client.post(*planning)
    path = f"/api/plans/{planned['planId']}"
    await client.until(path, "dispatch")
    dispatched = await client.post(f"{path}/dispatch", {"parallel": True}, "dispatch")
    await client.until(path, "verify")
    verified = await client.post(f"{path}/verify?wait=60", {}, "verify")
    await client.until(path, "nothing")
    # Sent once more, each gets what it was answered.
    assert await client.post(*planning) == planned
    assert await client.post(f"{path}/dispatch", {"parallel": True}, "dispatch") == dispatched
    assert await client.post(f"{path}/verify?wait=60", {}, "verify") == verified
    return str(planned["planId"])


async def evidence(ledger: Ledger, temporal: Client, plan_id: str, workspace: Path, git: Git) -> dict[str, Any]:
    """Return all that a plan left, with `PLAN` for its id: two plans alike leave the same."""

    def named(text: str) -> str:
        return text.replace(plan_id, "PLAN")

    lines = ledger.workflows(WorkflowFilter(project=state_folder(workspace).name), limit=500).lines
    status = ledger.workflow(plan_id).details
    started = Counter([named(one.id) async for one in temporal.list_workflows(f"WorkflowId STARTS_WITH '{plan_id}'")])
    return {
        "tasks": [(task["task_id"], task["state"], named(task["run_id"])) for task in status["tasks"]],
        "gates": [(check["name"], check["passed"]) for check in (status["gate_result"] or {}).get("checks", ())],
        "workflows": sorted((named(one.id), one.kind, one.status, named(one.parent), one.iteration) for one in lines),
        "runs in Temporal": sorted(started.items()),
        "trail": sorted(
            Counter(
                (named(line.episode_id), line.kind) for one in lines for line in ledger.events(workflow_id=one.id)
            ).items()
        ),
        "steps": sorted(
            (named(step.plan_id), step.step, step.status, named(step.child_id))
            for one in lines
            for step in ledger.steps(one.id)
        ),
        "checkpoints": sorted((named(one.id), len(ledger.checkpoints(one.id))) for one in lines),
        "files": {path.name: path.read_text() for path in sorted(workspace.glob("*.txt")) if path.name != "notes.txt"},
        "commits": git(workspace, "log", "--all", "--format=%s").splitlines(),
        "branches": git(workspace, "branch", "--list").splitlines(),
        "worktrees": len(git(workspace, "worktree", "list").splitlines()),
        "left over": sorted(
            path.name for what in ("worktrees/*", "claims/*.json") for path in state_folder(workspace).glob(what)
        ),
    }
