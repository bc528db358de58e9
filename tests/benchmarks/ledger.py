"""The ledger with 10 000 episodes, on SQLite and PostgreSQL, also over HTTP, beside Temporal's visibility."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx2
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest, ListWorkflowExecutionsResponse
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.served import Served, gateway_process
from tests.benchmarks.stage import stage
from tests.support.ledger import START, question, snapshot
from tests.support.postgres import new_database, postgres_server
from tightloop.client.execution import ITERATION, STATUS
from tightloop.database.access import Tokens
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.ledger import Ledger
from tightloop.database.rows import insert_missing, next_tick, upsert, workflow_row
from tightloop.database.schema import events, metrics, projects, workflows
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.metrics import MetricKind, MetricsFilter
from tightloop.ledger.model import WorkflowFilter
from tightloop.safety.seal import Role

LIMIT_S = 1_200
EPISODES = 10_000
PROJECTS = 10
WAITING_EACH = 100
"""Every hundredth waits for a person."""
ROUNDS = 60
PAGE = 50
STARTING_S = 90.0
"""How long workflows are started in Temporal; nobody runs them."""
STARTED_AT_ONCE = 100
WARM_UP = 5
CLIENTS = 8
AIM = "p95 <= 50"
MEASURED = [
    (kind, str(number))
    for kind, count in (
        (MetricKind.SAFETY_FINDINGS, 4),
        (MetricKind.MEMORY_HIT, 3),
        (MetricKind.ANSWER_S, 2),
        (MetricKind.BANDIT_FINDINGS, 1),
        (MetricKind.CHANGED_LINE_COVERAGE, 1),
    )
    for number in range(count)
]
"""What is measured of each episode."""
DETAILS = EpisodeStatus(episode_id="episode", goal="goal " * 100, workspace="/src/project").model_dump(mode="json")


async def measure() -> Report:
    """Return p50 and p95 of what pages and services ask for."""
    report = Report("ledger: 10 000 episodes, ms", ("", "p50", "p95", "p95 / Temporal", "gateway's CPU", ""))
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server, new_database(server) as address:
        local = sqlite_database(Path(folder) / "ledger.db")
        begun = time.perf_counter()
        _fill(local)
        filled = time.perf_counter() - begun
        shared = postgres_database(address)
        begun = time.perf_counter()
        forwarder = Forwarder(local, shared, ("a",))
        while forwarder.forward():
            pass
        took = time.perf_counter() - begun
        progress("filled")
        for name, database in (("SQLite", local), ("PostgreSQL", shared)):
            for what, look in _looks(Ledger(database)):
                _add(report, f"{name}: {what}", [_timed(look) for _ in range(ROUNDS)])
        report.notes.append(f"written in {filled:.0f} s, brought to PostgreSQL in {took:.0f} s")
        async with stage() as set_up:
            temporal = await _Visibility.filled(set_up.client)
            host = set_up.client.service_client.config.target_host
            for name, database, url in (("SQLite", local, ""), ("PostgreSQL", shared, address)):
                tokens = Tokens(database)
                owner, limited = (
                    tokens.create(of, Role.OPERATOR, only)[1] for of, only in (("all", ()), ("one", ["project-3"]))
                )
                with gateway_process(Path(folder), host, url) as served:
                    await _measure_http(report, name, served, (owner, limited), temporal)
        local.close()
        shared.close()
    return report


def _fill(database: Database) -> None:
    with database.writing() as connection:
        names = [f"project-{number}" for number in range(PROJECTS)]
        first = next_tick(connection, EPISODES * (2 + len(MEASURED)) + PROJECTS)
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
        for place, (kind, key) in enumerate(MEASURED, 2):
            values = [_measured(row, kind, key, row["changed"] + place * EPISODES) for row in rows]
            upsert(connection, metrics, values)


def _measured(row: dict[str, Any], kind: MetricKind, key: str, tick: int) -> dict[str, Any]:
    of = {"project": row["project"], "workflow_id": row["id"], "kind": kind.value, "key": key}
    return {**of, "value": 1.0, "at": row["at"], "metadata": "", "changed": tick}


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
    limited = ledger.limit_to(["project-3"])
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
    yield "digest", lambda: ledger.digest("project-3", START, START + timedelta(days=1))
    yield "last event", ledger.last_event
    whole = MetricsFilter(since=START, until=START + timedelta(days=1))
    yield f"metrics of {EPISODES}", lambda: ledger.metrics(whole)
    yield "metrics of one project", lambda: ledger.metrics(whole.evolve(project="project-3"))


def _timed(look: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    look()
    return (time.perf_counter() - begun) * 1e3


def _add(report: Report, name: str, samples: list[float], beside: Sequence[float] = (), *more: float) -> None:
    spread = Spread.of(samples)
    ratio = (spread.p95 / Spread.of(beside).p95 if beside else "",) if more else ()
    report.add(name, spread.median, spread.p95, *ratio, *more, aim=AIM if name.startswith("HTTP") else "")


async def _measure_http(
    report: Report, name: str, served: Served, tokens: tuple[str, str], temporal: "_Visibility"
) -> None:
    """Ask the gateway and Temporal's visibility in turns."""
    async with _http(served.url, tokens[0]) as http, _http(served.url, tokens[1]) as limited:
        # One page after the other: a cursor is what the page before gave.
        cursor = ""
        for _ in range(39):
            page = await http.get("/api/episodes", params={"limit": PAGE, "cursor": cursor})
            cursor = page.json()["cursor"]
        paths: dict[str, tuple[httpx2.AsyncClient, str, str]] = {
            "list": (http, f"/api/episodes?limit={PAGE}", "first page"),
            "list, filtered": (http, f"/api/episodes?limit={PAGE}&status=failed", "filtered"),
            "list, project and status": (
                http,
                f"/api/episodes?limit={PAGE}&project=project-3&status=failed",
                "filtered",
            ),
            "list, page 40": (http, f"/api/episodes?limit={PAGE}&cursor={cursor}", "page 40"),
            "list, by words": (http, f"/api/episodes?limit={PAGE}&text=of%20episode-099", ""),
            "list, token of one project": (limited, f"/api/episodes?limit={PAGE}", "first page"),
            "status": (http, "/api/episodes/episode-05000", "status"),
            f"inbox of {EPISODES // WAITING_EACH}": (http, "/api/inbox", ""),
            "projects": (http, "/api/projects", ""),
            "page /episodes": (http, "/episodes", "first page"),
        }
        ours: dict[str, list[float]] = {what: [] for what in paths}
        theirs: dict[str, list[float]] = {what: [] for what in (*temporal.QUESTIONS, "")}
        for number in range(WARM_UP + ROUNDS):
            for what, (client, path, _) in paths.items():
                begun = time.perf_counter()
                answer = await client.get(path)
                took = (time.perf_counter() - begun) * 1e3
                assert answer.status_code == 200, answer.text
                if number >= WARM_UP:
                    ours[what].append(took)
            for what in temporal.QUESTIONS:
                took = await temporal.timed(what)
                if number >= WARM_UP:
                    theirs[what].append(took)
        for what, samples in theirs.items():
            if samples:
                _add(report, f"Temporal, {temporal.count} workflows, beside {name}: {what}", samples)
        for what, (client, path, like) in paths.items():
            cost = await served.busy_seconds(client.get(path) for _ in range(ROUNDS // 2))
            _add(report, f"HTTP, {name}: {what}", ours[what], theirs[like], 1e3 * cost)
        path = paths["list"][1]
        _add(report, f"HTTP, {name}: list, {CLIENTS} clients at once", await _at_once(served.url, tokens[0], path))


async def _at_once(url: str, token: str, path: str) -> list[float]:
    async def ask() -> list[float]:
        found = []
        async with _http(url, token) as http:
            for _ in range(ROUNDS // 2):
                begun = time.perf_counter()
                assert (await http.get(path)).status_code == 200
                found.append((time.perf_counter() - begun) * 1e3)
        return found

    return [one for samples in await asyncio.gather(*(ask() for _ in range(CLIENTS))) for one in samples]


def _http(url: str, token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False)


class _Visibility:
    """Workflows in Temporal that nobody runs, with the search attributes and the memo of episodes."""

    QUESTIONS = ("first page", "filtered", "page 40", "status")

    def __init__(self, client: Client, queue: str) -> None:
        self._client, self._queue = client, queue
        self.count = 0
        self._cursor = b""

    @classmethod
    async def filled(cls, client: Client) -> Self:
        """Start as many as can be started in the time."""
        made = cls(client, f"nobody-{uuid4().hex[:8]}")
        until = time.perf_counter() + STARTING_S
        while time.perf_counter() < until and made.count < EPISODES:
            numbers = range(made.count, made.count + STARTED_AT_ONCE)
            await asyncio.gather(*(made._start(number) for number in numbers))
            made.count += STARTED_AT_ONCE
        progress(f"{made.count} workflows in Temporal")
        await asyncio.sleep(2)
        for _ in range(min(39, made.count // PAGE - 1)):
            made._cursor = (await made._list(made._cursor)).next_page_token
        return made

    async def timed(self, what: str) -> float:
        """Return how long an answer takes, in ms."""
        begun = time.perf_counter()
        if what == "status":
            await self._client.get_workflow_handle(f"{self._queue}-0").describe()
        elif what == "filtered":
            await self._list(b"", f" AND {STATUS} = 'failed'")
        else:
            await self._list(self._cursor if what == "page 40" else b"")
        return (time.perf_counter() - begun) * 1e3

    async def _start(self, number: int) -> None:
        word = "paused" if number % WAITING_EACH == 0 else "succeeded" if number % 3 else "failed"
        attributes = TypedSearchAttributes(
            [
                SearchAttributePair(SearchAttributeKey.for_keyword(STATUS), word),
                SearchAttributePair(SearchAttributeKey.for_int(ITERATION), number),
            ]
        )
        name = f"{self._queue}-{number}"
        await self._client.start_workflow(
            "Nothing",
            id=name,
            task_queue=self._queue,
            search_attributes=attributes,
            memo={"goal": f"goal of {name}", "workspace": "/src/project", "executor": "codex"},
        )

    async def _list(self, token: bytes, more: str = "") -> ListWorkflowExecutionsResponse:
        request = ListWorkflowExecutionsRequest(
            namespace=self._client.namespace,
            page_size=PAGE,
            next_page_token=token,
            query=f"TaskQueue = '{self._queue}'{more}",
        )
        return await self._client.workflow_service.list_workflow_executions(request)
