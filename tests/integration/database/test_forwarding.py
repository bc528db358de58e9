"""What a host recorded comes to the database of several hosts: all of it, once, and later where that is away."""

import asyncio
import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tests.support.ledger import START, question, snapshot
from tests.support.postgres import new_database
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.ledger import Ledger, open_project
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.errors import ServiceUnavailableError
from tightloop.ledger.model import ProjectLine, StepRow, TrailEvent
from tightloop.settings import parse_settings
from worker.ledger.stores import forwarding


@pytest.fixture
def address(postgres: str) -> Iterator[str]:
    with new_database(postgres) as found:
        yield found


@pytest.fixture
def shared(address: str) -> Iterator[Database]:
    found = postgres_database(address)
    yield found
    found.close()


@pytest.fixture
def local(tmp_path: Path) -> Database:
    return sqlite_database(tmp_path / "ledger.db")


def forward(local: Database, shared: Database, *hosts: str) -> None:
    forwarder = Forwarder(local, shared, hosts or ("a",))
    while forwarder.forward():
        pass


def work(database: Database, count: int, project: str = "orders-1", host: str = "a") -> None:
    ledger = Ledger(database).select_project(ProjectLine(id=project, name="orders", workspace="/src/orders", host=host))
    for number in range(count):
        name = f"{project}-e{number}" + ("" if host == "a" else f"-{host}")
        ledger.record(snapshot(name, number, status="paused", questions=(question(),), cost_usd=number))
        ledger.record_checkpoint(name, "k", CheckpointRecord(id="", iteration=number))
        ledger.record_steps([StepRow(plan_id=name, step="s", status="running", at=START)])
        ledger.add_event(TrailEvent(episode_id=name, kind="note", text=str(number), at=START))


def contents(database: Database) -> list[object]:
    ledger = Ledger(database)
    lines = ledger.workflows(limit=500).lines
    return [
        ledger.projects(),
        tuple(ledger.workflow(line.id) for line in lines),
        ledger.inbox(),
        [ledger.checkpoints(line.id) for line in lines],
        [ledger.steps(line.id) for line in lines],
        [line.evolve(seq=0) for line in ledger.events(limit=5_000)],
        [ledger.digest(line.id, START, START + timedelta(days=1)) for line in ledger.projects()],
    ]


def test_everything_comes_once_however_often_it_is_brought(local: Database, shared: Database) -> None:
    work(local, 150)
    forward(local, shared)
    assert contents(shared) == contents(local)
    work(local, 151)
    forward(local, shared)
    forward(local, shared)
    assert contents(shared) == contents(local)


def test_two_hosts_bring_their_projects_to_one_database(local: Database, shared: Database, tmp_path: Path) -> None:
    other = sqlite_database(tmp_path / "other.db")
    work(local, 3)
    work(other, 3, "shop-2")
    for each in (local, other, local):
        forward(each, shared)
    assert {line.id for line in Ledger(shared).projects()} == {"orders-1", "shop-2"}
    assert contents(shared)[5] == contents(local)[5] + contents(other)[5]  # type: ignore[operator]


def test_two_hosts_with_the_same_path_never_share_a_project(local: Database, shared: Database, tmp_path: Path) -> None:
    """Neither while one comes after the other, nor where the row of the project comes in a later window."""
    other = sqlite_database(tmp_path / "other.db")
    work(local, 1)
    work(other, 150, host="b")
    Ledger(other).select_project(ProjectLine(id="orders-1", name="shop", host="b")).add_event(
        TrailEvent(episode_id="x", kind="n")
    )
    forward(local, shared)
    forward(other, shared, "b")
    work(local, 2)
    forward(local, shared)
    Ledger(other).of("orders-1").free(["orders-1-e3-b"])
    forward(other, shared, "b")
    seen = Ledger(shared)
    [first, second] = sorted(seen.projects(), key=lambda line: line.host)
    assert (first.id, first.name, first.host) == ("orders-1", "orders", "a")
    assert (second.id[:9], second.name, second.host) == ("orders-1-", "shop", "b")
    mine = seen.limit_to([first.id])
    assert {line.id for line in mine.workflows(limit=500).lines} == {"orders-1-e0", "orders-1-e1"}
    theirs = {line.id for line in seen.limit_to([second.id]).workflows(limit=500).lines}
    assert theirs == {f"orders-1-e{n}-b" for n in range(150) if n != 3}
    assert seen.digest("orders-1", START, START + timedelta(days=1)).project == "orders-1"
    assert (seen.id_of("orders-1", ("a",)), seen.id_of("orders-1", ("b",))) == (first.id, second.id)
    assert Ledger(other).id_of("orders-1", ("b",)) == "orders-1", "on its host a project keeps its id"


def test_adopted_host_keeps_its_projects(local: Database, shared: Database, tmp_path: Path) -> None:
    first = sqlite_database(tmp_path / "first.db")
    work(first, 1, host="c")
    forward(first, shared, "c")
    work(local, 2)
    forward(local, shared)
    [other, known] = sorted(Ledger(shared).projects(), key=lambda line: line.id)
    assert (other.host, known.host) == ("c", "a")
    # The host is called "b" now: at first it is another one, with what comes from now on.
    forward(local, shared, "b")
    assert len(Ledger(shared).projects()) == 2
    work(local, 3, host="b")
    forward(local, shared, "b")
    assert len(Ledger(shared).projects()) == 3
    work(local, 4, host="b")
    forward(local, shared, "b", "a")
    lines = Ledger(shared).limit_to([known.id]).workflows(limit=500).lines
    assert {"orders-1-e0", "orders-1-e1", "orders-1-e3-b"} <= {line.id for line in lines}
    assert Ledger(shared).project(known.id).host == "b"
    assert Ledger(shared).id_of("orders-1", ("b", "a")) == known.id
    assert {line.id for line in Ledger(shared).limit_to([other.id]).workflows().lines} == {"orders-1-e0-c"}


def test_copy_with_a_name_of_its_own_brings_only_what_comes_from_then_on(
    local: Database, shared: Database, tmp_path: Path
) -> None:
    work(local, 2)
    forward(local, shared)
    local.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    copy = sqlite_database(tmp_path / "copy.db")
    forward(copy, shared, "copy")
    work(local, 3)
    Ledger(copy).select_project(ProjectLine(id="orders-1", name="orders", host="copy")).record(snapshot("new"))
    forward(copy, shared, "copy")
    forward(local, shared)
    [mine, theirs] = sorted(Ledger(shared).projects(), key=lambda line: line.host)
    assert {line.id for line in Ledger(shared).limit_to([mine.id]).workflows().lines} == {
        f"orders-1-e{number}" for number in range(3)
    }
    assert {line.id for line in Ledger(shared).limit_to([theirs.id]).workflows().lines} == {"new"}


def test_what_was_freed_goes_there_too_and_an_id_may_come_back(local: Database, shared: Database) -> None:
    work(local, 3)
    forward(local, shared)
    Ledger(local).of("orders-1").free(["orders-1-e0", "orders-1-e1"])
    Ledger(local).of("orders-1").record(snapshot("orders-1-e1", 99, goal="again"))
    forward(local, shared)
    assert contents(shared) == contents(local)
    assert Ledger(shared).workflow("orders-1-e1").goal == "again"


def test_a_ledger_that_was_made_anew_or_restored_is_brought_again(
    local: Database, shared: Database, tmp_path: Path
) -> None:
    work(local, 2)
    forward(local, shared)
    anew = sqlite_database(tmp_path / "anew.db")
    work(anew, 3)
    forward(anew, shared)
    seen = contents(shared)
    forward(anew, shared)
    assert contents(shared) == seen
    assert [line.id for line in Ledger(shared).workflows().lines] == [f"orders-1-e{n}" for n in (2, 1, 0)]


def test_a_database_that_is_away_is_named(local: Database) -> None:
    work(local, 1)
    with pytest.raises(ServiceUnavailableError, match="is not responding"):
        forward(local, postgres_database("postgresql://nobody@127.0.0.1:9/ledger"))


async def eventually(condition: object, seconds: float = 60) -> None:
    for _ in range(int(seconds * 10)):
        if await asyncio.to_thread(condition):  # type: ignore[arg-type]
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come to that")


async def test_a_worker_warns_once_while_the_database_is_at_another_migration_and_catches_up(
    address: str, shared: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    assert Ledger(shared).projects() == ()

    def move_to(revision: str) -> None:
        with closing(psycopg.connect(address, autocommit=True)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", (revision,))

    with closing(psycopg.connect(address)) as connection:
        current = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    move_to("v9999_later")
    project = open_project(tmp_path / "orders")
    project.record(snapshot("one"))
    with caplog.at_level(logging.INFO, "tightloop"):
        async with forwarding(parse_settings(f"database: {{url: '{address}'}}", {})):
            await eventually(lambda: "newer version of tightloop" in caplog.text)
            project.record(snapshot("two"))
            await asyncio.sleep(2)
            assert current is not None
            move_to(current[0])
            await eventually(lambda: len(Ledger(shared).workflows().lines) == 2)
            await eventually(lambda: "is up to date again" in caplog.text)
        assert [record.levelname for record in caplog.records].count("WARNING") == 1
