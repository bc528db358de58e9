"""Temporal away under running deliveries, and a worker process that dies beside a living one."""

import asyncio
import itertools
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import Path
from threading import Lock

import pytest
from temporalio.client import Client

from activities.executor.port import Control, Executor
from tests.support.breaking_worker import Breaking
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import Git, Working, eventually
from tests.support.extent import draw_seed, part
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus, WorkOrder
from tightloop.host import state_folder
from tightloop.settings import Settings
from worker.build import build_adapters, build_workers
from worker.connect import connect
from worker.server import free_port, temporal_binary, tuning_arguments

ROOT = Path(__file__).parents[2]
FALSE = ("died", "has ended", "was interrupted", "unknown")


class Server:
    """A Temporal server of a test's own, which can be away."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._command = [
            str(temporal_binary()), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port),
            "-f", str(folder / "temporal.db"), "--sqlite-pragma", "journal_mode=WAL", "--log-level", "error",
            *tuning_arguments(),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(sign)
        self._process.wait(30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop(signal.SIGKILL)


@dataclass
class Lasting(Executor):
    """Works for a while, then appends a line; notes how often it was asked, and when it was told to stop."""

    seconds: float
    calls: Counter[str] = field(default_factory=Counter)
    stopped_at: float = 0.0
    lock: Lock = field(default_factory=Lock)

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work."""
        del state_folder
        with self.lock:
            self.calls[order.key] += 1
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            if control.is_cancelled():
                self.stopped_at = time.time()
                return ExecutorOutcome(status=ExecutorStatus.CANCELLED)
            time.sleep(0.05)
        with (Path(order.root) / "log.txt").open("a") as log:
            log.write("line\n")
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED)


@asynccontextmanager
async def serving(settings: Settings, executor: Executor) -> AsyncIterator[TightloopClient]:
    """Work in this process, connected as worker processes are."""
    async with asyncio.timeout(60):
        while True:
            try:
                connection = await connect(settings, wait_s=30)
                break
            except Exception:
                await asyncio.sleep(0.2)
    planner = ScriptedPlanner()
    adapters = replace(
        build_adapters(connection, settings), planners=lambda _kind: planner, executors=lambda _name: executor
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(connection, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        yield TightloopClient(connection, settings)


@pytest.fixture
def workspaces(tmp_path: Path, git: Git) -> Callable[[int], list[Path]]:
    """Make repositories."""

    def make(count: int) -> list[Path]:
        folders = [tmp_path / f"project-{number}" for number in range(count)]
        for folder in folders:
            folder.mkdir()
            (folder / "app.py").write_text("print('hello')\n")
            git(folder, "init", "--quiet")
            git(folder, "add", "--all")
            git(folder, "commit", "--quiet", "-m", "start")
        return folders

    return make


def request(workspace: Path, lines: int) -> EpisodeRequest:
    return EpisodeRequest.model_validate(
        {
            "goal": "write lines",
            "workspace": str(workspace),
            # One for each line: an episode that passes no further check for long is stopped.
            "definition_of_done": [f"test $(cat log.txt | wc -l) -ge {number}" for number in range(1, lines + 1)],
            "executor": {"name": "lasting"},
        }
    )


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("absence_s", [60.0, 3.0])
async def test_absence_of_temporal_repeats_nothing_and_loses_nothing(
    settings: Settings, server: Server, workspaces: Callable[[int], list[Path]], absence_s: float
) -> None:
    """30 moments: deliveries of five episodes, each hit by the same six absences. In the gate one, of 6 or 12 s."""
    chance = random.Random(draw_seed())
    at = settings.temporal.evolve(address=f"127.0.0.1:{server.port}", absence_s=absence_s)
    absences = [chance.uniform(2, 40) for _ in range(part(0, of=6))] or [12.0 if absence_s < 6 else 6.0]
    executor, lines = Lasting(part(20, of=25)), part(1, of=10)
    async with serving(settings.evolve(temporal=at), executor) as client:
        folders = workspaces(part(2, of=5))
        ids = [await client.start(request(folder, lines)) for folder in folders]

        async def all_work() -> bool:
            return len(executor.calls) >= len(ids)

        await eventually(all_work, seconds=120)
        for seconds in absences:
            await asyncio.sleep(chance.uniform(0.5, part(3, of=20)))
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(seconds)
            server.start()
        results = [await client.result(each) for each in ids]
        timelines = [await client.timeline(each) for each in ids]
    assert {result.outcome for result in results} == {EpisodeOutcome.SUCCEEDED}
    assert set(executor.calls.values()) == {1}, executor.calls
    assert [folder.joinpath("log.txt").read_text() for folder in folders] == ["line\n" * lines] * len(folders)
    told = [line.text for line in itertools.chain(*timelines)]
    assert not [text for text in told if any(word in text for word in FALSE)]


async def test_cancel_reaches_a_delivery_within_two_seconds(
    client: TightloopClient, working: Working, workspaces: Callable[[int], list[Path]]
) -> None:
    executor = Lasting(60)
    async with working(executors=lambda _name: executor):
        episode_id = await client.start(request(workspaces(1)[0], 1))

        async def works() -> bool:
            return bool(executor.calls)

        await eventually(works, seconds=90)
        await asyncio.sleep(2)
        asked_at = time.time()
        await client.cancel(episode_id)
        await client.result(episode_id)
    assert 0 < executor.stopped_at - asked_at < 2


@pytest.mark.parametrize("by", ["one beside it", "its supervisor"])
async def test_worker_process_that_is_killed_is_noticed_by_another_one_on_its_host(
    client: TightloopClient, temporal_client: Client, settings: Settings, working: Working,
    request_for: Callable[..., EpisodeRequest], workspace: Path, by: str,
) -> None:  # fmt: skip
    """The other one works beside it, or is started in its place; to start it takes as long as its imports."""
    command = [sys.executable, "-m", "tests.support.breaking_worker"]
    command += [settings.temporal.address, settings.temporal.task_queue]
    episode_id = await client.start(
        request_for(executor={"name": "breaking"}, definition_of_done=["grep -q session-of-the-dead log.txt"])
    )

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    processes, imports = [start()], 0.0
    try:

        async def works() -> bool:
            return (state_folder(workspace) / "left.pid").exists()

        await eventually(works, seconds=120)
        async with AsyncExitStack() as stack:
            if by == "one beside it":
                await stack.enter_async_context(working(executors=lambda _name: Breaking()))
            else:
                began = time.monotonic()
                importing = [sys.executable, "-c", "import tests.support.breaking_worker"]
                await asyncio.to_thread(subprocess.run, importing, cwd=ROOT, check=True)
                imports = time.monotonic() - began
            await asyncio.sleep(2)
            (state_folder(workspace) / "die").touch()
            await asyncio.to_thread(processes[0].wait, 60)
            died = time.time()
            if by == "its supervisor":
                processes.append(start())
            await client.result(episode_id)
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    started = [
        event
        async for event in temporal_client.get_workflow_handle(episode_id).fetch_history_events()
        if event.activity_task_started_event_attributes.attempt == 2
    ]
    [again] = started
    message = again.activity_task_started_event_attributes.last_failure.message
    assert message == f"the worker process {processes[0].pid}@{socket.gethostname()} has ended"
    noticed = again.event_time.ToDatetime(UTC).timestamp() - died
    print(f"noticed by {by} after {noticed:.1f} s, of which imports {imports:.1f} s")
    assert noticed - imports < 5
