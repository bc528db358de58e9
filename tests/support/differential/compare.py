"""Differences between what was recorded and what is seen, and those that were made on purpose."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.support.differential.schedule import Observation, Schedule


class Difference(NamedTuple):
    """A field in which two observations differ."""

    field: str
    recorded: Any
    seen: Any


class Intended(NamedTuple):
    """A difference that was made on purpose."""

    kinds: str
    """Pattern for the kind of the schedule."""
    field: str
    """Pattern for the field."""
    recorded: str
    """Pattern for what was recorded, as text."""
    seen: str
    """Pattern for what is seen."""
    reason: str


INTENDED: list[Intended] = []
"""Patterns have to match in full."""


def differences(recorded: Observation, seen: Observation) -> list[Difference]:
    """Return all fields that differ; of dictionaries each key."""
    return list(_compare("", recorded.model_dump(exclude={"broken"}), seen.model_dump(exclude={"broken"})))


def _compare(field: str, recorded: Any, seen: Any) -> Iterator[Difference]:
    if isinstance(recorded, dict) and isinstance(seen, dict):
        for name in sorted({*recorded, *seen}):
            yield from _compare(f"{field}.{name}".lstrip("."), recorded.get(name), seen.get(name))
    elif recorded != seen:
        yield Difference(field, recorded, seen)


def unexplained(schedule: Schedule, found: list[Difference]) -> list[Difference]:
    """Return the differences that nobody made on purpose."""
    return [
        difference for difference in found if not any(_fits(intended, schedule, difference) for intended in INTENDED)
    ]


def _fits(intended: Intended, schedule: Schedule, difference: Difference) -> bool:
    pairs = (
        (intended.kinds, schedule.kind),
        (intended.field, difference.field),
        (intended.recorded, str(difference.recorded)),
        (intended.seen, str(difference.seen)),
    )
    return all(re.fullmatch(pattern, text) for pattern, text in pairs)
