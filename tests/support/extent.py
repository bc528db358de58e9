"""How much of a long trial runs: a part in the gate, all of it with `TIGHTLOOP_TEST_ALL=1`."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
ALL = os.environ.get("TIGHTLOOP_TEST_ALL") == "1"


def some(items: Sequence[T], count: int) -> list[T]:
    """Return so many of the items, spread evenly, or all of them."""
    if ALL or count >= len(items):
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]
