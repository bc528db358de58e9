"""`tightloop gc` frees plans, too, can be killed at any moment, and works beside workers."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.artifacts.port import file_stem
from activities.artifacts.stores import LocalArtifactStore
from activities.executor.agent.program import agent_home
from activities.executor.agent.record import run_folder
from activities.plan.children import Worktrees, child_scope
from activities.plan.requests import PlanScope
from activities.tracking.retention import CollectionResult, KnownWorkflow, collect
from activities.workspace.store.objects import TreeStore
from tests.support.episodes import Git, Working, eventually
from tests.support.extent import part
from tests.support.ledger import backdate
from tests.support.temporal_server import own_client, own_server
from tightloop.client import TightloopClient
from tightloop.database.ledger import close_ledgers, open_state
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome
from tightloop.host import state_folder, state_home
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.settings import Settings
from tightloop.value import PACKED
from worker.connect import known_workflows
from worker.retention import merged_runs

temporal, temporal_client = own_server, own_client

DAY = timedelta(days=1)
OLD = timedelta(days=40)
KEPT_FOR = timedelta(days=30)
BRANCH = """
id: tried
steps:
  - {id: note, shell: {run: "echo noted"}}
  - id: way
    needs: [note]
    branch:
      alternatives:
        - {name: a, steps: [{id: s, shell: {run: "echo a > a.txt"}}]}
        - {name: b, steps: [{id: s, shell: {run: "exit 1"}}]}
      checks: ["test -e a.txt"]
"""
KILLED = """
import json, os, signal, sys, threading
from datetime import datetime, timedelta
from pathlib import Path
from activities.tracking.retention import KnownWorkflow, collect

MOMENTS = {"os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "sqlite3.connect", "subprocess.Popen"}
folder, ids, stop, delay = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
seen = 0


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def count(event, _):
    global seen
    if event in MOMENTS:
        seen += 1
        if seen == stop:
            threading.Timer(delay, end).start() if delay else end()


known = {
    key: KnownWorkflow(key, datetime.fromisoformat(began), datetime.fromisoformat(ended) if ended else None)
    for key, (began, ended) in ids.items()
}
sys.addaudithook(count)
collect(folder, known, older_than=timedelta(days=30), dry_run=False)
print(seen)
"""


def aged(folder: Path, *keys: str, by: timedelta = OLD) -> None:
    """Let everything of a project look as old as that, and some episodes as if they had done nothing since."""
    then = datetime.now(UTC) - by
    for path in folder.rglob("*"):
        if not path.is_symlink() and "worktrees" not in path.parts:
            os.utime(path, (then.timestamp(), then.timestamp()))
    with closing(sqlite3.connect(folder / "artifacts" / PACKED)) as artifacts, artifacts:
        artifacts.execute("UPDATE artifact SET stored = ?", (then.timestamp(),))
    for key in keys:
        backdate(folder.parent.parent, key, then)
        if (folder / "outbox.db").exists():
            with closing(sqlite3.connect(folder / "outbox.db")) as outbox, outbox:
                outbox.execute("UPDATE delivery SET queued_at = ? WHERE episode_id = ?", (then.timestamp(), key))


def closed(*keys: str) -> dict[str, KnownWorkflow]:
    then = datetime.now(UTC) - OLD
    return {key: KnownWorkflow(key, then - DAY, then) for key in keys}


async def test_a_closed_plan_is_freed_with_its_worktrees_and_a_kept_one_stays(
    client: TightloopClient, temporal_client, working: Working, workspace: Path, git: Git
) -> None:
    folder = state_folder(workspace)
    async with working() as adapters:
        old = await client.start(PlanRequest(workspace=str(workspace), source=BRANCH))
        assert (await client.result(old)).outcome is PlanOutcome.COMPLETED
        kept = await client.start(PlanRequest(workspace=str(workspace), source=BRANCH.replace("noted", "kept")))
        assert (await client.result(kept)).outcome is PlanOutcome.COMPLETED
        ids = [key for key in merged_runs(await known_workflows(temporal_client)) if key.startswith((old, kept))]
        alternative = next(key for key in ids if key.startswith(old) and key.endswith(".a"))
        # As a worker leaves it that was killed while the alternatives were judged.
        scope = PlanScope(episode_id=old, workspace=str(workspace))
        with Worktrees(adapters.workspaces).open_worktree(child_scope(scope, alternative), references(folder)[0][1]):
            pass
    assert len(git(workspace, "worktree", "list").splitlines()) == 2
    gone = [key for key in ids if key.startswith(old)]
    aged(folder, *gone)
    known = closed(*gone)
    for key in set(ids) - set(gone):
        known[key] = KnownWorkflow(key, datetime.now(UTC) - DAY, datetime.now(UTC))
    there = {path.name for path in (folder / "plans").iterdir()}
    planned = collect(folder, known, older_than=KEPT_FOR, dry_run=True)
    assert {path.name for path in (folder / "plans").iterdir()} == there
    freed = collect(folder, known, older_than=KEPT_FOR, dry_run=False)
    assert freed == planned
    assert set(freed.episodes) == set(gone)
    assert freed.size_bytes > 0
    assert {path.name for path in (folder / "plans").iterdir()} == {name for name in there if name.startswith(kept)}
    assert not list((folder / "worktrees").glob("*"))
    assert len(git(workspace, "worktree", "list").splitlines()) == 1
    assert [path.name for path in (folder / "claims").glob("*.json")] == []
    named = named_in([json.loads(path.read_text()) for path in (folder / "plans" / kept).rglob("*.json")])
    assert len(named) >= 3
    assert named <= LocalArtifactStore(folder / "artifacts").all().keys()
    again = collect(folder, known, older_than=KEPT_FOR, dry_run=False)
    assert again == CollectionResult(folder.name)


def named_in(value: object) -> set[str]:
    """Return the digests of the artifacts that a document names."""
    if isinstance(value, dict):
        own = {str(value["sha256"])} if {"sha256", "size_bytes"} <= value.keys() else set()
        return own.union(*(named_in(part) for part in value.values()))
    return set[str]().union(*(named_in(part) for part in value)) if isinstance(value, list) else set()


def references(folder: Path) -> list[tuple[str, str]]:
    """Return the episode and the tree of each reference."""
    done = subprocess.run(
        ["git", "--git-dir", str(folder / "trees"), "for-each-ref", "--format=%(refname) %(objectname)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [(line.split("/")[2], line.split()[1]) for line in done.stdout.splitlines()]


@pytest.mark.timeout(400)
async def test_a_collection_killed_at_any_moment_loses_nothing_and_the_next_one_ends_it(
    client: TightloopClient, working: Working, request_for, workspace: Path, tmp_path: Path
) -> None:
    folder = state_folder(workspace)

    async def waits(key: str) -> bool:
        return bool((await client.status(key)).questions)

    async with working():
        old = await client.start(request_for())
        assert (await client.result(old)).outcome is EpisodeOutcome.SUCCEEDED
        kept = await client.start(
            request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=3), pause_after=9)
        )
        await eventually(lambda: waits(kept))
        await client.cancel(kept)
        await client.result(kept)
    aged(folder, old)
    for key in delivered(folder, old):
        run_folder(folder, key).mkdir(parents=True)
        (run_folder(folder, key) / "events.jsonl").write_text("{}")
    (agent_home(state_home() / "homes", old, "codex") / "session.jsonl").write_text("{}")
    known = closed(old) | {kept: KnownWorkflow(kept, datetime.now(UTC) - DAY, None)}
    planned = collect(folder, known, older_than=KEPT_FOR, dry_run=True)
    assert planned.episodes == (old,)
    assert {path.parent.name for path in planned.files} == {"runs", "homes"}
    needed = contents(folder, kept)
    close_ledgers()
    ids = {key: (each.started.isoformat(), each.closed and each.closed.isoformat()) for key, each in known.items()}

    def collected(number: int, stop: int, delay: float = 0) -> tuple[Path, subprocess.CompletedProcess[str]]:
        home = tmp_path / f"copy-{number}"
        copy = home / "projects" / folder.name
        shutil.copytree(folder, copy, symlinks=True)
        shutil.copy(state_home() / "ledger.db", home)
        shutil.copytree(state_home() / "homes" / file_stem(old), home / "homes" / file_stem(old))
        command = [sys.executable, "-c", KILLED, str(copy), json.dumps(ids), str(stop), str(delay)]
        return copy, subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())

    copy, done = collected(0, 0)
    moments = int(done.stdout)
    assert (done.returncode, {key for key, _ in references(copy)}) == (0, {kept})
    whole = set(LocalArtifactStore(copy / "artifacts").all())
    chosen = [(number, 0.0) for number in range(1, moments + 1, max(1, moments // part(5, of=14)))]
    chosen += [(number, 0.004) for number in range(3, moments + 1, max(1, moments // part(3, of=6)))]
    for number, (stop, delay) in enumerate(chosen, start=1):
        copy, done = collected(number, stop, delay)
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        assert contents(copy, kept) == needed, (stop, delay)

        async def ended(copy: Path = copy) -> bool:
            # A git that outlived the one that was killed is waited for.
            return not (await asyncio.to_thread(collect, copy, known, older_than=KEPT_FOR, dry_run=False)).busy

        await eventually(ended)
        assert contents(copy, kept) == needed, (stop, delay)
        assert set(LocalArtifactStore(copy / "artifacts").all()) == whole
        check_freed(copy, old, kept)
        shutil.rmtree(copy)


def check_freed(folder: Path, old: str, kept: str) -> None:
    """Assert that nothing is left of the old episode, nor of a collection."""
    assert {key for key, _ in references(folder)} == {kept}
    assert not [path for path in folder.rglob("*") if path.name.startswith((".freed", "tmp_", ".tmp", ".new"))]
    assert not list((folder / "runs").glob("*"))
    assert not (folder.parent.parent / "homes" / file_stem(old)).exists()
    assert open_state(folder).checkpoints(old) == ()


def delivered(folder: Path, episode_id: str) -> list[str]:
    with closing(sqlite3.connect(folder / "outbox.db")) as outbox:
        rows = outbox.execute("SELECT key FROM delivery WHERE episode_id = ?", (episode_id,)).fetchall()
    return [key for (key,) in rows]


def contents(folder: Path, episode_id: str) -> dict[str, dict[str, bytes]]:
    """Return every byte that a restore to each checkpoint of an episode needs."""
    store, artifacts = TreeStore(folder / "trees"), LocalArtifactStore(folder / "artifacts")
    found: dict[str, dict[str, bytes]] = {}
    for record in open_state(folder).checkpoints(episode_id):
        assert record.state is not None
        state = artifacts.get(record.state)
        parts = {os.fsdecode(path): store.read(entry.id) for path, entry in store.files(record.tree).items()}
        named = named_in(json.loads(state))
        parts |= {digest: artifacts.find(digest) or b"missing" for digest in named}
        found[record.id] = parts
    assert found
    assert b"missing" not in {part for parts in found.values() for part in parts.values()}
    return found


async def test_collections_beside_running_episodes_take_nothing_from_them(
    client: TightloopClient, temporal_client, working: Working, request_for, workspace: Path
) -> None:
    folder = state_folder(workspace)
    ended, last = asyncio.Event(), ""

    async def waits() -> bool:
        return bool((await client.status(last)).questions)

    found: list[CollectionResult] = []

    async def collecting() -> None:
        while not ended.is_set():
            asked = datetime.now(UTC)
            known = merged_runs(await known_workflows(temporal_client))
            found.append(
                await asyncio.to_thread(collect, folder, known, older_than=timedelta(), dry_run=False, queried_at=asked)
            )

    async with working():
        first = await client.start(request_for())
        await client.result(first)
        aged(folder, first)
        task = asyncio.create_task(collecting())
        for _ in range(3):
            # The same files and texts as in the first one: what it left is needed again.
            last = await client.start(
                request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=3), pause_after=9)
            )
            await eventually(waits)
            assert len(contents(folder, last)) == 4
            await client.cancel(last)
            await client.result(last)
        ended.set()
        await task
        await client.restore(last, "ckpt-0")

        async def went_back() -> bool:
            return (await client.status(last)).branch == 2

        await eventually(went_back)
        await client.cancel(last)
        await client.result(last)
    # Of a step that has not ended: nothing names it yet.
    young = LocalArtifactStore(folder / "artifacts").put(b"young", name="log")
    collect(folder, {}, older_than=timedelta(), dry_run=False)
    assert LocalArtifactStore(folder / "artifacts").get(young) == b"young"
    assert len(found) > 3
    assert contents(folder, last)


@pytest.mark.parametrize(
    ("age", "told"),
    [
        ((), "ended less than 30 days ago"),
        (("--older-than", "12h"), "ended less than 12 h ago"),
        (("--older-than", "0d"), "ended less than 0 h ago"),
        (("--older-than", ""), "--older-than '' is not a valid duration. Use days or hours, for example 30d or 12h"),
    ],
)
def test_command_keeps_what_ended_later_than_it_is_told(settings: Settings, age: tuple[str, ...], told: str) -> None:
    environment = {**os.environ, "TIGHTLOOP_TEMPORAL__ADDRESS": settings.temporal.address}
    command = (sys.executable, "-m", "tightloop.cli.main", "gc", "--dry-run", *age)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert told in done.stdout + done.stderr
