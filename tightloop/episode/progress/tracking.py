"""Progress of an iteration."""

import itertools
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from tightloop.episode.failure import NUMBERS_LIMIT, PASSED, SHARE, Printed
from tightloop.value import CallerInput, Value


class ProbabilityClass(StrEnum):
    """Probability that an iteration is on course."""

    HIGH = "HIGH"
    """It may go on as it is."""
    MEDIUM = "MEDIUM"
    """It should think again before it goes on."""
    LOW = "LOW"
    """A person wants to know if the next one is like this."""


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
    """Too much was spent since the checks last got better."""
    COMBINATION = "combination"
    """Several reasons, none of them grave alone."""


class Work(StrEnum):
    """Kind of a change, by what it brought that was not there before."""

    NOTHING = "nothing"
    """No change, or only of comments and space, or the same text again in a log."""
    AGAIN = "again"
    """Only lines and numbers that were changed before."""
    DOUBTFUL = "doubtful"
    """New lines of a text that no check asks for, or the same ones in another place while the checks say the same."""
    REWORK = "rework"
    """New lines, in place of those that the episode itself wrote."""
    NEW = "new"
    """Lines that are new, or that went for the first time."""


class Reason(Value):
    """One reason for the class, with the class that it alone would give."""

    kind: ReasonKind
    implies: ProbabilityClass
    detail: str = ""


class Spending(Value):
    """Amounts spent up to a moment, or between two moments."""

    iterations: int = 0
    tokens: int = 0
    """A lower bound where an agent does not report them."""
    cost_usd: float = 0.0
    """A lower bound where a price is not known."""
    wall_time: timedelta = timedelta()
    """Working time, counted up to the beginning of the iteration."""

    def since(self, earlier: "Spending") -> "Spending":
        """Return what was spent after `earlier`; nothing is negative."""
        return Spending(
            iterations=max(self.iterations - earlier.iterations, 0),
            tokens=max(self.tokens - earlier.tokens, 0),
            cost_usd=max(self.cost_usd - earlier.cost_usd, 0.0),
            wall_time=max(self.wall_time - earlier.wall_time, timedelta()),
        )


class TrackingFacts(Value):
    """Measurements of the tracker; the input of `classify`."""

    ratio: float = 1.0
    """Similarity of the whole tree before and after by lines, 0 to 1."""
    lines_kept: float | None = None
    """Share of the lines before that are still there, 0 to 1; None: not measured."""
    files_changed: int = 0
    executor_changed_nothing: bool = False
    no_change_streak: int = 0
    """Deliveries in a row that changed nothing, with this one."""
    checks_failed: int | None = None
    """None: no check ran."""
    newly_failing: tuple[str, ...] = ()
    made_progress: bool = False
    """The checks are better than before the iteration, and none is worse."""
    work: Work = Work.AGAIN
    """What the change amounts to."""
    went_on: bool = False
    """It brought something that was not there before: work, better checks, or failures of another kind."""
    doubtful: bool = False
    """Nobody can tell whether that helps."""
    news: bool = False
    """The checks fail in a way that they never did, though no new work is behind it."""
    unproven: bool = False
    """It is new work, and the checks do not show whether that helps."""
    worse: bool = False
    """The checks got worse, and no new work is behind it."""
    scope_announced: bool = False
    """The plan said which files it would change."""
    out_of_scope: tuple[str, ...] = ()
    """Changed files that the plan did not announce; empty when the plan announced none."""
    out_of_scope_share: float | None = None
    """Their share of the changed lines, 0 to 1; None: not measured."""
    open_items: tuple[str, ...] = ()
    """Action items that can be checked against files and checks, and that nothing was done about."""
    open_for: int = 0
    """Iterations that the oldest of them has been open, with this one."""
    tree_seen_before: bool = False
    alternates: bool = False
    """The trees of the last iterations go round in a circle."""
    error_count: int = 0
    """Iterations in a row that ended with the present failures of the checks, with this one."""
    error_seen_before: bool = False
    """The present failures were there in an earlier iteration, and others in between."""
    errors_alternate: bool = False
    plan_seen_before: bool = False
    """The same plan was carried out before."""
    claimed_done: bool = False
    """The planner calls the goal met."""
    outcome_unknown: bool = False
    executor_failed: bool = False
    since_progress: Spending = Spending.model_construct()
    """What was spent since the checks last got better or were green."""

    @property
    def green(self) -> bool:
        """Whether checks ran and all passed."""
        return self.checks_failed == 0

    @property
    def moved(self) -> bool:
        """Whether the checks show that it helped."""
        return self.went_on and not (self.doubtful or self.unproven)


class Thresholds(CallerInput):
    """Where the classes begin. Calibrated on `tests/data/deviation`, by `calibrate.py` there."""

    # 0.6 and 0.4 are those of the seed "Plan-Execu Tight Loop".
    high_from: float = 0.6
    """Ratio from which the class is HIGH."""
    medium_from: float = 0.4
    """Ratio from which the class is MEDIUM."""
    growth_keeps: float = 0.95
    """A change that keeps this share of the lines before is growth: a low ratio then means new files, not lost ones."""
    scope_share_medium: float = 0.4
    """Share of the changed lines that lies outside of the plan's scope."""
    scope_share_low: float = 0.7
    """The same, where no check got better and not all are green."""
    open_items_medium: int = 2
    """Iterations that an action item was open; twice as many where a check got better."""
    open_items_low: int = 5
    """The same, for LOW."""
    no_change_low: int = 2
    """Deliveries in a row that changed nothing."""
    same_error_low: int = 3
    """Iterations in a row with the same failures; two are MEDIUM."""
    iterations_per_progress: int | None = 4
    """What may be spent until a check gets better; None: unbounded."""
    tokens_per_progress: int | None = 2_000_000
    """The same, in tokens."""
    cost_usd_per_progress: float | None = 5.0
    """The same, in US dollars."""
    hours_per_progress: float | None = 2.0
    """The same, in hours of work."""
    cost_low_factor: float = 2.0
    """Multiple of one of these four bounds that is LOW."""
    reasons_low: int = 3
    """Number of MEDIUM reasons that together are LOW."""

    def patient(self, repeat_error_limit: int) -> "Thresholds":
        """Return the thresholds of an episode that tolerates this many iterations with the same error.

        A raised limit means that some checks turn green only with the last step; until then the same failures, the
        iterations without progress and what follows from them are not a reason for LOW.
        """
        iterations = self.iterations_per_progress
        return self.evolve(
            same_error_low=max(self.same_error_low, repeat_error_limit),
            no_change_low=max(self.no_change_low, repeat_error_limit - 1),
            open_items_low=max(self.open_items_low, repeat_error_limit + 2),
            iterations_per_progress=None if iterations is None else max(iterations, repeat_error_limit + 1),
        )

    def problem(self) -> str:
        """Return what is wrong with the thresholds, as a sentence; empty when they are in order."""
        shares = ("high_from", "medium_from", "growth_keeps", "scope_share_medium", "scope_share_low")
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                return f"{name} is {getattr(self, name):g}; it must lie between 0 and 1"
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
            # Not `<`: that would let a NaN pass.
            if not getattr(self, name) >= least:
                return f"{name} is {getattr(self, name):g}; it must be at least {least}"
        for name in ("iterations", "tokens", "cost_usd", "hours"):
            bound = getattr(self, f"{name}_per_progress")
            if bound is not None and not bound > 0:
                return f"{name}_per_progress is {bound:g}; it must be above 0, or empty for no bound"
        return ""


class ItemMemory(Value):
    """An action item that was given, and what became of it."""

    mark: str
    """Signature of its text."""
    rounds: int = 0
    """Iterations that nothing was done about it."""
    about: str = ""
    """How the check that it names failed."""
    done: bool = False


class TrackerMemory(Value):
    """Bounded memory of earlier iterations; carried in the state of the episode."""

    plans: tuple[str, ...] = ()
    """Signatures of the last plans that were carried out, oldest first."""
    touched: str = ""
    """Marks of the lines that the last changes touched; see `work.py`."""
    numbers: tuple[float, ...] = ()
    """What the failing checks counted at last."""
    ways: tuple[int, ...] = ()
    """As in `numbers.Count`."""
    best: tuple[float, ...] = ()
    """As in `numbers.Count`."""
    heard: str = ""
    """Marks of the words of the failing checks; see `work.py`."""
    errors: tuple[str, ...] = ()
    """Signatures of the failures at the end of the last iterations, oldest first; empty text: green."""
    no_change: int = 0
    unmoved: int = 0
    """Iterations since the checks last showed progress, with the one in which they did."""
    items: tuple[ItemMemory, ...] = ()
    at_progress: Spending | None = None
    """What was spent when the checks last got better or were green; None: not known yet."""


class Tracking(Value):
    """The class of an iteration with its reasons and the size of the change."""

    probability_class: ProbabilityClass = ProbabilityClass.HIGH
    ratio: float = 1.0
    measure: str = "lines-of-tree/1"
    rules: str = ""
    """Version of the rules that gave the class."""
    reasons: tuple[Reason, ...] = ()
    files_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    approximate: bool = False
    """The diff ran into its time bound and is coarser than usual."""
    note: str = ""
    """What is coarser than usual, and why; at most 300 characters."""
    renames: tuple[str, ...] = ()
    """Renamed files, `old => new`; at most 10, of 160 characters."""
    files_renamed: int = 0
    """How many were renamed, as far as they were listed."""
    memory: TrackerMemory | None = None
    """For the next iteration."""
    went_on: bool = False
    """The iteration brought something new."""
    doubtful: bool = False
    """Nobody can tell whether that helps."""
    news: bool = False
    """It is doubtful, and the checks fail in a way that they never did."""
    unproven: bool = False
    """It is new work, and the checks do not show whether that helps."""
    idle: bool = False
    """It was in vain: no file changed, the tree was there before, or the checks got worse without new work."""


def similarity(lines_before: int, *, added: int, removed: int) -> float:
    """Return which part of the lines of two trees is common to both: 2 * common / (before + after), 0 to 1."""
    # The formula of difflib's `ratio`, over lines. Both numbers come from a diff, so that no text is compared again.
    common = max(lines_before - removed, 0)
    total = lines_before + common + added
    return 1.0 if total <= 0 else min(1.0, 2 * common / total)


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
