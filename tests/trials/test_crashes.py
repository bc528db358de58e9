"""kill -9 of the worker, and of the Temporal server, at random moments of an episode."""

import asyncio
import math
import random
from contextlib import suppress
from pathlib import Path

import pytest

from activities.executor.outbox import open_outbox
from tests.support.episodes import eventually
from tests.support.extent import draw_seed, part
from tests.support.line_writing import PLAN, line_request, lines_written
from tests.support.model_server import ModelServer, says
from tests.support.stack.stack import Stack, shared_state, wait_for_port
from tightloop.client import TightloopClient
from tightloop.database.ledger import open_project
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import ServiceUnavailableError
from tightloop.executor.model import ExecutorStatus

KILLS = part(4, of=10)
ITERATION_S = 0.6
PAUSE_S = 1.5
LINES = KILLS * (math.ceil(PAUSE_S / ITERATION_S) + 1)
"""More than the episode can write before the last kill."""


def check_that_nothing_was_lost_or_doubled(workspace: Path, episode_id: str) -> str:
    """Compare the files with the outbox and the ledger; returns the figures."""
    lines = lines_written(workspace)
    deliveries = open_outbox(workspace).deliveries(episode_id)
    checkpoints = open_project(workspace).checkpoints(episode_id)
    done = {str(d.iteration) for d in deliveries if d.report and d.report.status is ExecutorStatus.COMPLETED}
    unknown = {str(d.iteration) for d in deliveries if d.report and d.report.status is ExecutorStatus.OUTCOME_UNKNOWN}
    assert done <= lines, "a completed delivery left no trace"
    assert lines <= done | unknown, "a trace without a delivery"
    assert [record.number for record in checkpoints] == list(range(len(checkpoints)))
    assert len(checkpoints) == len({record.tree for record in checkpoints})
    seen = f"{len(lines)} iterations took effect, {len(unknown)} with unknown outcome"
    return f"{seen}, {len(checkpoints)} checkpoints, 0 doubled, 0 lost"


async def progress(workspace: Path, episode_id: str) -> None:
    """Wait until the episode has made one more checkpoint; a crash must cost time only."""
    ledger = open_project(workspace)
    before = len(ledger.checkpoints(episode_id))

    async def more() -> bool:
        return len(ledger.checkpoints(episode_id)) > before

    await eventually(more, seconds=150)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("victim", ["worker", "server"])
async def test_an_episode_survives_kills(victim: str, workspace: Path, tmp_path: Path) -> None:
    seed = draw_seed()
    moments = random.Random(seed)
    with (
        ModelServer(says(PLAN)) as models,
        Stack(
            tmp_path / "stack",
            {"OPENAI_API_KEY": "test", "TIGHTLOOP_PLANNER__BASE_URL": models.url, **shared_state()},
        ) as stack,
    ):
        stack.start_server()
        wait_for_port(stack.settings.temporal.address)
        stack.start_worker()
        client = await TightloopClient.connect(settings=stack.settings)
        episode_id = await client.start(line_request(workspace, LINES, {"sleep": ITERATION_S}))
        for _ in range(KILLS):
            await progress(workspace, episode_id)
            await asyncio.sleep(moments.uniform(0.0, PAUSE_S))
            if victim == "worker":
                stack.kill_worker()
                stack.start_worker()
            else:
                stack.kill_server()
                stack.start_server()
                wait_for_port(stack.settings.temporal.address)
        async with asyncio.timeout(600):
            outcome = await client.result(episode_id)

        async def told() -> tuple[CheckpointRecord, ...]:
            # A server that was just started again may not have seen the worker yet.
            with suppress(ServiceUnavailableError):
                return await client.checkpoints(episode_id)
            return ()

        checkpoints = await eventually(told)
    figures = check_that_nothing_was_lost_or_doubled(workspace, episode_id)
    print(f"\nseed {seed}: {KILLS} kills of the {victim}: {figures}")
    assert outcome.outcome is EpisodeOutcome.SUCCEEDED
    assert [record.number for record in checkpoints] == list(range(len(checkpoints)))
