"""`tightloop ledger rebuild`: a ledger that was lost comes back from histories as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.testing import WorkflowEnvironment

from tests.support.episodes import Working, eventually
from tests.support.temporal_server import own_client, own_server
from tightloop.client import TightloopClient
from tightloop.database.engine import Database
from tightloop.database.ledger import Ledger, close_ledgers, local_database, local_ledger
from tightloop.database.schema import METADATA
from tightloop.episode.budget import Budget
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.settings import Settings, parse_settings
from worker.connect import known_workflows
from worker.ledger.stores import rebuild

temporal, temporal_client = own_server, own_client

PLAN = """
id: small
title: A small plan
steps:
  - {id: note, title: Write it down, shell: {run: "echo line > before.txt"}}
  - id: make
    needs: [note]
    episode: {goal: write two lines, definition_of_done: ["test $(cat made.txt | wc -l) -ge 2"]}
  - {id: bad, needs: [make], shell: {run: "test -e wanted.txt"}}
  - {id: never, needs: [bad], shell: {run: "true"}}
  - {id: passed, needs: [make]}
"""
ENTERED = "recorded 5 workflows of this host"
COUNTERS = frozenset({"changed", "tick", "origin"})
"""Numbers of changes, which say nothing: a rebuild makes fewer of them."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def settings(temporal: WorkflowEnvironment) -> Settings:
    address = temporal.client.service_client.config.target_host
    return parse_settings(
        f"temporal: {{address: '{address}', task_queue: 'test-{uuid4().hex[:12]}'}}\n"
        "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
        "sandbox: {unsafe_local: true}\n"
        "executor: {argv: [sh, -c, 'cat before.txt >> made.txt']}\n",
        {},
    )


def rows(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables, but for the counters, in the order of their keys."""
    found: dict[str, list[dict[str, Any]]] = {}
    with database.reading() as connection:
        for table in METADATA.sorted_tables:
            if table.name in ("clock", "spools"):
                continue
            query = table.select().order_by(*table.primary_key.columns)
            found[table.name] = [
                {name: value for name, value in row.items() if name not in COUNTERS}
                for row in connection.execute(query).mappings()
            ]
    # Activities run beside each other: which of them wrote first is chance, and when it happened is not.
    found["events"].sort(key=lambda row: (row["at"], row["workflow_id"], row["key"]))
    for place, row in enumerate(found["events"]):
        row["seq"] = place
    return found


def differences(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return what differs, a line for each column."""
    counts = [f"{name}: {len(rows)} rows, {len(after[name])}" for name, rows in before.items()]
    found = [line for line, name in zip(counts, before, strict=True) if len(before[name]) != len(after[name])]
    for name, old_rows in before.items():
        for old, new in zip(old_rows, after[name], strict=False):
            found += [f"{name}.{key}: {old[key]!r} became {new[key]!r}" for key in old if old[key] != new[key]]
    return found


def lose(home: Path) -> None:
    close_ledgers()
    for part in home.glob("ledger.db*"):
        part.unlink()


async def until(ledger: Ledger, count: int) -> None:
    async def asked() -> bool:
        return len(ledger.inbox()) == count

    await eventually(asked, seconds=60)


async def work(client: TightloopClient, request_for: Callable[..., Any], workspace: Path) -> None:
    """Run an episode without questions, one with two, a fork, a plan with a child and a failing step."""
    ledger = local_ledger()
    simple = await client.start(request_for())
    await client.result(simple)
    asking = await client.start(request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=1)))
    await until(ledger, 1)
    await client.top_up(asking, iterations=1)
    await until(ledger, 0)
    await until(ledger, 1)
    await client.cancel(asking)
    await client.result(asking)
    await client.result(await client.fork(simple, "ckpt-1"))
    plan = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
    await until(ledger, 1)
    await client.answer(plan, "skip")
    assert (await client.result(plan)).outcome is PlanOutcome.COMPLETED


@pytest.mark.timeout(400)
async def test_a_lost_ledger_comes_back_as_it_was(
    client: TightloopClient,
    temporal_client: Any,
    working: Working,
    request_for: Callable[..., Any],
    settings: Settings,
    workspace: Path,
    home: Path,
) -> None:
    async with working():
        await work(client, request_for, workspace)
    before = rows(local_database())
    assert (await rebuild(temporal_client, settings)).startswith(ENTERED)
    assert differences(before, rows(local_database())) == [], "nothing was lost, so nothing changes"
    lose(home)
    assert (await rebuild(temporal_client, settings)).startswith(ENTERED)
    assert differences(before, rows(local_database())) == []
    lose(home)
    await forget(temporal_client, {row["id"] for row in before["workflows"]})
    told = await rebuild(temporal_client, settings)
    after = rows(local_database())
    assert told.startswith("recorded 0 workflows of this host")
    assert "; recovered 5 workflows from this host's stores after Temporal deleted them: " in told
    assert "costs, questions and timelines are lost" in told
    assert ";" not in await rebuild(temporal_client, settings), "again there is nothing to add"
    assert_recovered(before, after)


async def forget(client: Any, ids: set[str]) -> None:
    """Delete histories, as retention does in the end."""

    async def known() -> list[Any]:
        return [run for run in await known_workflows(client) if run.id in ids]

    for run in await known():
        execution = WorkflowExecution(workflow_id=run.id, run_id=run.run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        await client.workflow_service.delete_workflow_execution(request)

    async def forgotten() -> bool:
        return not await known()

    await eventually(forgotten, seconds=60)


def assert_recovered(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> None:
    def trees(found: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, int], str]:
        records = [(row, json.loads(row["record"])) for row in found["checkpoints"]]
        return {(row["workflow_id"], row["number"]): record["tree"] for row, record in records}

    assert trees(after) == trees(before)
    states = {row["record"]: json.loads(row["record"]).get("state") for row in before["checkpoints"]}
    kept = {state["sha256"] for state in states.values() if state}
    found = [json.loads(row["record"]).get("state") for row in after["checkpoints"]]
    assert {state["sha256"] for state in found if state} <= kept
    assert any(found), "at least one state is certain"
    assert {row["id"] for row in after["workflows"]} == {row["id"] for row in before["workflows"]}
    assert {row["status"] for row in after["workflows"]} == {"unknown"}
    assert {row["step"]: row["title"] for row in after["steps"]} == {
        row["step"]: row["title"] for row in before["steps"]
    }
    ends = {row["step"]: row["status"] for row in after["steps"]}
    assert ends["note"] == ends["make"] == "completed"
    assert (ends["bad"], ends["never"]) == ("failed", "pending"), "that a person had it skipped is forgotten"
    assert any(row["goal"] for row in after["workflows"] if row["kind"] == "episode"), "that of a delivery"
    assert [row["goal"] for row in after["workflows"] if row["kind"] == "plan"] == ["A small plan"]
