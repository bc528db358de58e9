"""What all tests share: a real Temporal server per process, git workspaces, workers with scripted ports."""

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker._workflow import _WorkflowWorker

from activities.executor.choose import executors
from activities.planner.activity import Planner
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import APPEND, BoundedClient, Git, Working, scripted
from tests.support.extent import SEED, choose_seed, leave_out_tests
from tests.support.plan.doubles import PlanStage, Playing, Script, ScriptedPlanActivities, plan_worker
from tests.support.temporal_server import close_run, connect_to_server, open_run
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeRequest
from tightloop.settings import Settings, parse_settings
from worker.build import Adapters, build_adapters, build_executor_dependencies, build_workers

MOST_PROCESSES = 8
"""Each has a Temporal server of its own."""
DEADLOCK_SECONDS = 30
QUERY_TIMEOUT = timedelta(seconds=15)
"""A worker that keeps nothing in memory replays a plan for each answer."""
_UNHURRIED = hypothesis.settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Property tests say what holds, not how fast."""
hypothesis.settings.register_profile("repeatable", _UNHURRIED, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", _UNHURRIED)


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run; a process of pytest-xdist takes part in the run that started it."""
    if not hasattr(config, "workerinput"):
        choose_seed()
        open_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        close_run()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes `-n auto` starts: one more than there are cores, because tests mostly wait."""
    return min(MOST_PROCESSES, (os.cpu_count() or 1) + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests together that share something expensive."""
    from tests.support.scheduling import WholeFiles

    return WholeFiles(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not fit the time of the gate; what failed is run again in any case."""
    if not config.getoption("lf") and (left_out := leave_out_tests(items)):
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once what each group of skipped tests needs."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped if report.longrepr)
    terminalreporter.write_line(f"{SEED}={os.environ[SEED]} draws the same cases again")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(scope="session", autouse=True)
def _quiet_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test may see the user's settings, keys or state."""
    for name in list(os.environ):
        if name.startswith(("TIGHTLOOP_", "TEMPORAL_", "OPENAI_", "OTEL_")) and not name.startswith("TIGHTLOOP_TEST_"):
            del os.environ[name]
    # Tests speak to workflows with plain clients of Temporal too; what authentication refuses is in test_trust.py.
    os.environ["TIGHTLOOP_TEMPORAL__AUTHENTICATE"] = "false"
    # What has no file there reads none of the user's.
    empty = tmp_path_factory.getbasetemp() / "temporal.toml"
    empty.touch()
    os.environ["TEMPORAL_CONFIG_FILE"] = str(empty)
    os.environ["TIGHTLOOP_HOME"] = str(tmp_path_factory.getbasetemp() / "state")


@pytest.fixture(scope="session", autouse=True)
def _patient_workers() -> None:
    """Let a workflow task take more than the SDK's 2 s, which it exceeds where several processes share a core."""
    original = _WorkflowWorker.__init__

    def patient(self: _WorkflowWorker, **arguments: Any) -> None:
        original(self, **arguments)
        self._deadlock_timeout_seconds = DEADLOCK_SECONDS

    _WorkflowWorker.__init__ = patient  # type: ignore[method-assign]


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """The Temporal dev server of this process: real, with the tuned settings, in memory."""
    async with WorkflowEnvironment.from_client(await connect_to_server()) as environment:
        yield environment


@pytest.fixture(scope="session")
async def temporal_client(temporal: WorkflowEnvironment) -> Client:
    return temporal.client


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Run git in a folder with an identity of the tests' own."""

    def run(folder: Path, *arguments: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
        done = subprocess.run(("git", *identity, *arguments), cwd=folder, capture_output=True, check=True, timeout=60)
        return done.stdout.decode("utf-8", "replace").strip()

    return run


@pytest.fixture
def workspace(tmp_path: Path, git: Git) -> Path:
    """A git repository with one commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("".join(f"line {n}\n" for n in range(200)))
    (folder / "app.py").write_text("print('hello')\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder


@pytest.fixture
def settings(temporal: WorkflowEnvironment) -> Settings:
    """Settings that name the session's server and a task queue of this test's own."""
    address = temporal.client.service_client.config.target_host
    return parse_settings(
        f"temporal: {{address: '{address}', task_queue: 'test-{uuid4().hex[:12]}', authenticate: false}}\n"
        "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
        "sandbox: {unsafe_local: true}\n"
        # Only tests of drafting have a model that answers such questions.
        "tracking: {drafts: 0}\n",
        {},
    )


@pytest.fixture
def client(temporal_client: Client, settings: Settings) -> TightloopClient:
    return BoundedClient(temporal_client, settings, query_timeout=QUERY_TIMEOUT)


@pytest.fixture
def working(temporal_client: Client, settings: Settings) -> Working:
    """Run workers of all roles with a planner of the test's; other adapters are the real ones."""

    @asynccontextmanager
    async def run(
        planner: Planner | None = None, *, under: Settings = settings, **changes: Any
    ) -> AsyncIterator[Adapters]:
        chosen = planner or ScriptedPlanner()
        adapters = replace(build_adapters(temporal_client, under), **{"planners": lambda _kind: chosen, **changes})
        async with AsyncExitStack() as stack:
            for worker in build_workers(temporal_client, under, adapters=adapters):
                await stack.enter_async_context(worker)
            yield adapters

    return run


@pytest.fixture
def request_for(workspace: Path) -> Callable[..., EpisodeRequest]:
    """Build a request on the test's workspace; by default it appends a line until it has three."""

    def build(**changes: Any) -> EpisodeRequest:
        fields: dict[str, Any] = {
            "goal": "write three lines",
            "workspace": str(workspace),
            "definition_of_done": ["test $(cat log.txt | wc -l) -ge 3"],
            "executor": scripted(APPEND),
        }
        return EpisodeRequest.model_validate({**fields, **changes})

    return build


@pytest.fixture
def plans(temporal_client: Client, settings: Settings) -> TightloopClient:
    return TightloopClient(temporal_client, settings, query_timeout=QUERY_TIMEOUT)


@pytest.fixture
def playing(temporal_client: Client, settings: Settings, plans: TightloopClient) -> Playing:
    """Start a plan with activities that follow a script, and a worker for it."""

    @asynccontextmanager
    async def play(
        source: str, script: Script | None = None, request: dict[str, Any] | None = None, **changes: Any
    ) -> AsyncIterator[PlanStage]:
        cached = changes.pop("cached", 1_000)
        stage = PlanStage(plans, ScriptedPlanActivities(script, **changes), temporal_client)
        queue = settings.temporal.task_queue
        async with plan_worker(temporal_client, queue, stage.scripted.all(), cached=cached):
            await stage.start(source, **(request or {}))
            yield stage

    return play


@pytest.fixture
def registry(settings: Settings) -> Callable[..., dict[str, Any]]:
    """The executors of a worker with more of the test's own."""

    def build(**more: Any) -> dict[str, Any]:
        return {"executors": executors(build_executor_dependencies(settings), more)}

    return build


@pytest.fixture
def cli(settings: Settings) -> Callable[..., Awaitable[tuple[int, str]]]:
    """The command line, in a thread: the worker that has to answer lives in this event loop."""

    async def run(*arguments: str) -> tuple[int, str]:
        address = ("--address", settings.temporal.address)
        done = await asyncio.to_thread(CliRunner().invoke, app, [*address, *arguments])
        return done.exit_code, done.output

    return run
