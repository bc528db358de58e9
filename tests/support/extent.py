"""How much of a long trial runs: a part in the gate, all of it with `TIGHTLOOP_TEST_ALL=1`."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
ALL = os.environ.get("TIGHTLOOP_TEST_ALL") == "1"
CASES = "TIGHTLOOP_TEST_CASES"
"""Set by the gate: how many cases of a parametrized test run, of those that need a server or a sandbox."""
SEED = "TIGHTLOOP_TEST_SEED"
COSTLY = ("tests/workflow/", "tests/integration/", "tests/e2e/", "tests/trials/")


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
    return int(os.environ.get(SEED, random.randrange(10_000)))


def choose_seed() -> None:
    """Draw the seed of a run once, for all of its processes."""
    os.environ.setdefault(SEED, str(random.randrange(10_000)))


def leave_out_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Keep as many cases of each costly test as the gate takes, drawn by the seed; returns what is left out."""
    if ALL or CASES not in os.environ:
        return []
    most, cases = int(os.environ[CASES]), dict[str, list[pytest.Item]]()
    for item in items:
        if item.nodeid.startswith(COSTLY):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for name, group in cases.items():
        if len(group) > most:
            left_out |= {*group} - {*random.Random(f"{os.environ[SEED]} {name}").sample(group, most)}
    items[:] = [item for item in items if item not in left_out]
    return list(left_out)
