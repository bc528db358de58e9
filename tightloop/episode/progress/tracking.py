"""Models of the tracker."""

from datetime import timedelta
from enum import StrEnum

from tightloop.episode.progress.work import Touched
from tightloop.value import Value


class ProbabilityClass(StrEnum):
    """Probability that an iteration serves the goal."""

    HIGH = "HIGH"
    """Continue as planned."""
    MEDIUM = "MEDIUM"
    """Reflect before continuing."""
    LOW = "LOW"
    """Ask a person if the next iteration is LOW too."""


class ReasonKind(StrEnum):
    """Kind of a reason for a probability class."""

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


class Reason(Value):
    """One reason for the class, with the class that it implies on its own."""

    kind: ReasonKind
    implies: ProbabilityClass
    detail: str = ""


class Spending(Value):
    """Amounts that were spent up to a point in time, or between two points in time."""

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
    progress: bool = False
    """True if fewer or other tests fail, or there is new work."""
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


class Thresholds(Value):
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


class ItemMemory(Value):
    """Remembered action item, with its status."""

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
    known: Touched = Touched.model_construct()
    """Marks of the files and lines that the episode has changed."""
    failing: tuple[str, ...] = ()
    """Marks of the sets of failing tests, oldest first."""
    lowest: tuple[float, ...] = ()
    """Lowest value of each number that the failing checks printed."""
    errors: tuple[str, ...] = ()
    """Signatures of the failures at the end of the last iterations, oldest first.

    An empty text means that all checks passed.
    """
    no_change: int = 0
    unmoved: int = 0
    """Number of iterations since the checks last improved."""
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
    """Number of renamed files that could be listed."""
    memory: TrackerMemory | None = None
    """Memory for the next iteration."""
    progress: bool = False
    """True if fewer or other tests fail, or there is new work."""
    circles: bool = False
    """True if the files or the failures go back and forth between the same states."""


def similarity(lines_before: int, *, added: int, removed: int) -> float:
    """Return the line-based similarity of two trees: 2 * common / (before + after), from 0 to 1."""
    # Formula of difflib's `ratio`, over lines. Both counts come from a diff, so no text is compared again.
    common = max(lines_before - removed, 0)
    total = lines_before + common + added
    return 1.0 if total <= 0 else min(1.0, 2 * common / total)
