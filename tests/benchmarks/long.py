"""A long episode: 200 iterations over several runs, with the memory of the worker and the time of an iteration."""

import gc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import psutil
from temporalio.client import Client

from activities.artifacts.stores import close_idle
from activities.tracking.retention import KnownWorkflow, collect, size_on_disk
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import InstantPlanner, stage
from tests.benchmarks.stopwatch import Pass
from tightloop.client import TightloopClient
from tightloop.host import state_folder

ITERATIONS = 200
SAMPLED = (50, 100, 150, 200)
EARLY, LATE = slice(10, 50), slice(160, 200)
"""Iterations that are compared; the first ones warm up."""
WINDOW = 5
"""Iterations on both sides of a sample of the memory that count, too."""


async def measure() -> Report:
    """Run one episode and watch this process, in which the worker is."""
    process = psutil.Process()
    memory: dict[int, int] = {}

    def look(iteration: int) -> None:
        if iteration % 50 == 0:
            progress(f"long: iteration {iteration} of {ITERATIONS}")
        gc.collect()
        memory[iteration] = process.memory_info().rss

    async with stage() as on:
        client = TightloopClient(on.client, on.settings)
        async with on.worker(InstantPlanner(look)):
            request = on.request(ITERATIONS)
            episode_id = await client.start(request)
            result = await client.result(episode_id)
            status = await client.status(episode_id)
            runs = on.stopwatch.runs(episode_id)
            sizes = [await _size(on.client, episode_id, run) for run in runs]
            kept = state_folder(Path(request.workspace))
        passes = on.stopwatch.passes(episode_id, "next_plan")
        # As a reader of the disk finds it when no worker holds the files.
        close_idle()
        left = [(_files(kept), size_on_disk(kept))]
        known = {episode_id: KnownWorkflow(episode_id, datetime.now(UTC) - timedelta(hours=1), None)}
        collect(kept, known, older_than=timedelta(days=30), dry_run=False)
        left.append((_files(kept), size_on_disk(kept)))
    assert (result.iterations, status.runs) == (ITERATIONS, len(runs))
    report = _report(memory, passes, sizes)
    for title, (files, size) in zip(("", ", packed by gc"), left, strict=True):
        report.add(f"files that the episode keeps{title}", files)
        report.add(f"MB that it keeps{title}", size / 1e6)
    return report


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


async def _size(client: Client, episode_id: str, run_id: str) -> tuple[int, int]:
    history = await client.get_workflow_handle(episode_id, run_id=run_id).fetch_history()
    return len(history.events), sum(event.ByteSize() for event in history.events)


def _report(memory: dict[int, int], passes: list[Pass], sizes: list[tuple[int, int]]) -> Report:
    report = Report(f"long: one episode of {ITERATIONS} iterations", ("figure", "value", "aim"))

    def around(iteration: int) -> list[float]:
        return [size / 1e6 for n, size in memory.items() if abs(n - iteration) <= WINDOW]

    for iteration in SAMPLED:
        report.add(f"memory at iteration {iteration}, MB", Spread.of(around(iteration)))
    report.add("memory, ratio of 200 to 50", median(around(200)) / median(around(50)), aim="flat")
    early, late = passes[EARLY], passes[LATE]
    for part in ("wall", "inside", "outside"):
        title = {"wall": "wall time", "inside": "time in activities", "outside": "engine time"}[part]
        before, after = [getattr(p, part) for p in early], [getattr(p, part) for p in late]
        report.add(f"{title} of iterations 11-50, ms", Spread.of(seconds * 1_000 for seconds in before))
        report.add(f"{title} of iterations 161-200, ms", Spread.of(seconds * 1_000 for seconds in after))
        report.add(f"{title}, ratio of late to early", median(after) / median(before), aim="flat")
    report.add("runs", len(sizes))
    report.add("events of the biggest run", max(events for events, _ in sizes), aim="< 51 200")
    report.add("bytes of the biggest run", max(size for _, size in sizes), aim="< 50 MB")
    report.notes.append("memory: resident set of the process of worker and client, after a collection, at each plan")
    return report
