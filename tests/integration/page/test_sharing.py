"""What many open pages ask for at once."""

import asyncio
from pathlib import Path

from gateway.web.pages import KEPT_SECONDS, PageCache
from tests.support.seeded_ledger import ORDERS
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.ledger.model import ProjectLine, TrailEvent


async def test_many_who_ask_at_once_are_given_one_answer_that_knows_the_event_they_heard_of(tmp_path: Path) -> None:
    ledger = Ledger(sqlite_database(tmp_path / "ledger.db"))
    sharing, made = PageCache(ledger), list[int]()

    def make() -> int:
        made.append(ledger.last_event())
        return made[-1]

    async def ask(seen: int, count: int = 50) -> set[int]:
        return set(await asyncio.gather(*(sharing.get("key", seen, make) for _ in range(count))))

    assert await ask(0) == {0}
    assert len(made) == 1
    line = ProjectLine(id=ORDERS, name="orders")
    ledger.select_project(line).add_event(TrailEvent(episode_id="episode", kind="iteration", key="1"))
    newest = ledger.last_event()
    assert await ask(newest) == {newest}, "an answer from before the event will not do"
    assert len(made) == 2
    assert await ask(newest + 10**9, count=1) == {newest}, "a number that no event has is no reason to wait"
    await asyncio.sleep(KEPT_SECONDS)
    count = len(made)
    assert await ask(0) == {newest}
    assert len(made) == count + 1, "it is kept for a moment only"
    ledger.database.close()
