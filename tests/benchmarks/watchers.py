"""Watchers of one episode: what 50 of them take of the processor, against each looking twice a second."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import InstantPlanner, Stage, stage
from tests.support.doubles import gives_up
from tightloop.client import TightloopClient
from tightloop.client.status import POLL_INTERVAL
from tightloop.episode.planning import Briefing, PlannerAnswer

WATCHERS = 50
ROUNDS = 3
SECONDS = 8.0
PAUSED, WORKING = "paused", "working"
_ITERATION_S = 0.5

Watch = Callable[[TightloopClient, str], Awaitable[None]]


class Unhurried(InstantPlanner):
    """Takes half a second for a plan; `paused` episodes it leaves to a person."""

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        if PAUSED in briefing.goal:
            return gives_up()
        await asyncio.sleep(_ITERATION_S)
        return await super().plan(briefing)


async def look(client: TightloopClient, episode_id: str) -> None:
    """Look at the status twice a second, as every watcher did before."""
    while True:
        await client.status(episode_id)
        await asyncio.sleep(POLL_INTERVAL.total_seconds())


async def watch(client: TightloopClient, episode_id: str) -> None:
    """Follow the status."""
    async for _ in client.watch(episode_id):
        pass


async def follow(client: TightloopClient, episode_id: str) -> None:
    """Follow the events."""
    async for _ in client.events(episode_id):
        pass


WAYS: dict[str, Watch] = {"looking twice a second": look, "watch": watch, "events": follow}


async def measure() -> Report:
    """Measure the ways in turns, on a paused and on a working episode; nobody watches for comparison."""
    found: dict[tuple[str, str], list[float]] = {}
    async with stage() as on, on.worker(Unhurried()):
        client = TightloopClient(on.client, on.settings)
        for state in (PAUSED, WORKING):
            episode_id = await client.start(on.request(1_000, goal=f"a {state} episode"))
            await asyncio.sleep(3.0)
            for number in range(ROUNDS):
                progress(f"watchers: {state}, round {number + 1} of {ROUNDS}")
                alone = await _taken(on, client, episode_id, None)
                found.setdefault((state, "nobody"), []).append(alone)
                for name, way in WAYS.items():
                    more = await _taken(on, client, episode_id, way) - alone
                    found.setdefault((state, name), []).append(more)
            await client.cancel(episode_id)
    title = f"watchers: {WATCHERS} of one episode in one process; client, worker and server together"
    report = Report(title, ("who", "paused: % of a core", "working: % of a core", ""))
    for name in ("nobody", *WAYS):
        report.add(name, *(Spread.of(100 * share for share in found[state, name]) for state in (PAUSED, WORKING)))
    for name in ("watch", "events"):
        ratios = (
            Spread.of_ratios(found[state, name], found[state, "looking twice a second"]) for state in (PAUSED, WORKING)
        )
        report.add(f"{name} / looking", *ratios)
    report.notes.append(f"{ROUNDS} rounds of {SECONDS:g} s in turns; the rows below 'nobody' are what watchers add")
    return report


async def _taken(on: Stage, client: TightloopClient, episode_id: str, way: Watch | None) -> float:
    """Return the processor time that a second takes."""
    watching = (
        [] if way is None else [asyncio.create_task(_until_cancelled(way(client, episode_id))) for _ in range(WATCHERS)]
    )
    # What they read first is not what is measured.
    await asyncio.sleep(2.0)
    begun, taken = time.perf_counter(), on.stopwatch.cpu()
    await asyncio.sleep(SECONDS)
    share = (on.stopwatch.cpu() - taken) / (time.perf_counter() - begun)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching)
    return share


async def _until_cancelled(work: Awaitable[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await work
