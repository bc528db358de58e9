"""Scale: many open episodes on two workers, each a process of its own, against bare workflows beside them.

Every figure comes from the histories, the processes and the files; nothing inside the workers is measured.
"""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psutil
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from activities.tracking.retention import collect, size_on_disk
from tests.benchmarks.bare import BareWork
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import Stage, stage
from tightloop.client import TightloopClient
from tightloop.host import open_state_home, state_folder
from worker.connect import known_workflows
from worker.retention import merged_runs

T = TypeVar("T")
OPEN = [int(number) for number in os.environ.get("TIGHTLOOP_TEST_SCALE", "1,10,100").split(",")]
WORKERS = 2
WINDOW_S = 20.0
"""At least; every episode gets time for a few iterations."""
WINDOW_S_EACH = 0.2
"""More for each open one: two cores take about 0.1 s for an iteration."""
WINDOW_S_MOST = 100.0
MANY = 10_000
"""Iterations that no episode comes to: opening, proof and end are not measured."""
AT_ONCE = 10
LIMIT_S = 1_800
EPISODES, BARE = "episodes", "bare"
STORES = {
    "server": ("temporal.db",),
    "ledger": ("ledger.db",),
    "memory": ("memory.db",),
    "artifacts": ("projects/*/artifacts",),
    "snapshots": ("projects/*/trees",),
    "outbox": ("projects/*/outbox.db",),
}
"""Where they are, from the state home."""
STICKY = "TIMEOUT_TYPE_SCHEDULE_TO_START"
"""The worker that has the workflow in its cache took longer than `worker.sticky_timeout_s`: any worker replays it."""
TERMINATED = "WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND"


@dataclass(frozen=True)
class Round:
    """What was seen of one kind of workflow at one number of open ones."""

    begun: float
    took: float
    iterations: list[tuple[float, float]]
    """When each iteration ended, and its time; also of those before the window."""
    failed_tasks: Counter[str]
    """Workflow tasks that failed or timed out, by their causes."""
    worker_bytes: list[int]
    server_bytes: int
    grown: dict[str, int]
    """Bytes of each store that came in the window."""

    @property
    def times(self) -> list[float]:
        """Times of the iterations that ended in the window, in seconds."""
        return [took for ended, took in self.iterations if self.begun <= ended < self.begun + self.took]

    @property
    def speed(self) -> float:
        """Iterations a second."""
        return len(self.times) / self.took


async def measure() -> Report:
    """At each number of open workflows look at episodes, then at bare workflows with the same activities."""
    report = Report(
        f"scale: one iteration with {WORKERS} workers; every episode has its own repository",
        ("open", "s", "n", "iterations/s", "p50 s", "p95 s", "worker MB", "server MB", "failed tasks", "replayed", ""),
    )
    with _own_home() as home:
        async with stage() as on:
            for number in OPEN:
                rounds: dict[str, Round] = {}
                for kind in (EPISODES, BARE):
                    rounds[kind] = await _round(on, home, kind, number)
                    _add(report, f"{number} {kind}", rounds[kind])
                    # Of a run that takes minutes something is known when it is stopped.
                    progress("  ".join(report.rows[-1]))
                _compare(report, number, rounds)
            await _give_back(report, on, home)
    return report


def _add(report: Report, name: str, one: Round) -> None:
    times = Spread.of(one.times)
    worker = sum(one.worker_bytes) / len(one.worker_bytes) / 1e6
    cells = (one.took, times.samples, one.speed, times.median, times.p95, worker, one.server_bytes / 1e6)
    tasks = one.failed_tasks.copy()
    report.add(name, *cells, tasks.total() - tasks.pop(STICKY, 0), one.failed_tasks[STICKY])
    if tasks:
        report.notes.append(f"{name}: {', '.join(f'{count} workflow tasks: {why}' for why, count in tasks.items())}")


def _compare(report: Report, number: int, rounds: dict[str, Round]) -> None:
    episodes, bare = rounds[EPISODES], rounds[BARE]
    ratio = episodes.speed / bare.speed
    report.figures[f"{number}, iterations a second, ratio of episodes to bare"] = ratio
    report.notes.append(f"{number} open: iterations a second, episodes / bare with the same activities: {ratio:.2f}")
    for kind, one in rounds.items():
        grown = {store: size / len(one.times) for store, size in one.grown.items()}
        report.figures[f"{number} {kind}, kB of 1 000 iterations"] = grown
        text = ", ".join(f"{store} {size / 1e3:.1f}" for store, size in grown.items())
        report.notes.append(f"{number} {kind}: MB more for 1 000 iterations: {text}")


async def _round(on: Stage, home: Path, kind: str, number: int) -> Round:
    queue = f"{on.settings.temporal.task_queue}-bare" if kind == BARE else ""
    async with _workers(on, queue) as processes:
        since = datetime.now(UTC)
        folders, ids = await _start(on, number, queue)
        progress(f"scale: {number} {kind} started")
        while len(_tracked(home) & set(ids)) < number:
            await asyncio.sleep(0.2)
        progress(f"scale: {number} {kind} are working")
        before, begun = _sizes(home, on.folder), datetime.now(UTC).timestamp()
        await asyncio.sleep(min(max(WINDOW_S, WINDOW_S_EACH * number), WINDOW_S_MOST))
        took = datetime.now(UTC).timestamp() - begun
        after = _sizes(home, on.folder)
        memory = [process.memory_info().rss for process in processes], on.server.memory_info().rss
        await _at_once(*(on.client.get_workflow_handle(one).terminate() for one in ids))
    iterations, failed = await _histories(on, since, set(ids))
    grown = {store: after[store] - size for store, size in before.items()}
    if kind == BARE:
        # `gc` takes them for open: Temporal has no such episodes, and their workspaces are claimed.
        for folder in folders:
            shutil.rmtree(folder)
    return Round(begun, took, iterations, failed, *memory, grown)


async def _start(on: Stage, number: int, bare_queue: str) -> tuple[list[Path], list[str]]:
    """Start so many; return their state folders and their ids."""
    requests = [on.request(MANY) for _ in range(number)]
    folders = [state_folder(Path(request.workspace)) for request in requests]
    if not bare_queue:
        client = TightloopClient(on.client, on.settings)
        return folders, await _at_once(*(client.start(request) for request in requests))
    ids = [f"bare-{uuid4().hex[:8]}" for _ in requests]
    await _at_once(
        *(
            on.client.start_workflow(BareWork.run, args=[request, MANY], id=one, task_queue=bare_queue)
            for one, request in zip(ids, requests, strict=True)
        )
    )
    return folders, ids


async def _histories(on: Stage, since: datetime, ids: set[str]) -> tuple[list[tuple[float, float]], Counter[str]]:
    """Return when iterations ended and their times, and the workflow tasks that failed."""
    # Visibility lags behind.
    await asyncio.sleep(2)
    runs = [run async for run in on.client.list_workflows(f"StartTime >= '{since.isoformat()}'") if run.id in ids]
    starts: dict[str, list[float]] = {}
    failed: Counter[str] = Counter()
    for run in runs:
        history = await on.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        starts.setdefault(run.id, []).extend(filter(None, map(_iteration, history.events)))
        failed.update(filter(None, map(_failure, history.events)))
    return [(b, b - a) for each in starts.values() for a, b in pairwise(sorted(each))], failed


def _iteration(event: HistoryEvent) -> float:
    """Return when an iteration began, if it began with this event; else 0."""
    begins = event.activity_task_scheduled_event_attributes.activity_type.name == "next_plan"
    return event.event_time.ToNanoseconds() / 1e9 if begins else 0.0


def _failure(event: HistoryEvent) -> str:
    """Return why a workflow task failed, if one did by this event, and not by the end of the round."""
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
        return TimeoutType.Name(event.workflow_task_timed_out_event_attributes.timeout_type)
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
        cause = WorkflowTaskFailedCause.Name(event.workflow_task_failed_event_attributes.cause)
        return "" if cause == TERMINATED else cause
    return ""


async def _give_back(report: Report, on: Stage, home: Path) -> None:
    """Free what the episodes left, as `tightloop gc` does when they ended long ago."""
    later = datetime.now(UTC) + timedelta(days=1)
    known = merged_runs(await known_workflows(on.client))
    before = _sizes(home, on.folder)
    for folder in sorted((home / "projects").glob("*/")):
        await asyncio.to_thread(collect, folder, known, older_than=timedelta(), dry_run=False, queried_at=later)
    after = _sizes(home, on.folder)
    report.figures["gc"] = {store: (size, after[store]) for store, size in before.items()}
    text = ", ".join(f"{store} {size / 1e6:.1f} -> {after[store] / 1e6:.1f}" for store, size in before.items())
    report.notes.append(f"gc after all of them ended, MB before -> after: {text}")


@asynccontextmanager
async def _workers(on: Stage, bare_queue: str) -> AsyncIterator[list[psutil.Process]]:
    file = on.folder / "settings.yaml"
    at = on.settings.temporal
    file.write_text(
        f"temporal: {{address: '{at.address}', task_queue: '{at.task_queue}'}}\nsandbox: {{unsafe_local: true}}\n"
    )
    command = [sys.executable, "-m", "tests.benchmarks.scale_worker", str(file), *([bare_queue] if bare_queue else [])]
    # What is terminated under their hands they tell at length.
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(WORKERS)]
    try:
        yield [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            await asyncio.to_thread(process.wait)


def _tracked(home: Path) -> set[str]:
    """Return the workflows that have finished an iteration."""
    query = "SELECT DISTINCT workflow_id FROM checkpoints WHERE number > 0"
    # The workers make it, and its tables, meanwhile.
    with (
        contextlib.suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{home / 'ledger.db'}?mode=ro", uri=True, timeout=15)) as connection,
    ):
        return {key for (key,) in connection.execute(query)}
    return set()


def _sizes(home: Path, server: Path) -> dict[str, int]:
    """Return the bytes of each store on the disk; the logs of databases are brought into them first."""
    for path in (server / "temporal.db", *home.rglob("*.db")):
        with closing(sqlite3.connect(path, timeout=15)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return {
        store: sum(_size(path) for root in (home, server) for name in names for path in root.glob(name))
        for store, names in STORES.items()
    }


def _size(path: Path) -> int:
    logs = [log for log in path.rglob("*.db-*") if log.is_file()] if path.is_dir() else []
    return size_on_disk(path) - sum(size_on_disk(log) for log in logs)


@contextmanager
def _own_home() -> Iterator[Path]:
    """Have a state home of this run alone, here and in the workers."""
    with tempfile.TemporaryDirectory(prefix="tightloop-scale-", ignore_cleanup_errors=True) as name:
        os.environ["TIGHTLOOP_HOME"] = name
        try:
            yield open_state_home(Path(name))
        finally:
            del os.environ["TIGHTLOOP_HOME"]


async def _at_once(*calls: Awaitable[T]) -> list[T]:
    """Await all of them, some at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(call: Awaitable[T]) -> T:
        async with slots:
            return await call

    return list(await asyncio.gather(*map(one, calls)))
