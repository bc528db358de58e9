"""Streams of events: where a reader goes on, and what becomes of one that is slow."""

import asyncio
from pathlib import Path

from gateway.http.hub import CATCH_UP, QUEUE_BYTES, Hub, StreamFilter
from tests.support.gateway import fill, project_id
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.ledger.model import TrailEvent


def filled(folder: Path) -> Ledger:
    ledger = Ledger(sqlite_database(folder / "ledger.db"))
    fill(ledger, folder)
    return ledger


def add(ledger: Ledger, folder: Path, first: int, count: int, text: str = "x") -> None:
    of = ledger.of(project_id(folder, "orders"))
    for number in range(first, first + count):
        of.add_event(TrailEvent(episode_id="orders-episode-1", kind="iteration", text=text, key=f"more/{number}"))


async def told(hub: Hub, after: str | None, until: str, wanted: StreamFilter = StreamFilter()) -> str:
    """What a stream says until a word comes."""
    said = ""
    stream = hub.stream(wanted, after)
    async with asyncio.timeout(60):
        async for part in stream:
            said += part.decode()
            if until in said:
                break
    await stream.aclose()
    return said


async def test_a_reader_that_comes_back_gets_what_it_missed_and_nothing_twice(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    hub, last = Hub(ledger), ledger.last_event()
    add(ledger, tmp_path, 0, 3)
    reading = asyncio.create_task(told(hub, str(last), "live"))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(add, ledger, tmp_path, 3, 1, "live")
    said = await reading
    ids = [int(line.partition(": ")[2]) for line in said.splitlines() if line.startswith("id: ")]
    # A reader can disconnect at any point and resume after what it has received: `ready` follows the missed events.
    assert ids == [last + 1, last + 2, last + 3, last + 3, last + 4]
    assert said.index("event: ready") > said.index(f"id: {last + 3}")
    await hub.close()


async def test_an_unknown_id_and_one_too_far_back_mean_read_everything_again(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    hub = Hub(ledger)
    for wrong in ("999999", "-1", "x", "", "٣", "1" * 30):
        said = await told(hub, wrong, "event: reset")
        assert "event: trail" not in said
    add(ledger, tmp_path, 0, CATCH_UP)
    assert "event: trail" not in await told(hub, "0", "event: reset")
    await hub.close()


async def test_a_stream_of_one_workflow_carries_no_other(tmp_path: Path) -> None:
    hub = Hub(filled(tmp_path))
    wanted = StreamFilter(workflow="orders-episode-1")
    said = await told(hub, "0", "event: trail", wanted)
    assert "orders-episode-1" in said
    assert "orders-episode-2" not in said
    await hub.close()


async def test_a_slow_reader_is_told_to_read_again_and_holds_little(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    hub = Hub(ledger)
    stream = hub.stream(StreamFilter(), None)
    assert b"event: ready" in await anext(stream)
    # It reads nothing while more than its share comes.
    await asyncio.to_thread(add, ledger, tmp_path, 0, 300, "y" * (QUEUE_BYTES // 200))
    await asyncio.sleep(2)
    part = await anext(stream)
    assert part.startswith(b"id:")
    assert b"event: reset" in part
    assert len(part) <= 2 * QUEUE_BYTES
    await stream.aclose()
    await hub.close()


async def test_a_database_that_was_put_back_resets_every_reader(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    hub = Hub(ledger)
    reading = asyncio.create_task(told(hub, None, "event: reset"))
    await asyncio.sleep(0.5)
    ledger.database.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    assert "event: reset" in await reading
    await hub.close()
