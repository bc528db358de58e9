"""Models of the tracker, and measurement of printed numbers."""

import itertools
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from tightloop.episode.failure import NUMBERS_LIMIT, PASSED, SHARE, ComparableOutput
from tightloop.value import CallerInput, Value


class ProbabilityClass(StrEnum):
    """Probability that an iteration serves the goal."""

    HIGH = "HIGH"
    """Continue as planned."""
    MEDIUM = "MEDIUM"
    """Reflect before continuing."""
    LOW = "LOW"
    """Ask a person if the next iteration is LOW too."""


class ReasonKind(StrEnum):
    """Kinds of reasons for a class."""

    RATIO = "ratio"
    NO_CHANGE = "no_change"
    NEWLY_FAILING = "newly_failing"
    OUT_OF_SCOPE = "out_of_scope"
    OPEN_ITEMS = "open_items"
    SAME_TREE_AGAIN = "same_tree_again"
    SAME_ERROR_AGAIN = "same_error_again"
    SAME_PLAN_AGAIN = "same_plan_again"
    ALTERNATION = "alternation"
    FALSE_CLAIM = "false_claim"
    OUTCOME_UNKNOWN = "outcome_unknown"
    EXECUTOR_FAILED = "executor_failed"
    COST = "cost"
    """Too much was spent since the checks last improved."""
    COMBINATION = "combination"
    """There are several reasons, none of which is serious on its own."""


class Work(StrEnum):
    """Type of change, by its novelty."""

    NOTHING = "nothing"
    """The change is empty, or consists only of comments, white space, or repeated text in a log."""
    AGAIN = "again"
    """The change only affects lines and numbers that were changed before."""
    DOUBTFUL = "doubtful"
    """New lines in a text that no check reads, or moved lines that did not affect the output of the checks."""
    REWORK = "rework"
    """New lines that replace lines written by the episode itself."""
    NEW = "new"
    """New lines, or lines that were removed for the first time."""


class Reason(Value):
    """One reason for the class, with the class that it implies on its own."""

    kind: ReasonKind
    implies: ProbabilityClass
    detail: str = ""


class Spending(Value):
    """Amounts spent up to a point in time, or between two points in time."""

    iterations: int = 0
    tokens: int = 0
    """Number of tokens. It is a lower bound if an agent does not report its tokens."""
    cost_usd: float = 0.0
    """Cost in US dollars. It is a lower bound if a price is unknown."""
    wall_time: timedelta = timedelta()
    """Working time up to the start of the iteration."""

    def since(self, earlier: "Spending") -> "Spending":
        """Return the amounts spent since `earlier`. They are never negative."""
        return Spending(
            iterations=max(self.iterations - earlier.iterations, 0),
            tokens=max(self.tokens - earlier.tokens, 0),
            cost_usd=max(self.cost_usd - earlier.cost_usd, 0.0),
            wall_time=max(self.wall_time - earlier.wall_time, timedelta()),
        )


class TrackingFacts(Value):
    """Measurements made by the tracker. They are the input of `classify`."""

    ratio: float = 1.0
    """Line similarity of the whole tree before and after the iteration, from 0 to 1."""
    lines_kept: float | None = None
    """Share of the previous lines that were kept, from 0 to 1. None if it was not measured."""
    files_changed: int = 0
    executor_changed_nothing: bool = False
    no_change_streak: int = 0
    """Number of consecutive deliveries without a change, including this one."""
    checks_failed: int | None = None
    """Number of failed checks, or None if no check ran."""
    newly_failing: tuple[str, ...] = ()
    made_progress: bool = False
    """True if the checks improved and none got worse."""
    work: Work = Work.AGAIN
    """Type of the change."""
    went_on: bool = False
    """True if the iteration produced something new: work, better checks, or different failures."""
    doubtful: bool = False
    """True if the benefit is unknown."""
    news: bool = False
    """True if the checks fail in a new way without new work."""
    unproven: bool = False
    """True if the change is new work that the checks cannot measure."""
    worse: bool = False
    """True if the checks got worse without new work."""
    scope_announced: bool = False
    """True if the plan announced which files it would change."""
    out_of_scope: tuple[str, ...] = ()
    """Changed files that the plan did not announce. Empty if it did not announce any files."""
    out_of_scope_share: float | None = None
    """Share of the changed lines that are in those files, from 0 to 1. None if it was not measured."""
    open_items: tuple[str, ...] = ()
    """Verifiable action items that are still open."""
    open_for: int = 0
    """Number of iterations since the oldest of these items was given, including this one."""
    tree_seen_before: bool = False
    alternates: bool = False
    """True if the trees of the last iterations form a cycle."""
    error_count: int = 0
    """Number of consecutive iterations with the current failures, including this one."""
    error_seen_before: bool = False
    """True if the current failures occurred before, with different ones in between."""
    errors_alternate: bool = False
    plan_seen_before: bool = False
    """True if the same plan was executed before."""
    claimed_done: bool = False
    """True if the planner claims that the goal is met."""
    outcome_unknown: bool = False
    executor_failed: bool = False
    since_progress: Spending = Spending.model_construct()
    """Amounts spent since the checks last improved or passed."""

    @property
    def green(self) -> bool:
        """True if checks ran and all of them passed."""
        return self.checks_failed == 0

    @property
    def moved(self) -> bool:
        """True if the checks show an improvement."""
        return self.went_on and not (self.doubtful or self.unproven)


class Thresholds(CallerInput):
    """Thresholds of the classes, calibrated on `tests/data/deviation` with the `calibrate.py` in that folder."""

    # 0.6 and 0.4 are those of the seed "Plan-Execu Tight Loop".
    high_from: float = 0.6
    """Minimum ratio for the class HIGH."""
    medium_from: float = 0.4
    """Minimum ratio for the class MEDIUM."""
    growth_keeps: float = 0.95
    """Minimum share of kept lines for a change to count as growth.

    In that case, a low ratio means that files were added, not lost.
    """
    scope_share_medium: float = 0.4
    """Share of changed lines outside the plan's scope that results in MEDIUM."""
    scope_share_low: float = 0.7
    """Share of changed lines outside the plan's scope that results in LOW, unless a check improved or all pass."""
    open_items_medium: int = 2
    """Number of iterations with an open action item that results in MEDIUM. It is doubled if a check improved."""
    open_items_low: int = 5
    """Number of iterations with an open action item that results in LOW, unless a check improved or all pass."""
    no_change_low: int = 2
    """Number of consecutive deliveries without a change that results in LOW."""
    same_error_low: int = 3
    """Number of consecutive iterations with the same failures that results in LOW. Two result in MEDIUM."""
    iterations_per_progress: int | None = 4
    """Number of iterations without an improved check that results in MEDIUM. None means unlimited."""
    tokens_per_progress: int | None = 2_000_000
    """Number of tokens without an improved check that results in MEDIUM. None means unlimited."""
    cost_usd_per_progress: float | None = 5.0
    """Cost in US dollars without an improved check that results in MEDIUM. None means unlimited."""
    hours_per_progress: float | None = 2.0
    """Working hours without an improved check that result in MEDIUM. None means unlimited."""
    cost_low_factor: float = 2.0
    """Multiple of any of these four bounds that results in LOW."""
    reasons_low: int = 3
    """Number of MEDIUM reasons that together result in LOW."""

    def patient(self, repeat_error_limit: int) -> "Thresholds":
        """Return the thresholds for an episode that tolerates this many iterations with the same error.

        A raised limit means that some checks pass only after the last step. Until then, repeated failures, iterations
        without progress and their consequences do not result in LOW.
        """
        iterations = self.iterations_per_progress
        return self.evolve(
            same_error_low=max(self.same_error_low, repeat_error_limit),
            no_change_low=max(self.no_change_low, repeat_error_limit - 1),
            open_items_low=max(self.open_items_low, repeat_error_limit + 2),
            iterations_per_progress=None if iterations is None else max(iterations, repeat_error_limit + 1),
        )

    def problem(self) -> str:
        """Return a sentence about the first invalid threshold, or "" if all are valid."""
        shares = ("high_from", "medium_from", "growth_keeps", "scope_share_medium", "scope_share_low")
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                return f"{name} must be between 0 and 1, got {getattr(self, name):g}"
        pairs = (
            ("medium_from", "high_from"),
            ("scope_share_medium", "scope_share_low"),
            ("open_items_medium", "open_items_low"),
        )
        for lower, upper in pairs:
            if getattr(self, lower) > getattr(self, upper):
                return f"{lower} {getattr(self, lower):g} must not be above {upper} {getattr(self, upper):g}"
        counts = ("open_items_medium", "no_change_low", "cost_low_factor")
        for name, least in (*((name, 1) for name in counts), ("same_error_low", 2), ("reasons_low", 2)):
            # Not `<`, because NaN would pass.
            if not getattr(self, name) >= least:
                return f"{name} must be at least {least}, got {getattr(self, name):g}"
        for name in ("iterations", "tokens", "cost_usd", "hours"):
            bound = getattr(self, f"{name}_per_progress")
            if bound is not None and not bound > 0:
                return f"{name}_per_progress must be above 0, or empty for no limit, got {bound:g}"
        return ""


class ItemMemory(Value):
    """An action item and its status."""

    mark: str
    """Signature of the item's text."""
    rounds: int = 0
    """Number of iterations since the item was given."""
    about: str = ""
    """Signature of the failing check that the item names."""
    done: bool = False


class TrackerMemory(Value):
    """Bounded memory of earlier iterations. It is part of the episode's state."""

    plans: tuple[str, ...] = ()
    """Signatures of the most recently executed plans, oldest first."""
    touched: str = ""
    """Marks of the lines touched by the latest changes; see `work.py`."""
    numbers: tuple[float, ...] = ()
    """The last numbers printed by the failing checks."""
    ways: tuple[int, ...] = ()
    """Direction of each number, as in `Count`."""
    best: tuple[float, ...] = ()
    """Best distance of each number from its target, as in `Count`."""
    heard: str = ""
    """Marks of the words printed by the failing checks; see `work.py`."""
    errors: tuple[str, ...] = ()
    """Signatures of the failures at the end of the last iterations, oldest first.

    An empty text means that all checks passed.
    """
    no_change: int = 0
    unmoved: int = 0
    """Number of iterations since the checks last showed progress, including that iteration."""
    items: tuple[ItemMemory, ...] = ()
    at_progress: Spending | None = None
    """Amounts spent when the checks last improved or passed. None if they are unknown."""


class Tracking(Value):
    """Class of an iteration, with its reasons and the size of the change."""

    probability_class: ProbabilityClass = ProbabilityClass.HIGH
    ratio: float = 1.0
    measure: str = "lines-of-tree/1"
    rules: str = ""
    """Version of the rules."""
    reasons: tuple[Reason, ...] = ()
    files_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    approximate: bool = False
    """True if the diff reached its time limit and is therefore less precise."""
    note: str = ""
    """Explanation of why the diff is less precise, at most 300 characters."""
    renames: tuple[str, ...] = ()
    """Renamed files in the form `old => new`. At most 10 are listed, with 160 characters each."""
    files_renamed: int = 0
    """Number of renamed files, as far as they were listed."""
    memory: TrackerMemory | None = None
    """Memory for the next iteration."""
    went_on: bool = False
    """True if the iteration produced something new."""
    doubtful: bool = False
    """True if the benefit is unknown."""
    news: bool = False
    """True if the benefit is unknown and the checks fail in a new way."""
    unproven: bool = False
    """True if the iteration produced new work that the checks cannot measure."""
    idle: bool = False
    """True if the iteration was futile: no change, an earlier tree, or worse checks without new work."""


def similarity(lines_before: int, *, added: int, removed: int) -> float:
    """Return the line-based similarity of two trees: 2 * common / (before + after), from 0 to 1."""
    # Formula of difflib's `ratio`, over lines. Both counts come from a diff, so no text is compared again.
    common = max(lines_before - removed, 0)
    total = lines_before + common + added
    return 1.0 if total <= 0 else min(1.0, 2 * common / total)


DOUBT = 1
"""Initial direction of a plain number. To count as falling, it must fall more often than it rises."""
FIXED = 2
"""Direction of a number that rose twice. If it fell twice, the direction is `-FIXED`."""
TREMBLES = 0.01
"""Minimum relative improvement of a measure that counts as an improvement."""


class Count(Value):
    """Numbers printed by the failing checks, and how they have changed."""

    numbers: tuple[float, ...] = ()
    ways: tuple[int, ...] = ()
    """Direction of each number, up or down, if only its trend shows what is better."""
    best: tuple[float, ...] = ()
    """Best distance of each number from its target."""
    better: bool = False
    """True if a number is closer to its target than ever before."""
    lowest: bool = False
    """True if a number without descriptive words is lower than ever before."""
    worse: bool = False
    """True if a count moved away from its target and no number improved."""
    kept: bool = False
    """True if as many tests pass as before, which means that additional failures come from new tests."""


def update_count(before: Count, printed: Iterable[ComparableOutput]) -> Count:
    """Update the numbers after another run of the checks."""
    read = list(itertools.chain.from_iterable(map(_numbers, printed)))[:NUMBERS_LIMIT]
    # With another number of numbers their positions no longer correspond, so all of them start over.
    if len(read) == len(before.numbers) == len(before.ways) == len(before.best):
        earlier = zip(before.numbers, before.ways, before.best, strict=True)
        steps = [number.after(*old) for number, old in zip(read, earlier, strict=True)]
    else:
        steps = [number.first() for number in read]
    # More failures do not count here: they may be new tests.
    tests_kept = any(number.direction == PASSED for number in read) and not any(
        step.worse for number, step in zip(read, steps, strict=True) if number.direction != -1
    )
    better = any(step.better for number, step in zip(read, steps, strict=True) if not number.is_outweighed(read))
    return Count(
        numbers=tuple(number.value for number in read),
        ways=tuple(step.way for step in steps),
        best=tuple(step.best for step in steps),
        better=better,
        lowest=any(step.lowest for number, step in zip(read, steps, strict=True) if not number.is_outweighed(read)),
        worse=not (better or tests_kept) and any(step.worse for step in steps),
        kept=tests_kept,
    )


class _Step(NamedTuple):
    way: int
    best: float
    better: bool = False
    worse: bool = False
    lowest: bool = False


class _Number(NamedTuple):
    """A number with its direction, as in `Printed`, and its target."""

    value: float
    direction: int
    goal: float | None

    @property
    def is_plain(self) -> bool:
        """True if no words describe the number."""
        return self.direction == 0 and self.goal is None

    def is_outweighed(self, other_numbers: Iterable["_Number"]) -> bool:
        """Return whether other numbers are more informative.

        Failures outweigh passes, and described numbers outweigh plain ones.
        """
        return (
            self.direction in (1, PASSED) and any(other.direction == -1 and other.value > 0 for other in other_numbers)
        ) or (self.is_plain and not all(other.is_plain for other in other_numbers))

    def first(self) -> _Step:
        """Return the number's initial step."""
        return _Step(DOUBT if self.is_plain else 0, self.off(self.value, 0))

    def after(self, earlier: float, way: int, best: float) -> _Step:
        """Return the number's step since the last run."""
        step = (self.value > earlier) - (self.value < earlier)
        if self.is_plain:
            # A rising plain number may be a process id.
            way = max(-FIXED, min(DOUBT, way + step))
            lowest = self.value < best * (1 - TREMBLES)
            return _Step(way, min(best, self.value), better=way < 0 and lowest, lowest=lowest)
        before = way
        if step and abs(way) < FIXED:
            way = FIXED * step if way == step else step
        now, last = self.off(self.value, way), self.off(earlier, way)
        if self.direction == SHARE:
            # `9 of 24` may count done or open items: it proves nothing before it has moved the same way twice.
            if abs(way) < FIXED:
                return _Step(way, now)
            # If the direction was only just fixed, earlier distances were measured the wrong way.
            best = best if way == before else last
        counts = self.direction in (1, -1, SHARE, PASSED)
        # Counts are exact; measures such as seconds fluctuate by themselves.
        margin = 0.0 if counts else TREMBLES * abs(best)
        return _Step(way, min(best, now), better=now < best - margin, worse=counts and now > last)

    def off(self, value: float, way: int) -> float:
        """Return the distance of a value from its target for the direction `way`."""
        if self.goal is not None and self.direction == 0:
            return abs(value - self.goal)
        # A smaller distance is always better, so a number that should rise counts negatively.
        return -value if (way if self.direction in (0, SHARE) else self.direction) > 0 else value


def _numbers(printed: ComparableOutput) -> Iterable[_Number]:
    goals = printed.goals or (None,) * len(printed.numbers)
    return itertools.starmap(_Number, zip(printed.numbers, printed.better, goals, strict=True))
