"""Somebody forgot to copy the key file: each command says so before it sends anything, and makes no key of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import asked, eventually
from tests.support.stack.stack import ROOT
from tests.support.temporal_server import own_client, own_server
from tightloop.client import TightloopClient
from tightloop.client.encryption import data_converter
from tightloop.client.keys import new_ring, read_ring, write_ring
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeRequest
from tightloop.errors import SettingsError
from tightloop.settings import Settings
from worker.build import build_adapters, build_workers

temporal, temporal_client = own_server, own_client


@dataclass(frozen=True)
class Place:
    """Workers with a key, an episode that waits for a person, and the folder of somebody without the key."""

    settings: Settings
    key: str
    episode_id: str
    elsewhere: Path

    def tightloop(self, *arguments: str) -> "asyncio.Future[subprocess.CompletedProcess[str]]":
        """The command line of the one without the key."""
        temporal = self.settings.temporal
        environment = {
            **os.environ,
            "TIGHTLOOP_HOME": str(self.elsewhere),
            "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "true",
            "TIGHTLOOP_TEMPORAL__ADDRESS": temporal.address,
            "TIGHTLOOP_TEMPORAL__TASK_QUEUE": temporal.task_queue,
        }
        command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
        return asyncio.ensure_future(
            asyncio.to_thread(
                subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
            )
        )


@pytest.fixture
async def place(
    temporal_client: Client, settings: Settings, tmp_path: Path, request_for: Callable[..., EpisodeRequest]
) -> AsyncIterator[Place]:

    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    sealing = settings.evolve(temporal=settings.temporal.evolve(authenticate=True))
    config = temporal_client.config()
    config["data_converter"] = data_converter(sealing, home)
    client = Client(**config)
    adapters = replace(build_adapters(client, sealing), planners=lambda _kind: ScriptedPlanner())
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, sealing, adapters=adapters):
            await stack.enter_async_context(worker)
        tight = TightloopClient(client, sealing)
        episode_id = await tight.start(request_for(budget=Budget(max_iterations=1)))
        await asked(tight, episode_id)
        # Lists follow a moment later.
        await eventually(lambda: _is_listed(tight, episode_id))
        yield Place(sealing, read_ring(sealing.privacy, home).current, episode_id, elsewhere)
        await tight.cancel(episode_id)
        await tight.result(episode_id)


async def _is_listed(client: TightloopClient, episode_id: str) -> bool:
    return any(row.id == episode_id and row.pause_kind for row in await client.list())


@pytest.mark.parametrize("has_key", [False, True], ids=["no key", "a key of its own"])
async def test_a_client_without_the_key_is_told_when_it_connects_and_makes_none(
    place: Place, has_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(place.elsewhere))
    file = place.elsewhere / "keys.json"
    if has_key:
        write_ring(file, new_ring())
    with pytest.raises(
        SettingsError, match=rf"encrypts with key '{place.key}', which is not one of the keys on this host.*Copy"
    ):
        await TightloopClient.connect(settings=place.settings)
    assert file.exists() is has_key


async def test_the_command_line_names_the_key_and_lists_what_it_can(place: Place) -> None:
    for command in (("start", "goal", "--done", "true"), ("status", place.episode_id), ("up",)):
        refused = await place.tightloop(*command)
        assert refused.returncode != 0, command
        said = " ".join(refused.stderr.split())
        assert f"encrypts with key '{place.key}', which is not one of the keys on this host" in said, (command, said)
    listed = await place.tightloop("list")
    assert listed.returncode == 0, listed.stderr
    assert place.episode_id in listed.stdout
    assert place.key in " ".join(listed.stderr.split())
    doctor = await place.tightloop("doctor", "--json")
    assert doctor.returncode == 1
    assert f"encrypts with key '{place.key}', which is not one of the keys on this host" in doctor.stdout
    assert "+sealed" not in doctor.stdout
    assert not (place.elsewhere / "keys.json").exists()


async def test_a_service_that_connected_before_the_workers_came_is_told_when_it_starts_something(
    place: Place, monkeypatch: pytest.MonkeyPatch, request_for: Callable[..., EpisodeRequest]
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(place.elsewhere))
    early = await TightloopClient.connect(settings=place.settings, compare_keys=False)
    with pytest.raises(SettingsError, match=f"encrypts with key '{place.key}'"):
        await early.start(request_for())
    with pytest.raises(SettingsError, match=place.key):
        await early.status(place.episode_id)
