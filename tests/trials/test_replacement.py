"""kill -9 of the worker that has an episode while another one is ready: how soon that one goes on."""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

import pytest
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from tests.support.episodes import eventually, scripted
from tests.support.extent import draw_seed, part
from tests.support.stack.stack import Stack, shared_state, wait_for_port
from tests.trials.test_crashes import check_that_nothing_was_lost_or_doubled, progress
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest

KILLS = part(4, of=20)
BUSY_LINES = part(2, of=4)
"""Few: all that runs beside is as slow meanwhile."""
PROGRAMS_PER_CORE = 4
SOON_S = 60


def lines(workspace: Path, done: str, seconds: float) -> EpisodeRequest:
    """An episode that writes a line in each iteration, which takes so long."""
    return EpisodeRequest(
        goal="write many lines",
        workspace=str(workspace),
        definition_of_done=[done],  # type: ignore[list-item]
        executor=scripted({"append": [{"path": "log.txt", "text": "{n}\n"}], "sleep": seconds}),
        budget=Budget(max_iterations=None, warn_at_iteration=None, max_executor_failures=None),
        pause_after=10_000,
    )


class Pair:
    """Two workers of one queue."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._started = stack, 0
        self.workers: dict[int, subprocess.Popen[bytes]] = {}

    async def complete(self) -> None:
        """Start what is missing, and wait until both are ready."""
        while len(self.workers) < 2:
            process = self._stack.add_worker()
            self.workers[process.pid] = process
            self._started += 1

        async def ready() -> bool:
            return self._stack.worker_log().count("worker 'all' is ready") >= self._started

        await eventually(ready, seconds=120)

    def kill(self, pid: int) -> None:
        process = self.workers.pop(pid)
        process.kill()
        process.wait(60)


async def holder(client: Client, episode_id: str) -> tuple[int, float]:
    """Return which process works on the episode now, and since when; 0 between two activities."""
    seen = await client.get_workflow_handle(episode_id).describe()
    for pending in seen.raw_description.pending_activities:
        if pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
            return int(pending.last_worker_identity.partition("@")[0]), pending.last_started_time.ToMicroseconds() / 1e6
    return 0, 0.0


@pytest.mark.timeout(1500)
async def test_a_spare_worker_goes_on_where_the_other_was_killed(workspace: Path, tmp_path: Path) -> None:
    seed = draw_seed()
    moments, took = random.Random(seed), []
    with Stack(tmp_path / "stack", shared_state()) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        pair = Pair(stack)
        await pair.complete()
        client = await TightloopClient.connect(settings=stack.settings)
        temporal = await Client.connect(stack.settings.temporal.address)
        episode_id = await client.start(lines(workspace, "test -e finished", 1.5))
        await progress(workspace, episode_id)
        for _ in range(KILLS):
            await asyncio.sleep(moments.uniform(0.0, 2.0))

            async def working() -> int:
                return (await holder(temporal, episode_id))[0]

            victim = await eventually(working, seconds=SOON_S)
            killed = time.time()
            pair.kill(victim)

            async def gone_on(victim: int = victim, killed: float = killed) -> float:
                who, since = await holder(temporal, episode_id)
                return since if who != victim and since > killed else 0.0

            took.append(await eventually(gone_on, seconds=SOON_S) - killed)
            await progress(workspace, episode_id)
            await pair.complete()
        # At a safe point no delivery is under way.
        await client.pause(episode_id)

        async def waits() -> bool:
            return bool((await client.status(episode_id)).questions)

        await eventually(waits, seconds=SOON_S)
        await client.cancel(episode_id)
        async with asyncio.timeout(SOON_S):
            await client.result(episode_id)
    figures = check_that_nothing_was_lost_or_doubled(workspace, episode_id)
    spread = f"p50 {median(took):.1f} s, p95 {quantiles(took, n=20)[-1]:.1f} s, all {[round(one, 1) for one in took]}"
    print(f"\nseed {seed}: {KILLS} kills, the other worker went on after {spread}: {figures}")


@pytest.mark.timeout(400)
async def test_a_busy_host_is_not_taken_for_a_dead_worker(workspace: Path, tmp_path: Path) -> None:
    with Stack(tmp_path / "stack", shared_state()) as stack:
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        await Pair(stack).complete()
        client = await TightloopClient.connect(settings=stack.settings)
        command = (sys.executable, "-c", "while True: pass")
        busy = [subprocess.Popen(command) for _ in range(PROGRAMS_PER_CORE * (os.cpu_count() or 1))]
        try:
            async with asyncio.timeout(300):
                done = f"test $(cat log.txt | wc -l) -ge {BUSY_LINES}"
                result = await client.result(await client.start(lines(workspace, done, 10.0)))
        finally:
            for program in busy:
                program.kill()
                program.wait(60)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    spent = result.spent
    assert (result.iterations, spent.infrastructure_retries, spent.executor_failures) == (BUSY_LINES, 0, 0)
