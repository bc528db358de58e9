"""One screen and several plans: real workers of role `gui`, with a desktop in memory that takes its time."""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import FixedSizeSlotSupplier

from activities.executor.choose import executors
from activities.executor.gui import cursor_hook
from activities.executor.gui.executor import CursorGuiExecutor
from activities.executor.gui.port import Health
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import BoundedClient, Git
from tests.support.gui.fake import EDITOR, Desktop, FakeDriver
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.run.core import Queues
from tightloop.settings import Settings, WindowSettings
from worker.build import Role, build_adapters, build_executor_dependencies, build_workers
from worker.connect import connect

SLOW_S = 0.03
"""Of one call to the desktop: a hand-off takes a second, as on a real one."""
WORK_S = 1.0


class Screen:
    """The desktop of one host, its drivers, and an agent that needs a while for each plan."""

    def __init__(self, folder: Path, roots: tuple[Path, ...]) -> None:
        self.desktop = Desktop(windows=[EDITOR.evolve(title="notes.txt - project - Cursor")])
        self.desktop.on_submit = lambda text: threading.Thread(target=self.work, args=(text,)).start()
        self.folder, self.roots = folder, roots
        self.calls: list[tuple[int, str]] = []
        self.numbers = itertools.count()
        (folder / "transcripts").mkdir(parents=True)

    @property
    def executor(self) -> CursorGuiExecutor:
        # No hooks are installed: those of this test are called by the agent.
        settings = WindowSettings(transcripts=str(self.folder / "transcripts"), allow_unknown_roots=True)
        return CursorGuiExecutor(settings, self.folder, lambda _settings: Slow(self))

    def work(self, text: str) -> None:
        path = next(word for word in text.split() if word.startswith(".tightloop/"))
        root = next(root for root in self.roots if (root / path).exists())
        self.tell(root, hook_event_name="beforeSubmitPrompt", prompt=text)
        time.sleep(WORK_S)
        (root / "log.txt").write_text("line\n" * 3)
        self.tell(root, hook_event_name="afterAgentResponse", text="Done.")
        self.tell(root, hook_event_name="stop", status="completed")

    def tell(self, root: Path, **event: Any) -> None:
        fields = {"conversation_id": root.parent.name, "workspace_roots": [str(root)], **event}
        cursor_hook.handle(self.folder / "hooks", fields)

    def turns(self, *without: str) -> list[int]:
        """Return whose calls came after whose, each turn once, as if some calls were not made."""
        return [driver for driver, _ in groupby(driver for driver, name in self.calls if name not in without)]


class Slow(FakeDriver):
    """Notes each call before it is made."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen.desktop)
        self.screen = screen
        self.number = next(screen.numbers)

    def preflight(self) -> Health:
        self.screen.calls.append((self.number, "preflight"))
        return super().preflight()

    def _do(self, name: str, effect: Callable[[], object]) -> object:
        self.screen.calls.append((self.number, name))
        time.sleep(SLOW_S)
        return super()._do(name, effect)

    def close(self) -> None:
        self.screen.calls.append((self.number, "close"))


Play = Callable[[int], Awaitable[Screen]]


@pytest.fixture
def play(
    temporal_client: Client,
    settings: Settings,
    client: BoundedClient,
    request_for: Callable[..., EpisodeRequest],
    workspace: Path,
    tmp_path: Path,
    git: Git,
) -> Play:
    """Run two episodes at the same time, in clones of one name, with so many workers at the screen."""

    async def run(workers: int) -> Screen:
        other = tmp_path / "second" / "project"
        other.parent.mkdir()
        git(tmp_path, "clone", "--quiet", "project", str(other))
        screen, queue = Screen(tmp_path / "gui", (workspace, other)), f"{settings.temporal.task_queue}-gui-macos"
        at_screen = settings.evolve(queues=settings.queues.evolve(executor=queue))
        adapters = replace(
            build_adapters(temporal_client, settings),
            planners=lambda _kind: ScriptedPlanner(),
            executors=executors(build_executor_dependencies(settings), {"cursor-gui": screen.executor}),
        )
        async with AsyncExitStack() as stack:
            built = build_workers(temporal_client, settings, adapters=adapters)
            for _ in range(workers):
                # A connection of its own, as every worker process has.
                built += build_workers(await connect(at_screen), at_screen, Role.GUI, adapters)
            for worker in built:
                await stack.enter_async_context(worker)
            asked = {"executor": "cursor-gui", "queues": Queues(executor=queue)}
            ids = [
                await client.start(request_for(goal=f"goal {root.parent.name}", workspace=str(root), **asked))
                for root in screen.roots
            ]
            results = await asyncio.gather(*(client.result(each) for each in ids))
        assert [result.outcome for result in results] == [EpisodeOutcome.SUCCEEDED] * 2
        assert (len(screen.desktop.submitted), screen.desktop.leaked) == (2, [])
        return screen

    return run


async def test_a_worker_at_the_screen_takes_one_delivery_after_the_other(play: Play) -> None:
    screen = await play(1)
    # A turn begins with a look at the host, and ends after the agent's answer.
    assert len(screen.turns()) == len(set(screen.turns()))


async def test_two_workers_at_one_screen_never_touch_it_at_the_same_time(play: Play) -> None:
    screen = await play(2)
    assert len(screen.turns("preflight", "close")) == 2
    assert len(screen.turns()) > len(set(screen.turns())), "the second one has tried meanwhile"


async def test_a_worker_at_the_screen_serves_its_task_queue_only(temporal_client: Client, settings: Settings) -> None:
    adapters = build_adapters(temporal_client, settings)
    main = settings.temporal.task_queue
    for queues, wanted in ((settings.queues, f"{main}-gui-"), (settings.queues.evolve(executor="mine"), "mine")):
        (worker,) = build_workers(temporal_client, settings.evolve(queues=queues), Role.GUI, adapters)
        config = worker.config()
        assert config["task_queue"].startswith(wanted)
        assert config["tuner"]._get_activity_task_slot_supplier() == FixedSizeSlotSupplier(1)  # type: ignore[union-attr]
        assert list(config["workflows"]) == []
        assert sorted(each.__name__ for each in config["activities"]) == ["conclude", "execute", "hand_off"]
