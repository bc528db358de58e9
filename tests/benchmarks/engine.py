"""The engine: an iteration of an episode against bare Temporal workflows on the same server and worker settings."""

import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from statistics import mean, median
from typing import Any
from uuid import uuid4

from temporalio.client import Client

from tests.benchmarks.bare import BareEmpty, BareWork
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import InstantPlanner, Stage, bare_worker, stage
from tests.benchmarks.stopwatch import Pass
from tightloop.client import TightloopClient

ROUNDS = 12
ITERATIONS = 12
SETTLED = 2
"""First iterations of a workflow, not counted."""

Arm = Callable[[Stage], Awaitable[str]]


async def measure() -> Report:
    """Run the three kinds of workflow in turn, in another order every round."""
    async with stage() as on, on.worker(InstantPlanner()) as episodes, bare_worker(episodes, _bare_queue(on)):
        await _episode(on)
        found: dict[str, list[list[Pass]]] = {name: [] for name in ARMS}
        once: dict[str, list[float]] = {name: [] for name in ARMS}
        last: dict[str, str] = {}
        for number in range(ROUNDS):
            progress(f"engine: round {number + 1} of {ROUNDS}")
            order = list(ARMS)[number % len(ARMS) :] + list(ARMS)[: number % len(ARMS)]
            for name in order:
                run, first = ARMS[name]
                begun = time.perf_counter()
                last[name] = await run(on)
                took = time.perf_counter() - begun
                passes = on.stopwatch.passes(last[name], first)[SETTLED:]
                found[name].append(passes)
                once[name].append(took - ITERATIONS * median(one.wall for one in passes))
        sizes = {name: await _history(on.client, last[name], first) for name, (_, first) in ARMS.items()}
    return _report(found, once, sizes)


async def _episode(on: Stage) -> str:
    client = TightloopClient(on.client, on.settings)
    episode_id = await client.start(on.request(ITERATIONS))
    result = await client.result(episode_id)
    assert result.iterations == ITERATIONS
    return episode_id


async def _work(on: Stage) -> str:
    return await _run(on, BareWork.run, [on.request(ITERATIONS), ITERATIONS])


async def _empty(on: Stage) -> str:
    return await _run(on, BareEmpty.run, [ITERATIONS])


async def _run(on: Stage, workflow: Any, arguments: list[Any]) -> str:
    queue, workflow_id = _bare_queue(on), f"bare-{uuid4().hex[:8]}"
    await on.client.execute_workflow(workflow, args=arguments, id=workflow_id, task_queue=queue)
    return workflow_id


EPISODE, SAME, EMPTY = "episode", "bare, same activities", "bare, empty activities"
ARMS: dict[str, tuple[Arm, str]] = {
    EPISODE: (_episode, "next_plan"),
    SAME: (_work, "next_plan"),
    EMPTY: (_empty, "think"),
}
TIMES = {"wall": "wall", "outside": "engine", "cpu": "processor"}
RATIOS = (
    ("wall", EPISODE, SAME, "aim <= 1.15"),
    ("outside", EPISODE, SAME, ""),
    ("outside", EPISODE, EMPTY, "aim <= 1.15, read strictly"),
    ("outside", SAME, EMPTY, "what any workflow pays to carry the same payloads and do the same work"),
    ("wall", EPISODE, EMPTY, "aim <= 2.6"),
    ("cpu", EPISODE, EMPTY, "steadier than wall time where others use the machine"),
)


def _bare_queue(on: Stage) -> str:
    return f"{on.settings.temporal.task_queue}-bare"


async def _history(client: Client, workflow_id: str, first: str) -> tuple[Spread, Spread]:
    """Return events and bytes of an iteration."""
    events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
    starts = [
        index
        for index, event in enumerate(events)
        if event.activity_task_scheduled_event_attributes.activity_type.name == first
    ]
    spans = [events[a:b] for a, b in pairwise(starts)][SETTLED:]
    return Spread.of(len(span) for span in spans), Spread.of(sum(e.ByteSize() for e in span) for span in spans)


def _report(
    found: dict[str, list[list[Pass]]], once: dict[str, list[float]], sizes: dict[str, tuple[Spread, Spread]]
) -> Report:
    report = Report(
        f"engine: one iteration, {ROUNDS} rounds of {ITERATIONS} iterations of each kind, interleaved",
        ("kind", "calls", "wall ms", "in activities ms", "engine ms", "cpu ms", "once ms", "events", "bytes", ""),
    )
    for name, rounds in found.items():
        passes = [one for passes in rounds for one in passes]
        wall, inside, outside, cpu = (
            Spread.of(getattr(one, part) * 1_000 for one in passes) for part in ("wall", "inside", "outside", "cpu")
        )
        calls = median(one.calls for one in passes)
        events, size = sizes[name]
        report.add(name, calls, wall, inside, outside, cpu, Spread.of(s * 1_000 for s in once[name]), events, size)

    for part, above, below, aim in RATIOS:
        over, under = (
            # Processor time comes in ticks of 10 ms: its mean says more than its median.
            [(mean if part == "cpu" else median)(getattr(one, part) for one in passes) for passes in found[name]]
            for name in (above, below)
        )
        spread = Spread.of_ratios(over, under)
        title = f"ratio of {TIMES[part]} time, {above} to {below}"
        report.notes.append(f"{title:<78} {spread}  {aim}".rstrip())
        report.figures[title] = spread.__dict__
    report.notes.append("engine: wall less the bodies of the activities. Ratios: of the medians of each round")
    report.notes.append("cpu: of worker, server and the checks. once: the run less its iterations: opening, proof, end")
    return report
