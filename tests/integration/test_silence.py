"""What a client says of a worker that does not answer: a busy one is not a missing one."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.support.episodes import eventually
from tightloop.client import TightloopClient
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeRequest
from tightloop.errors import ServiceUnavailableError
from tightloop.settings import Settings

ROOT = Path(__file__).parents[2]
BLOCKED_SECONDS = 25


@pytest.fixture
async def process(settings: Settings) -> AsyncIterator["subprocess.Popen[str]"]:
    """A worker in a process of its own that SIGUSR1 keeps busy."""
    words = (settings.temporal.address, settings.temporal.task_queue, str(BLOCKED_SECONDS))
    command = [sys.executable, "-m", "tests.support.blocked_worker", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert await asyncio.to_thread(started.stdout.readline) == "works\n"
            yield started
        finally:
            started.kill()


async def test_a_busy_worker_is_not_called_missing_and_a_killed_one_is(
    process: "subprocess.Popen[str]",
    temporal_client: Client,
    settings: Settings,
    request_for: Callable[..., EpisodeRequest],
) -> None:
    client = TightloopClient(temporal_client, settings, query_timeout=timedelta(seconds=5))
    waiting = await client.start(request_for(definition_of_done=["false"], budget=Budget(max_iterations=1)))

    async def answers() -> bool:
        return (await client.status(waiting)).iteration >= 1

    await eventually(answers)
    process.send_signal(signal.SIGUSR1)
    with pytest.raises(ServiceUnavailableError) as busy:
        await client.status(waiting)
    told = busy.value.message
    assert told.startswith(f"the worker of {waiting} is busy and did not respond in time ({process.pid}@")
    assert "Try again in a moment" in told
    assert "tightloop up" not in told

    process.kill()
    process.wait(10)
    with pytest.raises(
        ServiceUnavailableError, match=f"no worker is responding on task queue .* for {waiting}. Start a worker"
    ):
        await client.status(waiting)
