"""Whole episodes whose plans go through the window of an editor: the desktop is in memory, everything else is real."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.alerts.channels import make_alert_delivery
from activities.executor.choose import executors
from activities.executor.gui.executor import CONTINUE
from tests.support.alert_receiver import SECRET, Came, Receiver, receiving
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import BoundedClient, Working, eventually
from tests.support.gui.agent import Agent
from tests.support.gui.fake import leading_marker
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.run.core import Queues
from tightloop.settings import Settings, parse_settings
from worker.build import Role, build_adapters, build_executor_dependencies, build_workers


@pytest.fixture(autouse=True)
def transcripts(tmp_path: Path) -> None:
    (tmp_path / "gui" / "transcripts").mkdir(parents=True)


async def test_plan_goes_through_the_window_and_the_work_is_proven(
    working: Working,
    client: BoundedClient,
    registry: Callable[..., dict[str, Any]],
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path / "gui", workspace)
    async with working(**registry(**{"cursor-gui": agent.executor})):
        result = await client.result(await client.start(request_for(executor="cursor-gui")))
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert result.iterations == 1
    assert len(agent.desktop.submitted) == 1
    assert "[" in agent.plans[0]
    assert not (workspace / ".tightloop").exists()
    assert (workspace / "log.txt").read_text() == "line\n" * 3


async def test_limit_of_tool_calls_on_the_screen_leads_to_continue_and_success(
    working: Working,
    client: BoundedClient,
    registry: Callable[..., dict[str, Any]],
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path / "gui", workspace, limits=2)
    async with working(**registry(**{"cursor-gui": agent.executor})):
        result = await client.result(await client.start(request_for(executor="cursor-gui")))
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert [CONTINUE in text for text in agent.desktop.submitted] == [False, True, True]
    assert len({leading_marker(text) for text in agent.desktop.submitted}) == 3


async def test_answer_that_is_only_in_the_transcript_is_enough(
    working: Working,
    client: BoundedClient,
    registry: Callable[..., dict[str, Any]],
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path / "gui", workspace, hooks=False)
    async with working(**registry(**{"cursor-gui": agent.executor})):
        result = await client.result(await client.start(request_for(executor="cursor-gui")))
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 1)
    assert len(agent.desktop.submitted) == 1


async def test_screen_that_nobody_serves_alerts_within_seconds_and_is_used_when_it_appears(
    temporal_client: Client,
    settings: Settings,
    client: BoundedClient,
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    tmp_path: Path,
) -> None:
    agent, screen = Agent(tmp_path / "gui", workspace), f"{settings.temporal.task_queue}-screen"
    mine = settings.evolve(queues=settings.queues.evolve(executor=screen))
    with receiving() as receiver:
        channel = f"alerts: {{channels: {{ops: {{type: webhook, url: '{receiver.url}', secret_env: S}}}}}}"
        adapters = replace(
            build_adapters(temporal_client, mine),
            planners=lambda _kind: ScriptedPlanner(),
            executors=executors(build_executor_dependencies(mine), {"cursor-gui": agent.executor}),
            post=make_alert_delivery(parse_settings(channel, {}), {"S": SECRET}),
        )
        async with AsyncExitStack() as stack:
            # The main workers would serve the queue of the executor themselves if they knew its name.
            for worker in build_workers(temporal_client, settings, adapters=adapters):
                await stack.enter_async_context(worker)
            request = request_for(executor="cursor-gui", queues=Queues(executor=screen))
            episode_id = await client.start(request)
            await eventually(lambda: at_hand_off(client, episode_id))
            wanted = time.time()
            await eventually(lambda: told(receiver, episode_id), seconds=15)
            (came,) = receiver.of(episode_id)
            status, timeline = await client.status(episode_id), await client.timeline(episode_id)
            for worker in build_workers(temporal_client, mine, Role.GUI, adapters):
                await stack.enter_async_context(worker)
            result = await client.result(episode_id)
    assert came.told["kind"] == "no_executor"
    assert came.at - wanted < 5
    assert status.status == "running"
    assert any(entry.kind == "waits" and screen in entry.text for entry in timeline)
    assert (result.outcome, len(agent.desktop.submitted)) == (EpisodeOutcome.SUCCEEDED, 1)


async def at_hand_off(client: BoundedClient, episode_id: str) -> bool:
    return getattr(await client.status(episode_id), "phase", "") == "HANDING_OFF"


async def told(receiver: Receiver, episode_id: str) -> list[Came]:
    return receiver.of(episode_id)
