"""Worker processes of several hosts on one Temporal: each has its state home and its host name."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from tests.support.episodes import eventually
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.episode.check import Check
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import SettingsError
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.core import Queues
from tightloop.settings import Settings

READY_SECONDS = 60
STOP_SECONDS = 30


@dataclass
class Host:
    """A host with a state home, and the workers that run there."""

    name: str
    home: Path
    settings: Path
    stack: ExitStack

    @property
    def variables(self) -> dict[str, str]:
        """What a process on this host has in its environment."""
        own = {"TIGHTLOOP_HOME": str(self.home), "TIGHTLOOP_WORKER__HOST": self.name}
        return {**os.environ, **own, "TIGHTLOOP_WORKER__START_WAIT_S": "3"}

    @property
    def worked(self) -> bool:
        """Whether workspaces were opened here."""
        return (self.home / "projects").is_dir()

    def start(self, role: str, *, hide: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start a worker; a folder may be hidden from it, as if this host did not have it."""
        command = [sys.executable, "-m", "worker", "--settings", str(self.settings), "run", "--role", role]
        if hide is not None:
            command = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(hide), "--die-with-parent", *command]
        with self.log(role).open("wb") as log:
            process = subprocess.Popen(command, env=self.variables, stdout=log, stderr=log, start_new_session=True)
        self.stack.callback(_end, process)
        return process

    async def serve(self, role: str, *, hide: Path | None = None) -> None:
        """Start a worker and wait until it is ready."""
        self.start(role, hide=hide)

        async def is_ready() -> bool:
            return "is ready" in self.told(role)

        await eventually(is_ready, seconds=READY_SECONDS)

    def log(self, role: str) -> Path:
        return self.home.parent / f"{self.name}-{role}.log"

    def told(self, role: str) -> str:
        """Return what a worker has logged."""
        return self.log(role).read_text()


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


Hosts = Callable[[str], Host]


@pytest.fixture
async def hosts(settings: Settings, tmp_path: Path) -> AsyncIterator[Hosts]:
    """Make hosts by name; their workers end with the test."""
    file = tmp_path / "settings.yaml"
    file.write_text(settings.as_yaml())
    with ExitStack() as stack:
        yield lambda name: Host(name, tmp_path / f"home-{name}", file, stack)


@pytest.fixture
def on(
    monkeypatch: pytest.MonkeyPatch, temporal_client: Client, settings: Settings
) -> Callable[[Host], TightloopClient]:
    """Return a client as a program on a host has it."""

    def client(host: Host) -> TightloopClient:
        monkeypatch.setenv("TIGHTLOOP_HOME", str(host.home))
        return TightloopClient(temporal_client, settings.evolve(worker=settings.worker.evolve(host=host.name)))

    return client


def steps(workspace: Path) -> PlanRequest:
    source = "id: p\nsteps: [{id: a, run: 'echo a >> a.txt'}, {id: b, needs: [a], run: 'echo b >> a.txt'}]\n"
    return PlanRequest(source=source, workspace=str(workspace))


def green(workspace: Path) -> EpisodeRequest:
    """An episode that opens, checks, proves and closes."""
    return EpisodeRequest.model_validate(
        {"goal": "have an app", "workspace": str(workspace), "definition_of_done": ["test -s app.py"]}
    )


async def test_workspaces_stay_on_the_host_that_started_them(
    hosts: Hosts, on: Callable[[Host], TightloopClient], workspace: Path
) -> None:
    mine, other = hosts("mine"), hosts("other")
    await mine.serve("all")
    await other.serve("all")
    client = on(mine)
    # Both hosts have a folder of this name: which worker takes a task is chance.
    for _ in range(4):
        plan_id = await client.start(steps(workspace))
        assert (await client.result(plan_id)).outcome is PlanOutcome.COMPLETED
        episode_id = await client.start(green(workspace))
        assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert (workspace / "a.txt").read_text() == "a\nb\n" * 4
    assert mine.worked
    assert not other.worked


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap, to hide a folder from a host")
async def test_workspace_is_opened_by_the_host_that_has_it(
    hosts: Hosts, on: Callable[[Host], TightloopClient], workspace: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    workspace = workspace.rename(disk / "project")
    without, has = hosts("without"), hosts("has")
    await without.serve("all", hide=disk)
    await has.serve("all")
    client = on(hosts("desktop"))

    async def both_are_known() -> bool:
        return len((await client.topology()).homes) == 2

    await eventually(both_are_known)
    for _ in range(4):
        plan_id = await client.start(steps(workspace))
        assert (await client.result(plan_id)).outcome is PlanOutcome.COMPLETED
        episode_id = await client.start(green(workspace))
        assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert has.worked
    assert not without.worked


async def test_roles_on_hosts_of_their_own_need_no_queues_from_the_client(
    hosts: Hosts, on: Callable[[Host], TightloopClient], workspace: Path
) -> None:
    front, back = hosts("front"), hosts("back")
    await front.serve("workflows")

    async def warns() -> bool:
        return "episodes will have to wait: no workspace worker is running" in front.told("workflows")

    await eventually(warns)
    client = on(hosts("desktop"))

    async def only_workspaces_are_missing() -> bool:
        missing = (await client.topology()).missing
        return [sentence.partition(".")[0] for sentence in missing] == ["no workspace worker is running"]

    await eventually(only_workspaces_are_missing)
    await back.serve("workspace")
    episode_id = await client.start(green(workspace))
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    plan_id = await client.start(steps(workspace))
    assert (await client.result(plan_id)).outcome is PlanOutcome.COMPLETED
    assert back.worked
    assert not front.worked


@pytest.mark.parametrize("role", ["llm", "gui"])
async def test_role_that_needs_a_state_home_is_refused_without_one(hosts: Hosts, role: str) -> None:
    await hosts("mine").serve("workspace")
    lonely = hosts("lonely")
    process = lonely.start(role)
    assert await asyncio.to_thread(process.wait, READY_SECONDS) == 1
    said = lonely.told(role)
    assert f"error: role '{role}' needs a workspace worker" in said
    assert "needs a workspace worker on the same host" in said


async def test_planner_of_another_host_is_a_question_and_one_of_this_host_works(
    hosts: Hosts, on: Callable[[Host], TightloopClient], workspace: Path, settings: Settings
) -> None:
    mine, other = hosts("mine"), hosts("other")
    await mine.serve("all")
    llm = f"{settings.temporal.task_queue}-llm"
    other.settings = other.settings.with_name("with-llm.yaml")
    other.settings.write_text(settings.evolve(queues=settings.queues.evolve(llm=llm)).as_yaml())
    await other.serve("all")
    client = on(mine)
    request = green(workspace).evolve(definition_of_done=(Check(run="test -e missing"),), queues=Queues(llm=llm))
    episode_id = await client.start(request)

    async def asks() -> str:
        status = await client.status(episode_id)
        return status.questions[0].title if status.questions else ""

    title = await eventually(asks, seconds=60)
    assert f"The worker for task queue '{llm}' must run on the workspace's host" in title
    await client.cancel(episode_id)
    await client.result(episode_id)


async def test_doctor_names_the_role_that_is_missing(
    hosts: Hosts, temporal: WorkflowEnvironment, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", settings.temporal.task_queue)
    address = temporal.client.service_client.config.target_host
    front, back = hosts("front"), hosts("back")
    await front.serve("workflows")
    alone = await asyncio.to_thread(CliRunner().invoke, app, ["--address", address, "doctor", "--json"])
    await back.serve("workspace")
    # The list of workers knows it with its first heartbeat, after 2 s.
    await asyncio.sleep(4)
    both = await asyncio.to_thread(CliRunner().invoke, app, ["--address", address, "doctor", "--json"])
    found = [{row["name"]: row["ok"] for row in json.loads(done.stdout)} for done in (alone, both)]
    assert (alone.exit_code, both.exit_code) == (1, 0)
    assert found[0]["workers for workspaces"] is False
    assert (found[1]["workers for workspaces"], found[1][f"workers on {settings.temporal.task_queue}"]) == (True, True)


async def test_workers_and_clients_that_lack_the_keys_of_the_others_are_refused(
    hosts: Hosts, settings: Settings, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = settings.evolve(temporal=settings.temporal.evolve(authenticate=True))
    # Stronger than a settings file, and set for tests.
    monkeypatch.delenv("TIGHTLOOP_TEMPORAL__AUTHENTICATE")
    mine, other, plain = hosts("mine"), hosts("other"), hosts("plain")
    mine.settings.write_text(sealed.as_yaml())
    plain.settings = tmp_path / "plain.yaml"
    plain.settings.write_text(settings.as_yaml())
    await mine.serve("all")
    for host, said in ((other, "encrypts with key"), (plain, "encrypts, and both workers use task queue")):
        assert await asyncio.to_thread(host.start("all").wait, READY_SECONDS) == 1
        assert said in host.told("all")
        assert "Copy the other worker's key file" in host.told("all")

    monkeypatch.setenv("TIGHTLOOP_HOME", str(other.home))
    with pytest.raises(SettingsError, match=r"encrypts with key .* Nothing was sent, .* Copy the workers' key file"):
        await (await TightloopClient.connect(settings=sealed)).start(green(workspace))

    shutil.copy(mine.home / "keys.json", other.home / "keys.json")
    await other.serve("all")
    client = await TightloopClient.connect(settings=sealed)
    episode_id = await client.start(green(workspace))
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
