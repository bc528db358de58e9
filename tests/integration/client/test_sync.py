"""The client without `await`: scripts, threads of a web framework, and processes that fork."""

import asyncio
import gc
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.episodes import Working
from tightloop.client import TightloopClient
from tightloop.client.sync import SyncTightloopClient, _blocking, _iterating
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, SettingsError
from tightloop.settings import Settings

FORK = """
import os, sys
from tightloop.client import TightloopClient
from tightloop.errors import InvalidRequestError

client = TightloopClient.sync(sys.argv[1])
client.list()
if os.fork() == 0:
    try:
        client.list()
    except InvalidRequestError as error:
        print(error.message, flush=True)
    print(len(TightloopClient.sync(sys.argv[1]).list(limit=1)) <= 1, flush=True)
    os._exit(0)
os.wait()
print(len(client.list(limit=1)) <= 1)
"""


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_it_has_every_method_of_the_other_client() -> None:
    assert methods(SyncTightloopClient) - {"close"} == methods(TightloopClient) - {"connect", "sync"}
    assert SyncTightloopClient.status.__doc__ == TightloopClient.status.__doc__


async def test_several_threads_share_one_client(settings: Settings, working: Working, request_for) -> None:
    def one(client: SyncTightloopClient, request: EpisodeRequest) -> tuple[EpisodeOutcome | object, int]:
        episode_id = client.start(request)
        seen = list(client.watch(episode_id, poll=timedelta(milliseconds=50)))
        assert seen[-1].status == "succeeded"
        return client.result(episode_id, timeout=timedelta(seconds=60)).outcome, len(seen)

    def script() -> None:
        with TightloopClient.sync(settings=settings) as client, ThreadPoolExecutor(4) as threads:
            requests = [request_for(worktree=True) for _ in range(4)]
            ended = list(threads.map(lambda request: one(client, request), requests))
            assert [outcome for outcome, _ in ended] == [EpisodeOutcome.SUCCEEDED] * 4
            with pytest.raises(EpisodeNotFoundError):
                client.status("nothing-has-this-id")
        with pytest.raises(InvalidRequestError, match="this client is closed"):
            client.list()

    async with working():
        await asyncio.to_thread(script)


async def test_a_wait_can_be_bounded_and_left(settings: Settings, request_for) -> None:
    def script() -> None:
        with TightloopClient.sync(settings=settings) as client, ThreadPoolExecutor(1) as threads:
            episode_id = client.start(request_for())
            with pytest.raises(TimeoutError):
                client.result(episode_id, timeout=timedelta(seconds=0.3))
            waits = threads.submit(client.result, episode_id)
            with pytest.raises(TimeoutError):
                waits.result(0.3)
            client.close()
            with pytest.raises(InvalidRequestError, match="closed while it was waiting"):
                waits.result(10)

    await asyncio.to_thread(script)


class Counting:
    """A client without a server."""

    async def once(self) -> int:
        await asyncio.sleep(0)
        return 1

    async def ever(self) -> AsyncGenerator[int]:
        number = 0
        while True:
            await asyncio.sleep(0.001)
            yield (number := number + 1)


class SyncCounting(SyncTightloopClient):
    """The same without `await`."""

    once = _blocking(Counting.once)
    ever = _iterating(Counting.ever)

    def __init__(self) -> None:
        async def connect() -> Counting:
            return Counting()

        super().__init__(connect)


async def test_calls_of_other_threads_end_with_the_client() -> None:
    def call(client: SyncCounting) -> str:
        try:
            while True:
                client.once()
        except InvalidRequestError as error:
            return error.message

    def script() -> None:
        for _ in range(5):
            client = SyncCounting()
            with ThreadPoolExecutor(6) as threads:
                calls = [threads.submit(call, client) for _ in range(4)]
                for closing in [threads.submit(client.close) for _ in range(2)]:
                    closing.result(20)
                assert all("closed" in done.result(20) for done in calls)

    await asyncio.to_thread(script)


async def test_a_client_is_closed_while_its_values_are_read() -> None:
    def script() -> None:
        with SyncCounting() as client:
            values = client.ever()
            assert next(values) == 1
        # Where it is not refused in silence, the warning of the interpreter fails the test.
        del values
        gc.collect()

    await asyncio.to_thread(script)


async def test_an_event_loop_is_not_blocked(settings: Settings) -> None:
    with pytest.raises(InvalidRequestError, match="this client would block"):
        TightloopClient.sync(settings=settings)


async def test_a_failed_connection_leaves_no_thread(settings: Settings) -> None:
    def script() -> None:
        with pytest.raises(SettingsError, match="no namespace 'nowhere'"):
            TightloopClient.sync(settings=settings, namespace="nowhere")

    await asyncio.to_thread(script)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_after_a_fork_it_says_what_to_do_instead_of_hanging(settings: Settings, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORK)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), settings.temporal.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told, in_child, in_parent = done.stdout.splitlines()
    assert "which was forked from it" in told
    assert "gunicorn's post_fork" in told
    assert (in_child, in_parent) == ("True", "True")
