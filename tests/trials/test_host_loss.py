"""A host is killed and its folders are deleted in the middle of episodes; another one ends them."""

import asyncio
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from activities.artifacts.local import open_local_store
from activities.executor.sqlite_outbox import open_sqlite_outbox
from activities.remote.copies import Copies
from activities.remote.s3 import S3Bucket
from activities.remote.sealed import SealedBucket
from activities.workspace.scope import EpisodeScope
from activities.workspace.store.objects import TreeStore
from activities.workspace.store.transfer import PackedTrees
from tests.support.bucket import s3_server
from tests.support.episodes import Git, eventually, scripted
from tests.support.model_server import ModelServer, says
from tests.support.stack.stack import Stack, wait_for_port
from tightloop.client import TightloopClient
from tightloop.client.encryption import data_converter
from tightloop.client.sealing import SealingCodec
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import FencedError, InvalidRequestError
from tightloop.host import state_folder
from tightloop.settings import RemoteSettings

EPISODES = int(os.environ.get("TIGHTLOOP_TEST_HOST_LOSS_EPISODES", "2"))
LINES = 15
PLAN = {
    "diagnosis": "there are too few lines",
    "action_items": ["append a line"],
    "steps": [{"title": "append a line", "run": None}],
    "scope": ["log.txt", "data"],
    "context": "",
    "claims_done": False,
    "gave_up": False,
    "reason": "",
    "alignment": {"answer": "yes", "rationale": "adds a line"},
}
STEP = {
    "append": [{"path": "log.txt", "text": "{n}\n"}],
    "run": ["sh", "-c", "mkdir -p data/{n} && head -c 5000 /dev/urandom > data/{n}/bytes && chmod +x data/{n}/bytes"],
    "sleep": 0.5,
}


def request(workspace: Path) -> EpisodeRequest:
    return EpisodeRequest(
        goal="write lines",
        workspace=str(workspace),
        planner="openai",
        definition_of_done=[f"test $(wc -l < log.txt) -ge {LINES}"],  # type: ignore[list-item]
        executor=scripted(STEP),
        budget=Budget(max_iterations=None, warn_at_iteration=None, max_executor_failures=None),
        repeat_error_limit=10_000,
        deviation_limit=10_000,
    )


def host(folder: Path, name: str, model: ModelServer, remote: RemoteSettings, **more: str) -> Stack:
    """A host with a state home of its own; the keys are those of the installation."""
    return Stack(
        folder / name,
        {
            "OPENAI_API_KEY": "test",
            "TIGHTLOOP_PLANNER__BASE_URL": model.url,
            "TIGHTLOOP_PRIVACY__KEYS_FILE": str(folder / "keys.json"),
            "TIGHTLOOP_WORKER__HOST": name,
            "TIGHTLOOP_REMOTE__BUCKET": remote.bucket,
            "TIGHTLOOP_REMOTE__ENDPOINT": remote.endpoint,
            "TIGHTLOOP_REMOTE__ACCESS_KEY": remote.access_key,
            "TIGHTLOOP_REMOTE__SECRET_KEY": remote.secret_key.get_secret_value(),
            **more,
        },
    )


def files_of(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    found = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts)
    return {
        os.fsencode(path.relative_to(folder)): (
            0o100755 if path.stat().st_mode & 0o100 else 0o100644,
            path.read_bytes(),
        )
        for path in found
    }


def files_in(store: TreeStore, tree: str) -> dict[bytes, tuple[int, bytes]]:
    return {path: (entry.mode, store.read(entry.id)) for path, entry in store.files(tree).items()}


async def is_under_way(client: TightloopClient, episode_id: str) -> bool:
    status = await client.status(episode_id)
    assert status.status == "running", (status.status, status.questions, status.reason)
    return status.iteration >= 3 and status.phase.value == "EXECUTING"


async def is_open(client: TightloopClient, episode_id: str) -> bool:
    return (await client.status(episode_id)).iteration > 0


@pytest.mark.timeout(600)
async def test_episodes_of_a_lost_host_end_on_another_one(
    tmp_path: Path, workspace: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(stack: Stack) -> None:
        monkeypatch.setenv("TIGHTLOOP_HOME", stack.environment["TIGHTLOOP_HOME"])

    with (
        ModelServer(says(PLAN)) as model,
        s3_server() as remote,
        host(tmp_path, "first", model, remote) as first,
    ):
        address = first.environment["TIGHTLOOP_TEMPORAL__ADDRESS"]
        with host(tmp_path, "second", model, remote, TIGHTLOOP_TEMPORAL__ADDRESS=address) as second:
            first.start_server()
            wait_for_port(address)
            first.start_worker()
            client = await TightloopClient.connect(settings=first.settings, compare_keys=False)
            await eventually(lambda: _homes(client, 1), seconds=60)
            here = [tmp_path / "first" / f"project-{n}" for n in range(EPISODES)]
            there = [tmp_path / "second" / f"project-{n}" for n in range(EPISODES)]
            for folder in here:
                shutil.copytree(workspace, folder)
            ids = [await client.start(request(folder)) for folder in here]
            # Both see the same disk: whoever opens an episode has its workspace.
            for each in ids:
                await eventually(lambda each=each: is_open(client, each), seconds=60)
            second.start_worker()
            homes = await eventually(lambda: _homes(client, 2), seconds=60)
            for each in ids:
                await eventually(lambda each=each: is_under_way(client, each), seconds=90)
            lost = next(home for home in homes if "-first-" in home)

            first.kill_worker()
            shutil.copytree(tmp_path / "first", tmp_path / "kept", symlinks=True, ignore=_sockets)
            shutil.rmtree(tmp_path / "first" / "state")
            for folder in here:
                shutil.rmtree(folder)
            began = time.monotonic()
            for each, folder in zip(ids, there, strict=True):
                await client.pause(each, "look at the files")
                await client.move(each, "second", workspace=str(folder))
            with pytest.raises(InvalidRequestError, match="no worker for workspaces runs on 'third'"):
                await client.move(ids[0], "third")

            for each, old, new in zip(ids, here, there, strict=True):
                status = await eventually(lambda each=each: _paused(client, each), seconds=90)
                at(first)
                store = TreeStore(tmp_path / "kept" / "state" / "projects" / state_folder(old).name / "trees")
                assert files_of(new) == files_in(store, status.tree), "the hand-over is not byte for byte"
                assert status.iteration >= 3
            print(f"{EPISODES} episodes handed over in {time.monotonic() - began:.1f} s")
            first.start_worker()  # the lost one comes back, empty, and nothing is asked of it
            for each in ids:
                await client.resume(each)
            for each, old, new in zip(ids, here, there, strict=True):
                result = await asyncio.wait_for(client.result(each), 120)
                assert result.outcome is EpisodeOutcome.SUCCEEDED
                lines = Counter((new / "log.txt").read_text().split())
                assert max(lines.values()) == 1, f"an iteration took effect more than once: {lines}"
                at(second)
                delivered = {delivery.key for delivery in open_sqlite_outbox(new).deliveries(each)}
                shutil.copytree(tmp_path / "kept" / "state", tmp_path / "again", dirs_exist_ok=True)
                at(first)
                name = state_folder(old).name
                monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "again"))
                assert state_folder(old).name == name
                before = {delivery.key for delivery in open_sqlite_outbox(old).deliveries(each)}
                assert before
                assert delivered
                assert not before & delivered, "a delivery was made on both hosts"
                fenced(first, lost, each, old)


def fenced(first: Stack, home: str, episode_id: str, workspace: Path) -> None:
    """The lost host may do nothing more under its old epoch."""
    codec = data_converter(first.settings).payload_codec
    assert isinstance(codec, SealingCodec)
    copies = Copies(SealedBucket(S3Bucket(first.settings.remote), codec.keys), home, PackedTrees(), open_local_store)
    scope = EpisodeScope(episode_id=episode_id, workspace=str(workspace), epoch=1)
    with pytest.raises(FencedError, match="with epoch 2"):
        copies.check(scope)


async def _homes(client: TightloopClient, count: int) -> tuple[str, ...]:
    homes = (await client.topology()).homes
    return homes if len(homes) >= count else ()


async def _paused(client: TightloopClient, episode_id: str):
    status = await client.status(episode_id)
    return status if status.status == "paused" and status.branch > 1 else None


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]
