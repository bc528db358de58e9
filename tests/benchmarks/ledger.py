"""The ledger with 10 000 episodes, on SQLite and PostgreSQL, beside the list that Temporal's own visibility gives."""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client

from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import stage
from tests.support.ledger import START, question, snapshot
from tests.support.postgres import new_database, postgres_server
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.ledger import Ledger
from tightloop.database.rows import insert_missing, next_tick, upsert, workflow_row
from tightloop.database.schema import events, projects, workflows
from tightloop.ledger.model import WorkflowFilter

LIMIT_S = 1_200
EPISODES = 10_000
PROJECTS = 10
WAITING_EACH = 100
"""Every hundredth waits for a person."""
ROUNDS = 60
PAGE = 50
STARTING_S = 45.0
"""How long workflows are started in Temporal; nobody runs them."""
STARTED_AT_ONCE = 20
DETAILS = {"note": "x" * 2_000}


async def measure() -> Report:
    """Return p50 and p95 of what pages ask for."""
    report = Report("ledger: 10 000 episodes, ms", ("", "p50", "p95", ""))
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server, new_database(server) as address:
        local = sqlite_database(Path(folder) / "ledger.db")
        begun = time.perf_counter()
        _fill(local)
        filled = time.perf_counter() - begun
        shared = postgres_database(address)
        begun = time.perf_counter()
        forwarder = Forwarder(local, shared)
        while forwarder.forward():
            pass
        took = time.perf_counter() - begun
        progress("filled")
        for name, database in (("SQLite", local), ("PostgreSQL", shared)):
            for what, look in _looks(Ledger(database)):
                _add(report, f"{name}: {what}", [_timed(look) for _ in range(ROUNDS)])
        local.close()
        shared.close()
    report.notes.append(f"written in {filled:.0f} s, brought to PostgreSQL in {took:.0f} s")
    async with stage() as set_up:
        await _measure_temporal(report, set_up.client)
    return report


def _fill(database: Database) -> None:
    with database.writing() as connection:
        names = [f"project-{number}" for number in range(PROJECTS)]
        first = next_tick(connection, EPISODES * 2 + PROJECTS)
        upsert(connection, projects, [_project(name, first + place) for place, name in enumerate(names)])
        rows = [_episode(number, names[number % PROJECTS], first + PROJECTS + number) for number in range(EPISODES)]
        upsert(connection, workflows, rows)
        lines = [
            {
                "project": row["project"],
                "workflow_id": row["id"],
                "kind": "iteration",
                "text": "ckpt-1: iteration 1",
                "key": "i",
                "at": row["at"],
                "changed": row["changed"] + EPISODES,
            }
            for row in rows
        ]
        insert_missing(connection, events, lines, "project", "workflow_id", "key")


def _project(name: str, tick: int) -> dict[str, Any]:
    return {"project": name, "name": name, "workspace": f"/src/{name}", "host": "", "changed": tick}


def _episode(number: int, project: str, tick: int) -> dict[str, Any]:
    waits, started = number % WAITING_EACH == 0, START + timedelta(seconds=number)
    said = snapshot(
        f"episode-{number:05}",
        number / 60,
        started=started,
        status="paused" if waits else "succeeded" if number % 3 else "failed",
        questions=(question(),) if waits else (),
        closed=None if waits else started + timedelta(seconds=60),
        details=DETAILS,
    )
    return {**workflow_row(project, said), "changed": tick}


def _looks(ledger: Ledger) -> Iterator[tuple[str, Callable[[], Any]]]:
    limited = ledger.limited(["project-3"])
    wanted = WorkflowFilter(project="project-3", status="failed")
    cursor = ""
    for _ in range(39):
        cursor = ledger.workflows(cursor=cursor, limit=PAGE).cursor
    yield "first page", lambda: ledger.workflows(limit=PAGE)
    yield "filtered", lambda: ledger.workflows(wanted, limit=PAGE)
    yield "by words", lambda: ledger.workflows(WorkflowFilter(text="of episode-099"), limit=PAGE)
    yield "page 40", lambda: ledger.workflows(cursor=cursor, limit=PAGE)
    yield "first page of one project's token", lambda: limited.workflows(limit=PAGE)
    yield "status", lambda: ledger.workflow("episode-05000")
    yield f"inbox of {EPISODES // WAITING_EACH}", ledger.inbox
    yield "projects", ledger.projects
    yield "digest", lambda: ledger.digest("project-3", START.date())
    yield "last event", ledger.last_event


def _timed(look: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    look()
    return (time.perf_counter() - begun) * 1e3


def _add(report: Report, name: str, samples: list[float]) -> None:
    spread = Spread.of(samples)
    report.add(name, spread.median, spread.p95)


async def _measure_temporal(report: Report, client: Client) -> None:
    """List workflows that nobody runs, as many as can be started in the time."""
    queue, count, until = f"nobody-{uuid4().hex[:8]}", 0, time.perf_counter() + STARTING_S
    while time.perf_counter() < until and count < EPISODES:
        names = [f"{queue}-{count + place}" for place in range(STARTED_AT_ONCE)]
        await asyncio.gather(*(client.start_workflow("Nothing", id=name, task_queue=queue) for name in names))
        count += STARTED_AT_ONCE
    progress(f"{count} workflows in Temporal")
    await asyncio.sleep(2)
    first: list[float] = []
    later: list[float] = []
    asked = f"TaskQueue = '{queue}'"
    for _ in range(ROUNDS // 3):
        token = b""
        for page in range(1, min(40, count // PAGE) + 1):
            request = ListWorkflowExecutionsRequest(
                namespace=client.namespace, page_size=PAGE, next_page_token=token, query=asked
            )
            begun = time.perf_counter()
            found = await client.workflow_service.list_workflow_executions(request)
            token = found.next_page_token
            if page in (1, 40):
                (first if page == 1 else later).append((time.perf_counter() - begun) * 1e3)
    _add(report, f"Temporal, {count} workflows: first page", first)
    if later:
        _add(report, f"Temporal, {count} workflows: page 40", later)
    report.notes.append(
        f"details of {len(json.dumps(DETAILS))} characters each; Temporal: its dev server as `tightloop up` starts it"
    )
