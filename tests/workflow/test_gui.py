"""Whole episodes whose plans go through the window of an editor: the desktop is in memory, everything else is real."""

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.alerts.choose import post_of
from activities.executor.choose import executors
from activities.executor.gui.cursor import hook
from activities.executor.gui.executor import CONTINUE, CursorGuiExecutor
from tests.support.alert_receiver import SECRET, Came, Receiver, receiving
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import BoundedClient, Working, eventually
from tests.support.gui.fake import EDITOR, Desktop, FakeDriver
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, Queues
from tightloop.executor.handoff import leading_marker
from tightloop.settings import Settings, WindowSettings, parse_settings
from worker.build import Role, build_adapters, build_workers, surroundings

NOTICE = "Note: By default, we stop the agent after 25 tool calls. You can resume the conversation."


class Agent:
    """The agent in the window: reads the plan file that it is given, works, and tells by hooks or in its transcript."""

    def __init__(
        self, folder: Path, workspace: Path, *, hooks: bool = True, limits: int = 0, silent: bool = False
    ) -> None:
        self.desktop = Desktop(windows=[EDITOR.evolve(title=f"notes.txt - {workspace.name} - Cursor")])
        self.desktop.on_submit = self.work
        self._folder, self._workspace, self._hooks, self._limits = folder, workspace, hooks, limits
        self._silent = silent
        self.plans: list[str] = []
        if not hooks:
            self.transcript = folder / "transcripts" / "p" / "agent-transcripts" / "u" / "u.jsonl"
            self.transcript.parent.mkdir(parents=True)

    @property
    def executor(self) -> CursorGuiExecutor:
        settings = WindowSettings(transcripts=str(self._folder / "transcripts"))
        return CursorGuiExecutor(
            settings, self._folder, lambda _settings: FakeDriver(self.desktop), transcript_quiet_s=2.0
        )

    def work(self, text: str) -> None:
        assert leading_marker(text)
        self.tell(hook_event_name="beforeSubmitPrompt", prompt=text)
        self.say("user", text)
        if CONTINUE not in text:
            path = next(word for word in text.split() if word.startswith(".tightloop/"))
            self.plans.append((self._workspace / path).read_text())
        self.desktop.shown = (text,)
        if self._limits:
            self._limits -= 1
            self.desktop.shown = (text, "I have read five files.", NOTICE)
            self.tell(hook_event_name="stop", status="completed")
            return
        with (self._workspace / "log.txt").open("a") as log:
            log.write("line\n" * 3)
        if self._silent:
            return
        self.say("assistant", "Three lines are written.")
        self.tell(hook_event_name="afterAgentResponse", text="Three lines are written.")
        self.tell(hook_event_name="stop", status="completed")

    def tell(self, **event: Any) -> None:
        if self._hooks:
            hook.handle(self._folder / "hooks", {"conversation_id": "c-1", **event})

    def say(self, role: str, text: str) -> None:
        if not self._hooks:
            with self.transcript.open("a") as file:
                file.write(json.dumps({"role": role, "message": {"content": [{"type": "text", "text": text}]}}) + "\n")


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
            executors=executors(surroundings(mine), {"cursor-gui": agent.executor}),
            post=post_of(parse_settings(channel, {}), {"S": SECRET}),
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
