"""What all tests share: one real Temporal server a session, git workspaces, workers with scripted ports."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest
from hypothesis import HealthCheck
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from tests.doubles import ScriptedPlanner
from tightloop.client import TightloopClient
from tightloop.client.reader import PATIENCE
from tightloop.episode import EpisodeRequest, EpisodeResult
from tightloop.executor import ExecutorChoice
from tightloop.settings import Settings, parse_settings
from worker.build import Adapters, build_adapters, build_workers
from worker.connect import DATA_CONVERTER
from worker.server import temporal_binary, tuning_arguments

Git = Callable[..., str]
RESULT_SECONDS = 90.0
"""How long a test waits for the end of an episode; half of the time that a whole test has."""

_UNHURRIED = hypothesis.settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Property tests say what holds, not how fast."""
hypothesis.settings.register_profile("repeatable", _UNHURRIED, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", _UNHURRIED)


@pytest.fixture(scope="session", autouse=True)
def _quiet_environment() -> None:
    """No test may see the user's settings or keys."""
    for name in list(os.environ):
        if name.startswith(("TIGHTLOOP_", "OPENAI_", "OTEL_")) and not name.startswith("TIGHTLOOP_TEST_"):
            del os.environ[name]


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[WorkflowEnvironment]:
    """A real Temporal dev server with the tuned settings, in memory."""
    environment = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=tuning_arguments(),
    )
    async with environment:
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
        f"temporal: {{address: '{address}', task_queue: 'test-{uuid4().hex[:12]}'}}\n"
        "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
        "sandbox: {unsafe_local: true}\n",
        {},
    )


class BoundedClient(TightloopClient):
    """Says where an episode stands that does not end, instead of waiting for the timeout of the whole test."""

    async def result(self, episode_id: str, *, patience: timedelta = PATIENCE) -> EpisodeResult:
        """Wait for the end, for `RESULT_SECONDS` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESULT_SECONDS):
                return await super().result(episode_id, patience=patience)
        status, timeline = await self.status(episode_id), await self.timeline(episode_id)
        told = "\n".join(f"  {entry.kind}: {entry.text}" for entry in timeline[-10:])
        pytest.fail(f"{episode_id} is {status.status} in {status.phase} after {RESULT_SECONDS:g} s. Last:\n{told}")


@pytest.fixture
def client(temporal_client: Client, settings: Settings) -> TightloopClient:
    return BoundedClient(temporal_client, settings)


Working = Callable[..., AbstractAsyncContextManager[Adapters]]


@pytest.fixture
def working(temporal_client: Client, settings: Settings) -> Working:
    """Run workers of all roles with a planner of the test's; other adapters are the real ones."""

    @asynccontextmanager
    async def run(planner: ScriptedPlanner | None = None, **changes: Any) -> AsyncIterator[Adapters]:
        chosen = planner or ScriptedPlanner()
        adapters = replace(build_adapters(temporal_client, settings), **{"planners": lambda _kind: chosen, **changes})
        async with AsyncExitStack() as stack:
            for worker in build_workers(temporal_client, settings, adapters=adapters):
                await stack.enter_async_context(worker)
            yield adapters

    return run


def scripted(*steps: dict[str, Any], repeat: bool = True) -> ExecutorChoice:
    """The scripted executor with these steps, one an iteration."""
    return ExecutorChoice(name="scripted", options={"steps": list(steps), "repeat": repeat})


APPEND = {"append": [{"path": "log.txt", "text": "{n}\n"}]}
"""A step that leaves one line an iteration, so that a second delivery would be seen."""


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


async def eventually(what: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """Wait until an async condition holds and return its value; it must within the time."""
    async with asyncio.timeout(seconds):
        while True:
            value = await what()
            if value:
                return value
            await asyncio.sleep(0.05)
