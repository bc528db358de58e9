"""The loop writes and reads the memory, and whatever is wrong with its database costs nothing but the memory."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from tests.support.episodes import APPEND, Working, eventually, scripted
from tests.support.postgres import kill_server, new_database, postgres_server, tablespace
from tightloop.client import TightloopClient
from tightloop.database.engine import postgres_database, sqlite_database
from tightloop.database.ledger import local_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import FILE, open_memory
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest, EpisodeResult
from tightloop.host import state_folder
from tightloop.memory import Kind
from tightloop.settings import Settings

Ask = Callable[..., EpisodeRequest]
TELLS = "echo \"ValueError: 'log.txt' is too short\"; test $(cat log.txt 2>/dev/null | wc -l) -ge 3"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state home of this test's own."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TIGHTLOOP_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as address:
        yield address


def with_url(settings: Settings, address: str) -> Settings:
    return settings.evolve(database=settings.database.evolve(url=SecretStr(address)))


def hits(home: Path) -> list[float]:
    """Return for each plan whether the memory had something for it, in their order."""
    with local_database(home).reading() as connection:
        query = "SELECT value FROM metrics WHERE kind = 'memory_hit' ORDER BY at"
        return [float(value) for value in connection.execute(text(query)).scalars()]


async def ended(client: TightloopClient, request: EpisodeRequest) -> tuple[EpisodeResult, list[str]]:
    """Run an episode; return its result and what its timeline says of the memory."""
    episode = await client.start(request)
    result = await client.result(episode)
    return result, [line.text for line in await client.timeline(episode) if line.kind == "memory"]


async def test_episode_leaves_its_failures_and_what_solved_them(
    client, working: Working, request_for: Ask, workspace: Path, home: Path, settings: Settings
) -> None:
    async with working():
        result, told = await ended(client, request_for(definition_of_done=[TELLS]))
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert told == []
    memory, project = open_memory(settings, None), state_folder(workspace).name
    [failure] = memory.entries(project, Kind.FAILURE)
    assert (failure.type, failure.text) == ("ValueError", "ValueError: 'log.txt' is too short")
    assert failure.times == result.iterations
    found = memory.show(project, failure.id)
    [solution] = found.related
    pattern = memory.show(project, solution.id).pattern
    assert pattern is not None
    assert "log.txt" in pattern.code_template
    # Only the plan after which the check passed.
    assert pattern.iteration == result.iterations
    assert hits(home) == [0.0] * result.iterations


async def test_next_episode_is_briefed_and_what_it_was_shown_is_judged(
    client, working: Working, request_for: Ask, workspace: Path, home: Path, settings: Settings
) -> None:
    async with working():
        first, _ = await ended(client, request_for(definition_of_done=[TELLS]))
        (workspace / "log.txt").unlink()
        again, _ = await ended(client, request_for(definition_of_done=[TELLS]))
    assert hits(home) == [*[0.0] * first.iterations, *[1.0] * again.iterations]


async def test_project_without_a_memory_has_none(
    client, working: Working, request_for: Ask, home: Path, settings: Settings
) -> None:
    off = settings.evolve(memory=settings.memory.evolve(enabled=False))
    async with working(under=off):
        result, told = await ended(client, request_for())
    assert (result.outcome, told) == (EpisodeOutcome.SUCCEEDED, [])
    assert not (home / FILE).exists()


async def test_killed_server_costs_nothing_but_the_memory(
    client, working: Working, request_for: Ask, home: Path, settings: Settings, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    hold = f"test $(wc -l < log.txt) -lt 2 || until test -e {go}; do sleep 0.05; done"
    waits = {**APPEND, "run": ["sh", "-c", hold]}
    with postgres_server() as address:
        async with working(under=with_url(settings, address)):
            episode = await client.start(request_for(executor=scripted(waits)))

            async def halfway() -> bool:
                return (await client.status(episode)).iteration == 2

            await eventually(halfway)
            kill_server(address)
            go.touch()
            result = await client.result(episode)
            told = [line.text for line in await client.timeline(episode) if line.kind == "memory"]
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 3)
    [said] = told
    assert "cannot use the memory: the database postgresql://" in said
    assert "is not responding" in said


@pytest.mark.parametrize("state", ["missing", "newer", "older"])
async def test_server_in_a_wrong_state_costs_nothing_but_the_memory(
    client, working: Working, request_for: Ask, home: Path, settings: Settings, server: str, state: str
) -> None:
    expected = {
        "missing": "is not responding",
        "newer": "was written by a newer version of tightloop. Upgrade this worker",
        "older": "Upgrade the database with: tightloop ledger upgrade",
    }
    with new_database(server) as address:
        database = postgres_database(address, MEMORY)
        database.upgrade()
        with database.writing() as connection:
            version = {"newer": "v9999_later", "older": "v0001_memory"}.get(state, MEMORY.head)
            connection.execute(text("UPDATE memory_version SET version_num = :version"), {"version": version})
        database.close()
        where = address.replace("/test_", "/gone_") if state == "missing" else address
        async with working(under=with_url(settings, where)):
            result, told = await ended(client, request_for())
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 3)
    [said] = told
    assert expected[state] in said


async def test_full_disk_of_a_server_costs_nothing_but_the_memory(
    client, working: Working, request_for: Ask, home: Path, settings: Settings, server: str
) -> None:
    # Not below the folders of the tests, which the user of the server may not enter.
    disk = Path(tempfile.mkdtemp(prefix="tl-disk-")) / "disk"
    disk.parent.chmod(0o711)
    with _small_disk(disk, "24m"), tablespace(server, disk) as space, new_database(server) as address:
        database = postgres_database(address, MEMORY)
        database.upgrade()
        database.close()
        with psycopg.connect(server, autocommit=True) as connection:
            name = address.partition("?")[0].rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} SET TABLESPACE {space}")
        _fill(disk)
        async with working(under=with_url(settings, address)):
            result, told = await ended(client, request_for())
    disk.rmdir()
    disk.parent.rmdir()
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 3)
    [said] = told
    assert "Free up space on it" in said


@pytest.mark.parametrize("state", ["damaged", "newer", "full"])
async def test_file_in_a_wrong_state_costs_nothing_but_the_memory(
    client, working: Working, request_for: Ask, home: Path, settings: Settings, tmp_path: Path, state: str
) -> None:
    expected = {
        "damaged": "is damaged",
        "newer": "Upgrade this worker",
        "full": "Free up space on it",
    }
    with _prepared(home / FILE, tmp_path / "disk", state):
        async with working():
            result, told = await ended(client, request_for())
    assert (result.outcome, result.iterations) == (EpisodeOutcome.SUCCEEDED, 3)
    [said] = told
    assert expected[state] in said


@contextmanager
def _prepared(file: Path, disk: Path, state: str) -> Iterator[None]:
    if state == "damaged":
        file.write_bytes(b"not a database " * 1_000)
        yield
        return
    if state == "newer":
        database = sqlite_database(file, MEMORY)
        with database.writing() as connection:
            connection.execute(text("UPDATE memory_version SET version_num = 'v9999_later'"))
        database.close()
        yield
        return
    with _small_disk(disk):
        file.symlink_to(disk / FILE)
        database = sqlite_database(disk / FILE, MEMORY)
        database.upgrade()
        database.close()
        _fill(disk)
        yield


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb") as filler:
        free = os.statvfs(disk)
        filler.write(b"\0" * (free.f_bavail * free.f_frsize))


@contextmanager
def _small_disk(folder: Path, size: str = "1m") -> Iterator[None]:
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(("umount", "-l", str(folder)), capture_output=True, check=False)
