"""Copies in a bucket: an iteration of an episode with them against one without, on the same server."""

from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import mean, median
from uuid import uuid4

from tests.benchmarks.engine import SETTLED
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import InstantPlanner, Stage, stage
from tests.benchmarks.stopwatch import Lap, Pass
from tests.support.bucket import s3_server
from tightloop.client import TightloopClient
from tightloop.executor.model import ExecutorChoice
from tightloop.settings import RemoteSettings

ROUNDS = 10
ITERATIONS = 12
LOCAL, REMOTE = "on the host only", "copied to a bucket"
WORK_S = {"trivial work": 0.0, "a second of work": 1.0}
WORK_ROUNDS = 2
"""Of the long ones: they vary less, and take longer."""
TIMES = {"wall": "wall", "cpu": "processor"}


async def measure() -> Report:
    """Run both kinds of episodes in turn, in another order every round."""
    report = Report(
        f"copies: one iteration, rounds of {ITERATIONS} iterations of each kind, interleaved",
        ("kind", "wall ms", "cpu ms", "copies", "copy ms", ""),
    )
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(stage())
        kinds = {LOCAL: local, REMOTE: _with_bucket(local, stack.enter_context(s3_server()))}
        for on in kinds.values():
            await stack.enter_async_context(on.worker(InstantPlanner()))
            await _episode(on, 0.0)
        for work, seconds in WORK_S.items():
            found: dict[str, list[str]] = {name: [] for name in kinds}
            for number in range(WORK_ROUNDS if seconds else ROUNDS):
                progress(f"copies: {work}, round {number + 1}")
                for name in (LOCAL, REMOTE) if number % 2 else (REMOTE, LOCAL):
                    found[name].append(await _episode(kinds[name], seconds))
            _add(report, work, found, local)
    report.notes.append(
        "cpu: of worker, Temporal server and checks, without the bucket's server, which is on this machine"
    )
    return report


def _with_bucket(on: Stage, remote: RemoteSettings) -> Stage:
    queue = on.settings.temporal.evolve(task_queue=f"{on.settings.temporal.task_queue}-{uuid4().hex[:4]}")
    return replace(on, settings=on.settings.evolve(temporal=queue, remote=remote))


async def _episode(on: Stage, work_s: float) -> str:
    client = TightloopClient(on.client, on.settings)
    step = {"append": [{"path": "log.txt", "text": "{n}\n"}], **({"sleep": work_s} if work_s else {})}
    executor = ExecutorChoice(name="scripted", options={"steps": [step], "repeat": True})
    episode_id = await client.start(on.request(ITERATIONS, executor=executor))
    result = await client.result(episode_id)
    assert result.iterations == ITERATIONS
    return episode_id


def _add(report: Report, work: str, found: dict[str, list[str]], on: Stage) -> None:
    """Add what was measured: a row for each kind, and the ratios."""
    rounds: dict[str, list[list[Pass]]] = {}
    for name, ids in found.items():
        rounds[name] = [on.stopwatch.passes(each, "next_plan")[SETTLED:] for each in ids]
        passes = [one for each in rounds[name] for one in each]
        copies = [_copies(on.stopwatch.laps, each) for each in ids]
        assert all(map(len, copies)) is (name is REMOTE), "the copies are not where they should be"
        took = [lap.ended - lap.begun for laps in copies for lap in laps]
        report.add(
            f"{work}, {name}",
            Spread.of(one.wall * 1_000 for one in passes),
            Spread.of(one.cpu * 1_000 for one in passes),
            mean(map(len, copies)),
            Spread.of(seconds * 1_000 for seconds in took) if took else "",
        )
    for part, title in TIMES.items():
        # Processor time comes in ticks of 10 ms: its mean says more than its median.
        remote, local = (
            [(mean if part == "cpu" else median)(getattr(one, part) for one in passes) for passes in rounds[name]]
            for name in (REMOTE, LOCAL)
        )
        spread = Spread.of_ratios(remote, local)
        name = f"ratio of {title} time, {work}: {REMOTE} to {LOCAL}"
        report.notes.append(f"{name:<78} {spread}" + ("  aim <= 1.15" if part == "wall" else ""))
        report.figures[name] = spread.__dict__


def _copies(laps: list[Lap], episode_id: str) -> list[Lap]:
    return [lap for lap in laps if (lap.workflow_id, lap.name) == (episode_id, "copy_checkpoint")]
