"""Production's workers share the modules of workflows between all episodes: nothing may be left in them."""

import asyncio
import ctypes
import gc
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow
from temporalio.client import Client

from tests.support.doubles import ScriptedPlanner, gives_up
from tests.support.episodes import Git, eventually
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.settings import Settings
from worker.build import PRODUCTION_RUNNER, build_adapters, build_workers
from worker.hosting.startup import trim

MUTABLE = (dict, list, set, bytearray, deque)
SHARED = ("workflows", "tightloop.episode", "tightloop.plan", "tightloop.executor", "tightloop.safety")


def kept_in_modules() -> dict[str, str]:
    """Return everything that can change in the modules and classes that workflows use."""
    found = {}
    for module in [one for name, one in sys.modules.items() if name.startswith(SHARED)]:
        owners: dict[str, Any] = {module.__name__: module}
        classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        owners |= {f"{module.__name__}.{one.__qualname__}": one for one in classes}
        for place, owner in owners.items():
            for name, value in list(vars(owner).items()):
                if isinstance(value, MUTABLE) and not name.startswith("__"):
                    found[f"{place}.{name}"] = repr(value)
    return found


async def test_two_episodes_of_one_worker_share_nothing_that_changes(
    temporal_client: Client,
    settings: Settings,
    client: TightloopClient,
    request_for: Callable[..., EpisodeRequest],
    tmp_path: Path,
    git: Git,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("a\n")
    git(other, "init", "--quiet")
    git(other, "add", "--all")
    git(other, "commit", "--quiet", "-m", "start")
    answers = ScriptedPlanner()
    adapters = replace(build_adapters(temporal_client, settings), planners=lambda _kind: answers)
    async with AsyncExitStack() as stack:
        for worker in build_workers(temporal_client, settings, adapters=adapters, runner=PRODUCTION_RUNNER):
            await stack.enter_async_context(worker)
        before = kept_in_modules()
        assert len(before) > 20
        ids = [await client.start(request_for()), await client.start(request_for(workspace=str(other)))]
        results = await asyncio.gather(*(client.result(one) for one in ids))
        assert [result.outcome for result in results] == [EpisodeOutcome.SUCCEEDED] * 2
        assert [result.iterations for result in results] == [3, 3]
        assert kept_in_modules() == before


async def test_a_paused_episode_holds_no_copy_of_the_modules_nor_the_message_that_started_it(
    temporal_client: Client, settings: Settings, client: TightloopClient, request_for: Callable[..., EpisodeRequest]
) -> None:
    planner = ScriptedPlanner(lambda _briefing: gives_up())
    adapters = replace(build_adapters(temporal_client, settings), planners=lambda _kind: planner)
    async with AsyncExitStack() as stack:
        for worker in build_workers(temporal_client, settings, adapters=adapters, runner=PRODUCTION_RUNNER):
            await stack.enter_async_context(worker)
        before = copies()
        episode_id = await client.start(request_for())

        async def waits() -> bool:
            return bool((await client.status(episode_id)).questions)

        await eventually(waits)
        assert copies() == before
        assert [one for one in gc.get_objects() if isinstance(one, InitializeWorkflow)] == []
        await client.cancel(episode_id)
        await client.result(episode_id)


def copies() -> int:
    gc.collect()
    modules = [one for one in gc.get_objects() if isinstance(one, ModuleType)]
    return sum(1 for one in modules if one.__name__ == "workflows.episode.workflow")


def test_memory_between_what_is_in_use_is_given_back() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("this C library gives memory back by itself, or not at all")
    # Small enough that the C library does not map them apart; every other one stays.
    blocks: list[bytes | None] = [b"x" * 60_000 for _ in range(2_000)]
    blocks[::2] = [None] * 1_000
    before = psutil.Process().memory_info().rss
    trim()
    assert before - psutil.Process().memory_info().rss > 40_000_000
    assert sum(one is not None for one in blocks) == 1_000
