"""Busy episodes: processor time of an iteration, and iterations a second, with few and with many of them open."""

import asyncio
import time

from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import InstantPlanner, Stage, stage
from tightloop.client import TightloopClient

OPEN = (10, 100)
ROUNDS = 3
ROUND_S = 10.0
MANY = 10_000
"""Iterations that no episode comes to: opening, proof and end are not measured."""
LIMIT_S = 600


async def measure() -> Report:
    """Open more and more episodes; at each number look at some rounds of their work."""
    report = Report(
        f"busy: one iteration, {ROUNDS} rounds of {ROUND_S:.0f} s with each number of open episodes",
        ("open", "processor ms", "worker", "children", "server", "iterations a second", "aim"),
    )
    async with stage() as on, on.worker(InstantPlanner()):
        client, opened = TightloopClient(on.client, on.settings), list[str]()
        for number in OPEN:
            progress(f"busy: {number} open")
            while len(opened) < number:
                opened.append(await client.start(on.request(MANY)))
            while _working(on) < number:
                await asyncio.sleep(0.1)
            rounds = [await _round(on) for _ in range(ROUNDS)]
            total, worker, children, server, speed = (Spread.of(part) for part in zip(*rounds, strict=True))
            report.add(f"{number}", total, worker, children, server, speed, aim="<= 120 ms")
        for one in opened:
            await on.client.get_workflow_handle(one).terminate()
    return report


def _working(on: Stage) -> int:
    """Return how many episodes have finished an iteration."""
    return len({lap.workflow_id for lap in on.stopwatch.laps if lap.name == "track_iteration"})


def _iterations(on: Stage) -> int:
    return sum(lap.name == "track_iteration" for lap in on.stopwatch.laps)


async def _round(on: Stage) -> tuple[float, ...]:
    """Return milliseconds of processor time of an iteration: all, worker, children, server; iterations a second."""
    begun, iterations, before = time.perf_counter(), _iterations(on), on.processor()
    await asyncio.sleep(ROUND_S)
    took, done, after = time.perf_counter() - begun, _iterations(on) - iterations, on.processor()
    parts = [(b - a) * 1_000 / done for a, b in zip(before, after, strict=True)]
    return (sum(parts), *parts, done / took)
