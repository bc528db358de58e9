"""Models of the tracker, and detection of new work in a change."""

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum

from tightloop.episode.failure import short_mark
from tightloop.safety.change.patch import FilePatch
from tightloop.value import Value

SAMPLE = 60
"""Maximum number of lines to remember per change. Larger changes are represented by a stable sample."""
LINES_REMEMBERED = 6 * SAMPLE
FILES_REMEMBERED = 400
_MARK = 4

_COMMENT = re.compile(
    r"^(?:#(?!\s*(?:include|define|undef|if|ifdef|ifndef|else|elif|endif|pragma|error)\b)|//|--\s|/\*|\*(?:\s|/|$)|<!--)"
)
_REMARK = re.compile(r"\s(?:#|//)\s.*$")
_PROSE = re.compile(r"\.(?:txt|md|rst|adoc)$", re.IGNORECASE)
_TEST = re.compile(r"(?:^|[/_.-])(?:tests?|specs?)(?:[/_.-]|$)|Test\w*\.\w+$")
_SPACE = re.compile(r"(?<=\W) | (?=\W)")
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


class Touched(Value):
    """Hashes of the files and lines that an episode has changed.

    The hashes are ordered from oldest to newest. If there are too many, the oldest are dropped.
    """

    files: str = ""
    lines: str = ""


def find_new_work(files: Iterable[FilePatch], touched: Touched) -> tuple[bool, Touched]:
    """Return whether a change contains new work, and the updated marks.

    A change is new work if it touches a file for the first time. It is also new work if it adds more new lines than it
    removes of the episode's earlier lines. Removing a line of the original project counts the same as adding a line.
    Comments, white space and moved lines are ignored. Repeated changes to the numbers in a line count once.
    """
    known_files, known_lines = _split(touched.files), _split(touched.lines)
    changed, new, undone = set[str](), set[str](), set[str]()
    for file in files:
        added, removed = _changed_lines(file)
        if not (added or removed):
            continue
        changed.add(short_mark(file.path))
        new |= _marks(file, added | removed) - known_lines
        undone |= _marks(file, (line for line in removed if not _is_extended(line, added))) & known_lines
    is_new = bool(changed - known_files) or len(new) > len(undone)
    # Sorted, because the order of a set of strings differs between processes, and a retry must give the same.
    return is_new, Touched(
        files=_join(touched.files, changed - known_files, FILES_REMEMBERED),
        lines=_join(touched.lines, new, LINES_REMEMBERED),
    )


def is_test(path: str) -> bool:
    """Return whether a file is part of the tests."""
    return bool(_TEST.search(path))


def _changed_lines(file: FilePatch) -> tuple[set[str], set[str]]:
    """Return the added and removed lines.

    Comments, white space and moved lines are ignored.
    """
    added, removed = (
        Counter(filter(None, (_bare(file.path, line) for line in lines.texts))) for lines in (file.added, file.removed)
    )
    added, removed = added - removed, removed - added
    # Creating, deleting or renaming a file is a change even without lines.
    whole = {""} if file.was or file.new or file.deleted or not (file.added or file.removed) else set[str]()
    # Lines that differ only in their numbers are the same line.
    shapes = {_DIGITS.sub("#", line) for line in added} & {_DIGITS.sub("#", line) for line in removed}
    kept = {line for line in added if _DIGITS.sub("#", line) not in shapes}
    return kept | shapes | whole, {line for line in removed if _DIGITS.sub("#", line) not in shapes}


def _bare(path: str, line: str) -> str:
    text = line.strip()
    if not _PROSE.search(path):
        text = "" if _COMMENT.match(text) else _REMARK.sub("", text)
    return _SPACE.sub("", " ".join(text.split()))


def _is_extended(line: str, added: Iterable[str]) -> bool:
    words = set(_WORD.findall(line))
    return any(words < set(_WORD.findall(longer)) for longer in added)


def _marks(file: FilePatch, lines: Iterable[str]) -> set[str]:
    # Sorted, so that the sample of a large change is the same every time.
    return set(sorted({short_mark(f"{file.path}\n{line}") for line in lines})[:SAMPLE])


def _split(marks: str) -> set[str]:
    return {marks[at : at + _MARK] for at in range(0, len(marks), _MARK)}


def _join(marks: str, more: set[str], most: int) -> str:
    return (marks + "".join(sorted(more)))[-most * _MARK :]


class ProbabilityClass(StrEnum):
    """Probability that an iteration contributes to the goal."""

    HIGH = "HIGH"
    """Continue as planned."""
    MEDIUM = "MEDIUM"
    """Reflect before continuing."""
    LOW = "LOW"
    """Ask a person if the next iteration is LOW too."""


class ReasonKind(StrEnum):
    """The kinds of reasons for a probability class."""

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
    """A reason for a probability class, with the class that the reason implies."""

    kind: ReasonKind
    implies: ProbabilityClass
    detail: str = ""


class Spending(Value):
    """Amounts spent in total, or since an earlier point in time."""

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
    """Measurements of an iteration, used as the input to `classify`."""

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
    """Thresholds of the probability classes.

    They were calibrated with `tests/data/deviation/calibrate.py`.
    """

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
    """Action item from an earlier iteration, with its status."""

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
