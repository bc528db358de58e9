"""What many open pages ask for at once is made once.

An event reaches all pages within the same moment, and each asks again: 200 pages of 100 episodes at work would need
four cores if every answer were made for each of them.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.to_thread import run_sync

from tightloop.database.ledger import Ledger

KEPT_SECONDS = 1.0
"""No answer is older, even where no event has come since."""
ENTRIES = 1_000
THREADS = 4
"""Threads of one interpreter take turns; more of them only hold more connections."""
T = TypeVar("T")


class _Made(NamedTuple):
    at: float
    task: "asyncio.Task[tuple[int, Any]]"


class Sharing:
    """Answers of the last moment."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._made: dict[Hashable, _Made] = {}
        self._turns = anyio.CapacityLimiter(THREADS)

    async def get(self, key: Hashable, seen: int, make: Callable[[], T]) -> T:
        """Return what `make` returns, or returned for somebody else a moment ago.

        Args:
            key: everything that the answer depends on, besides the ledger.
            seen: the last event that who asks has heard of; the answer was made after it.
            make: reads the ledger, in a thread.
        """
        found = self._made.get(key)
        if found is not None and self._is_young(found):
            number, answer = await asyncio.shield(found.task)
            if number >= seen:
                kept: T = answer
                return kept
        # Others may have waited for the same one, and one of them begun again.
        if found is self._made.get(key):
            self._forget()
            self._made[key] = _Made(self._now(), asyncio.create_task(self._make(make)))
        _, made = await asyncio.shield(self._made[key].task)
        fresh: T = made
        return fresh

    async def _make(self, make: Callable[[], Any]) -> tuple[int, Any]:
        def work() -> tuple[int, Any]:
            # Before the rest is read: it knows this event at least.
            return self._ledger.last_event(), make()

        return await run_sync(work, limiter=self._turns)

    def _is_young(self, made: _Made) -> bool:
        if not made.task.done():
            return True
        return self._now() - made.at < KEPT_SECONDS and made.task.exception() is None

    def _forget(self) -> None:
        if len(self._made) >= ENTRIES:
            self._made = {key: made for key, made in self._made.items() if self._is_young(made)}

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
