"""Idle episodes: what each paused episode holds in the memory of a worker, against a bare workflow that waits."""

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from temporalio.worker import Worker

from activities.workspace.folders import root_of
from activities.workspace.scope import EpisodeScope, TreeDiff
from activities.workspace.store.entry import Entry
from tests.benchmarks.bare import BareIdle
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import Stage, stage
from tests.support.doubles import gives_up
from tightloop.client import TightloopClient
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.safety.drift import Drift, DriftAnswer, DriftCause
from worker.hosting.startup import trim

BATCHES = 3
BATCH = 100
"""Python takes memory by the megabyte: with fewer that is what is seen."""
WARM = 20
AT_ONCE = 10
TREE = "0" * 40


class GivingUp:
    """Leaves every episode to a person."""

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        return gives_up()


@dataclass(frozen=True)
class EmptyTree:
    """A tree that never changes; git is not what is measured here."""

    root: Path

    def snapshot(self) -> str:
        return TREE

    def ensure(self, expected: str, cause: DriftCause = DriftCause.OUTSIDE) -> Drift | None:
        return None

    def expect(self, expected: str) -> Drift | None:
        return None

    def settle(self, expected: str, answer: DriftAnswer) -> tuple[str, Drift | None]:
        return expected, None

    def restore(self, tree: str) -> None:
        pass

    def keep(self, name: str, tree: str) -> None:
        pass

    def entries(self, tree: str) -> Mapping[bytes, Entry]:
        return {}

    def own_process(self, pid: int) -> None:
        pass


class EmptyWorkspaces:
    """Workspaces without repositories."""

    def prepare(self, scope: EpisodeScope, *, take_over: Callable[[str], bool]) -> tuple[str, ...]:
        return ()

    def release(self, scope: EpisodeScope) -> None:
        pass

    @contextmanager
    def hold(self, scope: EpisodeScope) -> Iterator[EmptyTree]:
        yield EmptyTree(root_of(scope))


class EmptyDiffer:
    """Sees no difference."""

    def compare(self, root: Path, base: str, tree: str) -> TreeDiff:
        return TreeDiff()

    def lines(self, root: Path, tree: str) -> int:
        return 0


async def measure() -> Report:
    """Start batches of both kinds in turn; all of them stay in the worker's cache."""
    async with (
        stage() as on,
        on.worker(GivingUp(), workspaces=EmptyWorkspaces(), differ=EmptyDiffer()) as worker,
        _bare_worker(on, worker),
    ):
        await _grown(lambda: _episodes(on, WARM))
        await _grown(lambda: _bare(on, WARM))
        found: dict[str, list[float]] = {"paused episode": [], "bare waiting workflow": []}
        for number in range(BATCHES):
            progress(f"idle: batch {number + 1} of {BATCHES}")
            found["paused episode"].append(await _grown(lambda: _episodes(on, BATCH)) / BATCH)
            found["bare waiting workflow"].append(await _grown(lambda: _bare(on, BATCH)) / BATCH)
    report = Report(
        f"idle: memory of each workflow, {BATCHES} batches of {BATCH} of each kind in one worker, interleaved",
        ("kind", "kB each", "aim"),
    )
    for name, sizes in found.items():
        report.add(name, Spread.of(sizes), aim="< 150 kB" if name == "paused episode" else "")
    episodes, bare = (sum(sizes) for sizes in found.values())
    report.add("ratio of all episodes to all bare", episodes / bare)
    return report


def _bare_worker(on: Stage, worker: Worker) -> Worker:
    config: Any = worker.config()
    config |= {"task_queue": f"{on.settings.temporal.task_queue}-bare", "workflows": [BareIdle]}
    return Worker(**config)


async def _grown(start: Callable[[], Any]) -> float:
    """Return by how many kB the process has grown."""
    process = psutil.Process()
    gc.collect()
    trim()
    before = process.memory_info().rss
    await start()
    gc.collect()
    # As a worker does every minute.
    trim()
    return (process.memory_info().rss - before) / 1_000


async def _episodes(on: Stage, count: int) -> None:
    client = TightloopClient(on.client, on.settings)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        folder = on.folder / f"idle-{uuid4().hex[:8]}"
        folder.mkdir()
        async with gate:
            episode_id = await client.start(on.request(3, workspace=str(folder)))
            while not (await client.status(episode_id)).questions:
                await asyncio.sleep(0.02)

    await asyncio.gather(*(one() for _ in range(count)))


async def _bare(on: Stage, count: int) -> None:
    queue = f"{on.settings.temporal.task_queue}-bare"
    handles = [
        await on.client.start_workflow(BareIdle.run, id=f"idle-{uuid4().hex[:8]}", task_queue=queue)
        for _ in range(count)
    ]
    for handle in handles:
        await handle.describe()
    await asyncio.sleep(1.0)
