"""What tests of episodes share: workers, a scripted executor, and a client that does not wait for ever."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest

from tightloop.client import TightloopClient
from tightloop.client.status import PATIENCE
from tightloop.episode.model import EpisodeResult, EpisodeStatus
from tightloop.executor.model import ExecutorChoice
from worker.build import Adapters

Git = Callable[..., str]
Working = Callable[..., AbstractAsyncContextManager[Adapters]]
RESULT_SECONDS = 90.0
"""How long a test waits for the end of an episode; half of the time that a whole test has."""


class BoundedClient(TightloopClient):
    """Says where an episode stands that does not end, instead of waiting for the timeout of the whole test."""

    async def result(self, episode_id: str, *, patience: timedelta = PATIENCE) -> EpisodeResult:
        """Wait for the end, for `RESULT_SECONDS` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESULT_SECONDS):
                return await super().result(episode_id, patience=patience)
        status, timeline = await self.status(episode_id), await self.timeline(episode_id)
        told = "\n".join(f"  {entry.kind}: {entry.text}" for entry in timeline[-10:])
        where = f"{status.status} in {getattr(status, 'phase', '')}"
        pytest.fail(f"{episode_id} is {where} after {RESULT_SECONDS:g} s. Last:\n{told}")


def scripted(*steps: dict[str, Any], repeat: bool = True) -> ExecutorChoice:
    """The scripted executor with these steps, one an iteration."""
    return ExecutorChoice(name="scripted", options={"steps": list(steps), "repeat": repeat})


APPEND = {"append": [{"path": "log.txt", "text": "{n}\n"}]}
"""A step that leaves one line an iteration, so that a second delivery would be seen."""
TRIES = {"write": [{"path": "tries.txt", "text": "{n}\n"}]}
"""A change that fixes nothing. Without a change, a delivery that fails would be repeated and be no iteration."""


async def eventually(what: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """Wait until an async condition holds and return its value; it must within the time."""
    async with asyncio.timeout(seconds):
        while True:
            value = await what()
            if value:
                return value
            await asyncio.sleep(0.05)


async def asked(client: TightloopClient, episode_id: str, *, since: EpisodeStatus | None = None) -> EpisodeStatus:
    """Wait until the episode asks; `since`: until it asks anew."""

    async def waits() -> EpisodeStatus | None:
        status = await client.status(episode_id)
        before = since.questions if since else ()
        return status if status.questions and status.questions != before else None

    found: EpisodeStatus = await eventually(waits, seconds=60)
    return found
