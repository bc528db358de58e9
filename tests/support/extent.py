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
OF_A_FILE = {"tests/workflow/": 4, "tests/integration/": 8, "tests/e2e/": 2, "tests/trials/": 2}
"""How many tests of each file the gate takes. A test here needs seconds; all of them together would need hours."""


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


def leave_out_tests(items: list[pytest.Item]) -> list[pytest.Item]:
    """Keep the tests of costly folders that the gate takes, drawn by the seed; return those left out."""
    if ALL or CASES not in os.environ:
        return []
    tests, files = dict[str, list[pytest.Item]](), dict[str, list[pytest.Item]]()
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        file = name.partition("::")[0]
        files.setdefault(file, []).extend(_drawn(name, cases, int(os.environ[CASES])) if _is_costly(file) else cases)
    kept = {item for file, tests_of in files.items() for item in _drawn(file, tests_of, _of_a_file(file))}
    left_out = [item for item in items if item not in kept]
    items[:] = [item for item in items if item in kept]
    return left_out


def _is_costly(file: str) -> bool:
    return file.startswith(tuple(OF_A_FILE))


def _of_a_file(file: str) -> int | None:
    return next((most for folder, most in OF_A_FILE.items() if file.startswith(folder)), None)


def _drawn(name: str, items: list[pytest.Item], most: int | None) -> list[pytest.Item]:
    if most is None or len(items) <= most:
        return items
    return random.Random(f"{os.environ[SEED]} {name}").sample(items, most)
