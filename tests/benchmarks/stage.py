"""What the benchmarks run on: a server with production's settings and database, production's workers, a workspace."""

import compileall
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psutil
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

import workflows
from activities.artifacts.stores import close_idle
from activities.planner.activity import Planner
from tests.benchmarks.bare import BareEmpty, BareWork, act, think
from tests.benchmarks.stopwatch import Stopwatch
from tests.support.doubles import planned
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.executor.model import ExecutorChoice
from tightloop.settings import Settings, parse_settings
from worker.build import PRODUCTION_RUNNER, build_adapters, build_workers, workflow_runner
from worker.connect import DATA_CONVERTER, connect
from worker.server import server_arguments, temporal_binary, tuning_arguments
from worker.up import collect_less_often


class InstantPlanner:
    """Plans one step at once and remembers nothing, so that it cannot be what takes memory."""

    def __init__(self, planning: Callable[[int], object] = lambda _iteration: None) -> None:
        """Take what shall happen at every plan."""
        self._planning = planning

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer."""
        self._planning(briefing.iteration)
        return planned(f"step {briefing.iteration}")


@dataclass(frozen=True)
class Stage:
    """A running server, a client whose activities are timed, and a folder for workspaces."""

    client: Client
    settings: Settings
    folder: Path
    stopwatch: Stopwatch
    processor: "Callable[[], Processor]"
    server: psutil.Process

    @asynccontextmanager
    async def worker(self, planner: Planner, **adapters: Any) -> AsyncIterator[Worker]:
        """Run production's workers of the role `all` with this planner; yield the one for workflows."""
        chosen = {"planners": lambda _kind: planner, **adapters}
        main, *others = build_workers(
            self.client,
            self.settings,
            adapters=replace(build_adapters(self.client, self.settings), **chosen),
            runner=PRODUCTION_RUNNER,
        )
        async with AsyncExitStack() as stack:
            stack.callback(close_idle)
            for worker in (main, *others):
                await stack.enter_async_context(worker)
            yield main

    def workspace(self) -> Path:
        """Return a new git repository with one commit of 200 lines."""
        folder = self.folder / f"workspace-{uuid4().hex[:8]}"
        folder.mkdir()
        (folder / "notes.txt").write_text("".join(f"line {n}\n" for n in range(200)))
        git(folder, "init", "--quiet", "--initial-branch=main")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", "start")
        return folder

    def request(self, iterations: int, **changes: Any) -> EpisodeRequest:
        """Return a request that takes so many iterations, all alike, without a reflection.

        The check counts fewer failures every time, which is progress.
        """
        counting = f"n=$(cat log.txt | wc -l); echo $(({iterations} - n)) failed in 0.1s; test $n -ge {iterations}"
        fields: dict[str, Any] = {
            "goal": f"write {iterations} lines",
            "workspace": str(self.workspace()),
            "definition_of_done": [counting],
            "executor": ExecutorChoice(
                name="scripted",
                options={"steps": [{"append": [{"path": "log.txt", "text": "{n}\n"}]}], "repeat": True},
            ),
            "budget": Budget(max_iterations=iterations + 1, warn_at_iteration=None),
        }
        return EpisodeRequest.model_validate({**fields, **changes})


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """Start a server as `tightloop up` does, with a database in a file, and connect as a worker does."""
    collect_less_often()
    for folder in (Path(workflows.__path__[0]), Path(__file__).parent):
        # As in an installed package: the sandbox loads the modules of workflows anew for each of them.
        compileall.compile_dir(folder, quiet=1)
    with tempfile.TemporaryDirectory(prefix="tightloop-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        production = server_arguments(Settings(), folder / "temporal.db")
        database = production[production.index("-f") :]
        environment = await WorkflowEnvironment.start_local(
            data_converter=DATA_CONVERTER,
            dev_server_existing_path=str(temporal_binary()),
            dev_server_log_level="error",
            dev_server_extra_args=["--output", "none", *tuning_arguments(), *database],
        )
        async with environment:
            address = environment.client.service_client.config.target_host
            queue = f"bench-{uuid4().hex[:8]}"
            document = f"temporal: {{address: '{address}', task_queue: '{queue}'}}\nsandbox: {{unsafe_local: true}}"
            settings = parse_settings(document, {})
            server = _server_on(folder)
            processor = _processor_time(server)
            stopwatch = Stopwatch(lambda: sum(processor()))
            config = (await connect(settings)).config()
            config["interceptors"] = [stopwatch]
            yield Stage(Client(**config), settings, folder, stopwatch, processor, server)


class Processor(NamedTuple):
    """Processor time in seconds."""

    worker: float
    """Of this process: workers and client."""
    children: float
    """Of its children that have ended: checks, programs, what supervises them."""
    server: float


def _server_on(folder: Path) -> psutil.Process:
    """Return the server that this process started on a folder."""
    [server] = [
        process
        for process in psutil.Process().children(recursive=True)
        if any(str(folder) in word for word in process.cmdline())
    ]
    return server


def _processor_time(server: psutil.Process) -> Callable[[], Processor]:
    """Return what tells the processor time of this process, its children, and the server."""

    def tell() -> Processor:
        times, ours = server.cpu_times(), os.times()
        return Processor(ours.user + ours.system, ours.children_user + ours.children_system, times.user + times.system)

    return tell


def git(folder: Path, *arguments: str) -> bytes:
    """Run git with an identity of the benchmarks' own."""
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false")
    return subprocess.run(("git", *identity, *arguments), cwd=folder, capture_output=True, check=True).stdout


def bare_worker(episodes: Worker, queue: str) -> Worker:
    """Return a worker with the settings of one of episodes, but without our interceptors."""
    config: Any = episodes.config()
    config |= {
        "task_queue": queue,
        "workflows": [BareEmpty, BareWork],
        "activities": [*config["activities"], think, act],
        "interceptors": [],
        # The SDK's own, as anybody has it.
        "workflow_runner": SandboxedWorkflowRunner(restrictions=workflow_runner().restrictions),
    }
    return Worker(**config)
