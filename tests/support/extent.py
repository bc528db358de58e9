"""How much of a long trial runs: a part in the gate, all of it with `TIGHTLOOP_TEST_ALL=1`."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
ALL = os.environ.get("TIGHTLOOP_TEST_ALL") == "1"


def part(count: int, *, of: int) -> int:
    """Return how many of something a trial takes: so many in the gate, all of them with `TIGHTLOOP_TEST_ALL=1`."""
    return of if ALL else count


def some(items: Sequence[T], count: int) -> list[T]:
    """Return so many of the items, spread evenly, or all of them."""
    if ALL or count >= len(items):
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]


def draw_seed() -> int:
    """Return what a trial draws its random moments from: `TIGHTLOOP_TEST_SEED`, or another number each time."""
    return int(os.environ.get("TIGHTLOOP_TEST_SEED", random.randrange(10_000)))
