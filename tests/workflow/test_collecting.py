"""Collections by a schedule: it is set up by the worker, frees what nobody keeps, and says what it gave back."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, ScheduleOverlapPolicy
from temporalio.service import RPCError

from activities.artifacts.stores import open_local_store
from activities.retention import CollectionTotals
from tests.support.episodes import Working, eventually
from tests.support.ledger import snapshot
from tests.support.leftovers import aged, trees
from tightloop.database.ledger import open_project
from tightloop.database.memory.store import open_memory
from tightloop.host import open_state_home, state_folder
from tightloop.memory import Kind, SeenFailure
from tightloop.settings import Settings
from worker.build import Role, build_workers
from worker.connect import connect
from worker.retention import GarbageCollector, collect_now, free, keep_schedule, schedule_id, used_share, watch_disk

DAY = timedelta(days=1)
Cli = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection goes over all projects of a state home: here it is that of one test."""
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    return open_state_home(tmp_path / "home")


def collecting(settings: Settings, **changes: Any) -> Settings:
    return settings.evolve(retention=settings.retention.evolve(**{"every_h": 24.0, **changes}))


def left_behind(workspace: Path, name: str, ended: datetime) -> None:
    """Leave rows, a tree and an artifact of an episode that Temporal has forgotten."""
    folder = state_folder(workspace)
    open_project(workspace).record(snapshot(name, status="succeeded", at=ended, started=ended, closed=ended))
    open_local_store(workspace).put(f"report of {name}".encode(), name="report.md")
    git = ("git", "--git-dir", str(folder / "trees"))
    subprocess.run((*git, "init", "--quiet", "--bare"), check=True)
    stored = subprocess.run(
        (*git, "hash-object", "-w", "--stdin"), input=name.encode(), capture_output=True, check=True
    )
    blob = stored.stdout.strip()
    made = subprocess.run(
        (*git, "mktree"), input=b"100644 blob %s\tnotes.txt\n" % blob, capture_output=True, check=True
    )
    reference = f"refs/tightloop/{name}/1"
    subprocess.run((*git, "update-ref", reference, made.stdout.strip().decode()), check=True)
    aged(folder, (datetime.now(UTC) - ended).days)


async def collected(client: Client, settings: Settings) -> CollectionTotals:
    """Have the schedule collect once more and return what that gave back."""
    handle = client.get_schedule_handle(schedule_id(settings))
    before = (await handle.describe()).info.num_actions
    await collect_now(client, settings)

    async def ran() -> str:
        info = (await handle.describe()).info
        return info.recent_actions[-1].action.workflow_id if info.num_actions > before else ""

    return await client.get_workflow_handle(await eventually(ran), result_type=CollectionTotals).result()


async def test_schedule_frees_what_is_old_and_leaves_what_a_person_keeps(
    temporal_client: Client, working: Working, workspace: Path, settings: Settings, cli: Cli
) -> None:
    kept, old = "episode-kept", "episode-old"
    for one in (kept, old):
        left_behind(workspace, one, datetime.now(UTC) - 40 * DAY)
    folder = state_folder(workspace)
    code, told = await cli("keep", kept)
    assert (code, told.strip()) == (0, f"{kept} is protected from tightloop gc")
    under = collecting(settings)
    async with working(under=under):
        await keep_schedule(temporal_client, under)
        try:
            first = await collected(temporal_client, under)
            left = trees(folder)
            await cli("keep", kept, "--release")
            second = await collected(temporal_client, under)
        finally:
            await keep_schedule(temporal_client, settings)
    assert (first.workflows, first.marked, left) == (1, 1, {kept})
    assert first.size_bytes > 0
    assert (first.rows, first.trees) == (1, 1)
    assert (second.workflows, second.marked, trees(folder)) == (1, 0, set())
    code, told = await cli("keep", old)
    assert code == 1
    assert old in told
    with pytest.raises(RPCError, match="not found"):
        await temporal_client.get_schedule_handle(schedule_id(under)).describe()


async def test_a_damaged_project_does_not_keep_the_data_of_the_others(
    temporal_client: Client, workspace: Path, settings: Settings
) -> None:
    left_behind(workspace, "episode-old", datetime.now(UTC) - 40 * DAY)
    damaged = state_folder(workspace).parent / "a-damaged"
    damaged.mkdir()
    (damaged / "outbox.db").write_bytes(b"no database" * 1_000)
    broken, healthy = await free(temporal_client, settings, 30 * DAY)
    assert (broken.project, broken.episodes) == (damaged.name, ())
    assert "file is not a database" in broken.busy
    assert healthy.episodes == ("episode-old",)


async def test_second_worker_changes_the_schedule_and_leaves_a_pause(
    temporal_client: Client, settings: Settings
) -> None:
    handle = temporal_client.get_schedule_handle(schedule_id(settings))
    await keep_schedule(temporal_client, collecting(settings))
    await handle.pause(note="a person looks")
    await keep_schedule(temporal_client, collecting(settings, every_h=6.0))
    found = (await handle.describe()).schedule
    await keep_schedule(temporal_client, settings)
    assert [one.every for one in found.spec.intervals] == [timedelta(hours=6)]
    assert found.policy.overlap is ScheduleOverlapPolicy.SKIP
    assert (found.state.paused, found.state.note) == (True, "a person looks")


async def test_reached_bound_starts_a_collection_that_frees_earlier(
    temporal_client: Client,
    working: Working,
    workspace: Path,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for one in ("episode-a", "episode-b"):
        left_behind(workspace, one, datetime.now(UTC) - 3 * DAY)
    unbounded = await GarbageCollector(temporal_client, collecting(settings)).collect()
    assert (unbounded.workflows, unbounded.used_share) == (0, 0)
    under = collecting(settings, max_gb=1e-5)
    before = used_share(under.retention)
    handle = temporal_client.get_schedule_handle(schedule_id(under))

    async def result() -> CollectionTotals | None:
        if not (found := (await handle.describe()).info.recent_actions):
            return None
        return await temporal_client.get_workflow_handle(
            found[0].action.workflow_id, result_type=CollectionTotals
        ).result()

    async with working(under=under):
        await keep_schedule(temporal_client, under)
        watching = asyncio.create_task(watch_disk(temporal_client, under))
        try:
            done = await eventually(result)
        finally:
            watching.cancel()
            await keep_schedule(temporal_client, settings)
    assert done.workflows == 2
    assert done.used_share < before
    assert "uses" in caplog.text
    assert "tightloop gc --dry-run" in caplog.text


async def test_memory_forgets_failures_that_did_not_come_again(
    temporal_client: Client, settings: Settings, workspace: Path
) -> None:
    under = collecting(settings, memory_days=30)
    folder = state_folder(workspace)
    folder.mkdir(parents=True)
    memory, now = open_memory(under, None), datetime.now(UTC)
    seen = [
        SeenFailure(signature=name, line=f"{name} is not defined", at=now - age)
        for name, age in (("old", 31 * DAY), ("new", 29 * DAY))
    ]
    memory.record_failures(folder.name, seen)
    done = await GarbageCollector(temporal_client, under).collect()
    assert done.failures == 1
    assert [one.id for one in memory.entries(folder.name, Kind.FAILURE)] == ["new"]


async def test_collection_works_where_payloads_are_sealed(settings: Settings) -> None:
    sealed = collecting(settings).evolve(temporal=settings.temporal.evolve(authenticate=True))
    client = await connect(sealed)
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, sealed, Role.WORKSPACE):
            await stack.enter_async_context(worker)
        await keep_schedule(client, sealed)
        try:
            done = await collected(client, sealed)
        finally:
            await keep_schedule(client, settings)
    assert done == CollectionTotals()
