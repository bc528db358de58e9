"""The course of the numbers that failing checks print: whether one is nearer to its aim than ever before."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from tightloop.episode.failure.printed import NUMBERS_LIMIT, PASSED, SHARE, Printed
from tightloop.value import Value

DOUBT = 1
"""The way of a plain number at first: it has to fall more often than it rises."""
FIXED = 2
"""The way of a number that went up twice; down it is `-FIXED`."""
TREMBLES = 0.01
"""A measure has to get better by this share."""


class Count(Value):
    """What the failing checks count, as it is remembered, and what it says."""

    numbers: tuple[float, ...] = ()
    ways: tuple[int, ...] = ()
    """Which way each one goes, up or down, where only its course tells."""
    best: tuple[float, ...] = ()
    """How far from its aim each one was at best."""
    better: bool = False
    """A number is nearer to its aim than ever before."""
    lowest: bool = False
    """A number of which words say nothing is lower than ever before."""
    worse: bool = False
    """A count went away from its aim, and no number is better."""
    kept: bool = False
    """As many tests pass as before: those that fail besides are new ones."""


def follow(before: Count, printed: Iterable[Printed]) -> Count:
    """Return what the numbers say after another run of the checks."""
    read = list(itertools.chain.from_iterable(map(_numbers, printed)))[:NUMBERS_LIMIT]
    if len(read) == len(before.numbers) == len(before.ways) == len(before.best):
        earlier = zip(before.numbers, before.ways, before.best, strict=True)
        steps = [number.after(*old) for number, old in zip(read, earlier, strict=True)]
    else:
        steps = [number.first() for number in read]
    kept = any(number.told == PASSED for number in read) and not any(
        step.worse for number, step in zip(read, steps, strict=True) if number.told != -1
    )
    better = any(step.better for number, step in zip(read, steps, strict=True) if not number.is_beside(read))
    return Count(
        numbers=tuple(number.value for number in read),
        ways=tuple(step.way for step in steps),
        best=tuple(step.best for step in steps),
        better=better,
        lowest=any(step.lowest for number, step in zip(read, steps, strict=True) if not number.is_beside(read)),
        worse=not (better or kept) and any(step.worse for step in steps),
        kept=kept,
    )


class _Step(NamedTuple):
    way: int
    best: float
    better: bool = False
    worse: bool = False
    lowest: bool = False


class _Number(NamedTuple):
    """A number, which way is better as `Printed` says it, and where it has to come to."""

    value: float
    told: int
    goal: float | None

    @property
    def is_plain(self) -> bool:
        """Whether nothing beside it tells anything."""
        return self.told == 0 and self.goal is None

    def is_beside(self, others: Iterable["_Number"]) -> bool:
        """Return whether others tell more: what fails more than what passes, what words tell more than a plain one."""
        return (self.told in (1, PASSED) and any(other.told == -1 and other.value > 0 for other in others)) or (
            self.is_plain and not all(other.is_plain for other in others)
        )

    def first(self) -> _Step:
        """Say where this number begins."""
        return _Step(DOUBT if self.is_plain else 0, self.off(self.value, 0))

    def after(self, earlier: float, way: int, best: float) -> _Step:
        """Say what became of this number since the last run."""
        step = (self.value > earlier) - (self.value < earlier)
        if self.is_plain:
            # One that rises may be that of a process.
            way = max(-FIXED, min(DOUBT, way + step))
            lowest = self.value < best * (1 - TREMBLES)
            return _Step(way, min(best, self.value), better=way < 0 and lowest, lowest=lowest)
        before = way
        if step and abs(way) < FIXED:
            way = FIXED * step if way == step else step
        now, last = self.off(self.value, way), self.off(earlier, way)
        if self.told == SHARE:
            if abs(way) < FIXED:
                return _Step(way, now)
            best = best if way == before else last
        counts = self.told in (1, -1, SHARE, PASSED)
        margin = 0.0 if counts else TREMBLES * abs(best)
        return _Step(way, min(best, now), better=now < best - margin, worse=counts and now > last)

    def off(self, value: float, way: int) -> float:
        """Return how far a value is from the aim of this number, where `way` is the way that it goes."""
        if self.goal is not None and self.told == 0:
            return abs(value - self.goal)
        return -value if (way if self.told in (0, SHARE) else self.told) > 0 else value


def _numbers(printed: Printed) -> Iterable[_Number]:
    goals = printed.goals or (None,) * len(printed.numbers)
    return itertools.starmap(_Number, zip(printed.numbers, printed.better, goals, strict=True))
