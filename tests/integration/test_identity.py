"""Open work and projects follow the state home: another container, another path, a copy beside the original."""

import asyncio
import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from temporalio.client import Client

from tests.support.episodes import eventually
from tests.support.extent import part, some
from tests.support.postgres import new_database, postgres_server
from tests.support.state_homes import Machine, uts_problem
from tightloop.cli.main import app
from tightloop.client import TightloopClient
from tightloop.database.engine import postgres_database
from tightloop.database.ledger import Ledger
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.settings import Settings

pytestmark = [pytest.mark.skipif(bool(uts_problem()), reason=uts_problem()), pytest.mark.timeout(600)]


@pytest.fixture
def machine(settings: Settings, tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    """Make machines by name; their workers end with the test."""
    file, made = tmp_path / "settings.yaml", list[Machine]()
    file.write_text(settings.as_yaml())

    def make(name: str, **variables: str) -> Machine:
        made.append(Machine(name, file, variables))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def client(temporal_client: Client, settings: Settings) -> TightloopClient:
    """A client of another machine: it has no state home."""
    return TightloopClient(temporal_client, settings)


def waits(workspace: Path, goal: str = "have an app") -> EpisodeRequest:
    """An episode that is green at once where its workspace has an app."""
    return EpisodeRequest.model_validate(
        {"goal": goal, "workspace": str(workspace), "definition_of_done": ["test -s app.py"]}
    )


def queue(settings: Settings, name: str) -> str:
    return f"{settings.temporal.task_queue}-workspace-{name}"


def read_name(home: Path) -> str:
    return str(json.loads((home / "host.json").read_text())["name"])


async def run_cli(client: TightloopClient, *arguments: str) -> Result:
    address = client._calls.client.service_client.config.target_host
    return await asyncio.to_thread(CliRunner().invoke, app, ["--address", address, *arguments])


async def doctor(client: TightloopClient) -> dict[str, Any]:
    """Return what `tightloop doctor` says of open work."""
    told = json.loads((await run_cli(client, "doctor", "--json")).stdout)
    [finding] = [row for row in told if row["name"] == "open work"]
    return dict(finding)


async def paused(client: TightloopClient, workspace: Path, **more: str) -> str:
    """Return an episode that was opened, and waits for a person."""
    episode_id = await client.start(waits(workspace, **more))
    await client.pause(episode_id)

    async def is_paused() -> bool:
        return (await client.status(episode_id)).status == "paused"

    await eventually(is_paused, seconds=60)
    return episode_id


async def openings(client: TightloopClient, episode_id: str) -> int:
    """Return how often a worker was asked to open the workspace of an episode."""
    return len(re.findall(r'"name":\s*"open_workspace"', await client.history(episode_id)))


async def goes_on(client: TightloopClient, episode_id: str) -> None:
    before = await openings(client, episode_id)
    await client.resume(episode_id)
    assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert await openings(client, episode_id) == before, "it goes on, and does not begin again"


@pytest.mark.parametrize("host", some(["compose", ""], 1))
async def test_containers_made_again_five_times_have_one_project_and_go_on_with_their_episodes(
    machine: Callable[..., Machine], client: TightloopClient, workspace: Path, tmp_path: Path, host: str
) -> None:
    (workspace / "app.py").write_text("print(1)\n")
    with postgres_server() as server, new_database(server) as address:
        given = {"TIGHTLOOP_DATABASE__URL": address, "TIGHTLOOP_WORKER__HOST": host}
        shared, volume, episodes = postgres_database(address), tmp_path / "volume", []
        for number in range(part(3, of=7)):
            container = machine(f"container-{number}", **given)
            await container.serve(volume)
            assert "may be dead" not in container.log.read_text()
            if episodes:
                await goes_on(client, episodes[-1])
            episodes.append(await paused(client, workspace))
            # Half of them are killed: Temporal then lists their workers for a while.
            container.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
        [project] = Ledger(shared).projects()
        assert project.host == (host or read_name(volume))
        seen = Ledger(shared).limit_to([project.id]).workflows().lines
        assert {line.id for line in seen} == set(episodes)
        shared.close()


@pytest.mark.parametrize("how", some(["copied", "linked"], 1))
async def test_episode_goes_on_where_its_state_home_is_put_back(
    machine: Callable[..., Machine], client: TightloopClient, workspace: Path, tmp_path: Path, how: str
) -> None:
    (workspace / "app.py").write_text("print(1)\n")
    home, other = tmp_path / "state", tmp_path / "other" / "tl"
    first = machine("first")
    await first.serve(home)
    episode_id = await paused(client, workspace)
    first.stop()
    other.parent.mkdir(mode=0o700)
    if how == "copied":
        shutil.copytree(home, other)
        shutil.rmtree(home)
    else:
        home.rename(other)
        home.symlink_to(other)
    await machine("second").serve(other if how == "copied" else home)
    await goes_on(client, episode_id)


async def test_copy_does_not_start_beside_the_original(
    machine: Callable[..., Machine], client: TightloopClient, settings: Settings, tmp_path: Path
) -> None:
    home, copy = tmp_path / "state", tmp_path / "copy"
    original, clone = machine("original"), machine("clone")
    await original.serve(home, "workspace")
    shutil.copytree(home, copy)
    clone.start(copy)
    assert await clone.ended() == 1
    name, said = read_name(home), clone.log.read_text()
    assert f"@original uses the name of this host ('{name}') with a different state home." in said
    assert "The worker has used the name since 20" in said
    assert f"To continue with this state home ({copy}), stop worker " in said
    assert ", then start this worker again." in said
    assert "TIGHTLOOP_WORKER__HOST=NAME" in said
    # With a name of its own it works beside it.
    await clone.serve(copy, "workspace", TIGHTLOOP_WORKER__HOST="clone")
    both = {queue(settings, name), queue(settings, "clone")}

    async def are_known() -> bool:
        return set((await client.topology()).homes) == both

    await eventually(are_known)


async def test_copy_goes_on_once_the_original_was_killed(
    machine: Callable[..., Machine], client: TightloopClient, settings: Settings, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "app.py").write_text("print(1)\n")
    home, copy = tmp_path / "state", tmp_path / "copy"
    original, clone = machine("original"), machine("clone")
    await original.serve(home)
    episode_id = await paused(client, workspace)

    async def is_heard() -> bool:
        return any(one.heartbeat for one in await client.pollers(queue(settings, read_name(home))))

    await eventually(is_heard, seconds=60)
    shutil.copytree(home, copy)
    # Temporal goes on listing it, and nothing in the copy shows that it is dead.
    original.stop(signal.SIGKILL)
    await clone.serve(copy)
    assert "but may be dead: waiting up to 10 s for a sign of life" in clone.log.read_text()
    await goes_on(client, episode_id)


async def test_two_copies_that_start_at_once_end_with_one(
    machine: Callable[..., Machine], client: TightloopClient, tmp_path: Path
) -> None:
    home, copy = tmp_path / "state", tmp_path / "copy"
    first, second = machine("first"), machine("second")
    await first.serve(home)
    first.stop()
    shutil.copytree(home, copy)
    first.start(home)
    second.start(copy)

    async def is_one() -> bool:
        return [each.processes[-1].poll() for each in (first, second)].count(None) == 1

    await eventually(is_one, seconds=90)


async def test_roles_of_one_state_home_share_its_name_and_refuse_another_one(
    machine: Callable[..., Machine], client: TightloopClient, tmp_path: Path
) -> None:
    home = tmp_path / "state"
    host = machine("host")
    await host.serve(home, "workspace", TIGHTLOOP_WORKER__HOST="build-1")
    await host.serve(home, "llm")
    host.start(home, "workspace", TIGHTLOOP_WORKER__HOST="build-2")
    assert await host.ended() == 1
    assert (
        "is in use by workers whose host name is 'build-1', but the host name of this worker is 'build-2'"
        in host.log.read_text()
    )


async def test_open_work_of_an_adopted_host_goes_on_here(
    machine: Callable[..., Machine],
    client: TightloopClient,
    settings: Settings,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (workspace / "app.py").write_text("print(1)\n")
    home = tmp_path / "state"
    host = machine("host")
    await host.serve(home, "workflows", TIGHTLOOP_HOME=str(tmp_path / "workflows"))
    await host.serve(home, "workspace", TIGHTLOOP_WORKER__HOST="before")
    episode_id = await paused(client, workspace)
    host.processes[-1].terminate()
    await host.ended()
    await host.serve(home, "workspace", TIGHTLOOP_WORKER__HOST="after")
    monkeypatch.setenv("TIGHTLOOP_HOME", str(home))
    monkeypatch.setenv("TIGHTLOOP_TEMPORAL__TASK_QUEUE", settings.temporal.task_queue)
    finding = await doctor(client)
    assert finding["found"] == f"no worker for 1 run on {queue(settings, 'before')} (for example {episode_id})"
    assert finding["fix"].endswith("tightloop host adopt before")
    assert finding["ok"] is False
    told = await run_cli(client, "host", "adopt", "before")
    assert "this host is after and does the work of before. Restart the workers" in told.stdout
    host.processes[-1].terminate()
    await host.ended()
    await host.serve(home, "workspace")
    assert (await doctor(client))["ok"] is True
    await goes_on(client, episode_id)
    refused = await run_cli(client, "host", "adopt", "after")
    assert (refused.exit_code, "is this host" in refused.output) == (2, True)
