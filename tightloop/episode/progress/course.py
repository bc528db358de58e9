"""Observation of an episode across its iterations."""

import hashlib
import re
import shlex
from collections.abc import Iterable

from tightloop.episode.budget import Spent
from tightloop.episode.check import CheckReport, CheckResult, Verification
from tightloop.episode.failure import (
    LONGEST_CIRCLE,
    NUMBERS_LIMIT,
    failure_type,
    goes_round,
    short_mark,
    signature,
    without_noise,
)
from tightloop.episode.progress.tracking import ItemMemory, Spending, Touched, TrackerMemory, TrackingFacts
from tightloop.executor.message import PlanMessage
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.safety.scope import files_in, list_scope_paths, outside
from tightloop.value import Value

# Two rounds of the longest cycle that `goes_round` recognises.
REMEMBERED = 2 * LONGEST_CIRCLE
ERRORS_REMEMBERED = 4 * LONGEST_CIRCLE
ITEMS_REMEMBERED = 12
FILES_NAMED = 20
TREMBLES = 0.01
"""Minimum relative decrease of a printed number that counts as progress."""
MARK = 12
"""Number of signature characters to remember."""
PROGRESS = "+"
"""Prefix for the signature of an error that was left behind after progress."""
UNFINISHED = frozenset({ExecutorStatus.FAILED, ExecutorStatus.TIMED_OUT, ExecutorStatus.REFUSED})

_LEAVE = re.compile(r"\b(?:do not|don't|never|avoid|without|leave|keep|instead of|no longer)\b", re.IGNORECASE)


class ChangedFile(Value):
    """Path and number of changed lines of a file."""

    path: str
    was: str = ""
    """Path before the file was renamed."""
    lines: int = 0


class Iteration(Value):
    """Facts about a completed iteration, excluding the trees."""

    spent: Spent = Spent.model_construct()
    roots: tuple[str, ...] = ()
    """Absolute paths of the working tree that a plan may use."""
    changed: tuple[ChangedFile, ...] = ()
    files_changed: int = 0
    """Total number of changed files, which may exceed the length of `changed`."""
    new_work: bool = False
    """True if the change contains new work: it touches a file for the first time, or adds lines that stay.

    See `work.py`.
    """
    touched: Touched = Touched.model_construct()
    """Marks of the touched files and lines, including those of this change."""
    tree_seen_before: bool = False
    plan: PlanMessage | None = None
    """The plan that was delivered, or that claims that nothing is left to do."""
    items: tuple[str, ...] = ()
    """Action items that were known before the plan was created."""
    claimed_done: bool = False
    report: ExecutorReport | None = None
    """The executor's report, or None if nothing was delivered."""
    obeyed: bool = False
    """True if a person denied the executor something in this iteration."""
    verification: Verification | None = None
    checks: CheckReport | None = None


def mark(*parts: str) -> str:
    """Return a short signature to store in the tracker's memory."""
    return signature(*parts)[:MARK]


def reset_counts(memory: TrackerMemory | None, spent: Spent, *, keep_plans: bool = False) -> TrackerMemory:
    """Reset the memory after a person has intervened.

    All counts that affect the class restart at zero.
    """
    # After a restore (`keep_plans`) the plans that led nowhere stay known, but their lines are undone.
    plans = memory.plans if memory and keep_plans else ()
    known = memory.known if memory and not keep_plans else Touched()
    return TrackerMemory(plans=plans, known=known, at_progress=spending(spent))


def spending(spent: Spent) -> Spending:
    """Convert an episode's spending to the amounts that the tracker uses."""
    return Spending(
        iterations=spent.iterations, tokens=spent.tokens, cost_usd=spent.cost_usd, wall_time=spent.wall_time
    )


def observe(memory: TrackerMemory | None, iteration: Iteration) -> tuple[TrackingFacts, TrackerMemory]:
    """Return the facts about an iteration, and the memory for the next iteration.

    The facts do not include comparisons of the trees.
    """
    # An episode that predates the memory is not charged for its earlier spending.
    before = memory or TrackerMemory(at_progress=Spending() if iteration.spent.iterations <= 1 else None)
    checks_moved = _have_checks_moved(before, iteration)
    is_new_work = iteration.new_work and not iteration.tree_seen_before and not _is_worse(iteration)
    facts = _collect_facts(iteration).evolve(progress=checks_moved or is_new_work)
    items = _judge_items(before, iteration)
    plan = _plan_mark(iteration)
    errors = _errors(before, iteration.verification, progress=facts.progress)
    now = spending(iteration.spent)
    after = TrackerMemory(
        # A plan that failed half-way may be delivered again without being a repetition.
        plans=(*before.plans, plan)[-REMEMBERED:] if plan and _carried_out(iteration) else before.plans,
        known=iteration.touched,
        failing=_failing(before, iteration),
        lowest=_lowest(before, iteration),
        errors=errors,
        # Without a delivery nothing could change, so the streak neither grows nor ends.
        no_change=(before.no_change + 1) * (iteration.files_changed == 0) if iteration.report else before.no_change,
        unmoved=0 if facts.green or checks_moved else before.unmoved + 1,
        items=tuple({item.mark: item for item in items.values()}.values()),
        at_progress=now if facts.green or facts.progress or before.at_progress is None else before.at_progress,
    )
    ran = iteration.verification is not None
    # An item about a check that keeps failing in the same way is the same error, which has its own reason.
    same_error = ran and _times(errors) > 1
    still_open = {text: item for text, item in items.items() if item.rounds and not (item.about and same_error)}
    return facts.evolve(
        no_change_streak=after.no_change,
        open_items=tuple(still_open),
        open_for=max((item.rounds for item in still_open.values()), default=0),
        error_count=_times(errors) if ran else 0,
        error_seen_before=ran and _came_back(errors),
        errors_alternate=ran and not facts.green and not facts.progress and goes_round(_since_progress(errors)),
        plan_seen_before=bool(plan) and plan in before.plans,
        since_progress=now.since(after.at_progress or now),
    ), after


def _have_checks_moved(before: TrackerMemory, iteration: Iteration) -> bool:
    """Return True if the checks show progress.

    This is the case if fewer or different tests fail, or if a printed number reached a new low.
    """
    verification = iteration.verification
    # Without a changed file nothing moved, even if the checks pass.
    if verification is None or iteration.files_changed == 0:
        return False
    if verification.green:
        return True
    # Returning to a known failure regains a loss; it is no progress.
    is_known = verification.same or verification.signature[:MARK] in _plain(before.errors)
    if verification.progress and not is_known:
        return True
    if iteration.tree_seen_before or _is_worse(iteration):
        return False
    failing, numbers = _failing_tests(iteration), _numbers(iteration)
    is_lower = len(numbers) == len(before.lowest) and any(
        number < lowest * (1 - TREMBLES) for number, lowest in zip(numbers, before.lowest, strict=True)
    )
    return is_lower or (bool(failing) and bool(before.failing) and failing not in before.failing)


def _is_worse(iteration: Iteration) -> bool:
    """Return True if more checks or more tests fail than before.

    The number of failures is compared only for checks that report the number of tests. Longer output
    alone may just describe a new problem.
    """
    verification, checks = iteration.verification, iteration.checks
    if verification is None or checks is None:
        return False
    return bool(verification.newly_failing) or (
        verification.regress and any(result.counts.failed is not None for result in checks.failed)
    )


def _failing_tests(iteration: Iteration) -> str:
    """Return a signature of the failing tests, or "" if they are unknown.

    If a check does not name its tests, the type of the error is used.
    """
    failed = iteration.checks.failed if iteration.checks else ()
    names = [f"{result.run} {name}" for result in failed for name in result.failing or (failure_type(result.tail),)]
    return short_mark("\n".join(names)) if names else ""


def _numbers(iteration: Iteration) -> tuple[float, ...]:
    """Return the numbers in the output of the failing checks."""
    failed = iteration.checks.failed if iteration.checks else ()
    return tuple(number for result in failed for number in result.printed.numbers)[:NUMBERS_LIMIT]


def _lowest(before: TrackerMemory, iteration: Iteration) -> tuple[float, ...]:
    numbers = _numbers(iteration)
    # If the number of values has changed, their positions no longer correspond, so all of them start over.
    return tuple(map(min, numbers, before.lowest)) if len(numbers) == len(before.lowest) else numbers


def _failing(before: TrackerMemory, iteration: Iteration) -> tuple[str, ...]:
    failing = _failing_tests(iteration)
    return (*before.failing, failing)[-ERRORS_REMEMBERED:] if failing else before.failing


def _collect_facts(iteration: Iteration) -> TrackingFacts:
    """Collect the facts that depend only on this iteration."""
    verification, report = iteration.verification, iteration.report
    scope = _outside(iteration)
    return TrackingFacts(
        files_changed=iteration.files_changed,
        executor_changed_nothing=report is not None and iteration.files_changed == 0,
        checks_failed=verification.failed_count if verification and verification.total else None,
        newly_failing=verification.newly_failing if verification else (),
        made_progress=verification is not None and verification.progress,
        tree_seen_before=iteration.tree_seen_before,
        claimed_done=iteration.claimed_done,
        outcome_unknown=report is not None and report.status is ExecutorStatus.OUTCOME_UNKNOWN,
        executor_failed=report is not None and report.status in UNFINISHED and not iteration.obeyed,
        scope_announced=scope is not None,
        out_of_scope=scope[0] if scope else (),
        out_of_scope_share=scope[1] if scope else None,
    )


def _plan_mark(iteration: Iteration) -> str:
    """Return the plan's signature, or "" if nothing was delivered."""
    # Number and reflection of a plan do not matter: the same steps are the same plan.
    steps = iteration.plan.steps if iteration.plan and iteration.report else ()
    steps_text = "\n".join(f"{step.title}\n{' '.join(step.run)}" for step in steps)
    # "Part 9" and "part 10" are different plans.
    text = without_noise(steps_text, numbers=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:MARK] if steps_text else ""


def _carried_out(iteration: Iteration) -> bool:
    return iteration.report is not None and iteration.report.succeeded


def _plain(errors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(error.removeprefix(PROGRESS) for error in errors)


def _errors(before: TrackerMemory, verification: Verification | None, *, progress: bool) -> tuple[str, ...]:
    if verification is None:
        return before.errors
    error_mark = "" if verification.green else verification.signature[:MARK]
    # An error left after progress does not count as repeated: the first fruitless iteration is the first.
    return (*before.errors, f"{PROGRESS}{error_mark}" if error_mark and progress else error_mark)[-ERRORS_REMEMBERED:]


def _since_progress(errors: tuple[str, ...]) -> tuple[str, ...]:
    last = max((at for at, error in enumerate(errors) if error.startswith(PROGRESS)), default=-1)
    return errors[last + 1 :]


def _times(errors: tuple[str, ...]) -> int:
    last = errors[-1] if errors else ""
    count = 0
    # The prefix of progress makes a mark differ from the plain one, and so ends the count.
    while last and count < len(errors) and errors[-1 - count] == last:
        count += 1
    return count


def _came_back(errors: tuple[str, ...]) -> bool:
    last = errors[-1] if errors else ""
    # Directly after itself it is a repetition, which `_times` counts.
    return bool(last) and len(errors) > 2 and errors[-2].removeprefix(PROGRESS) != last and last in errors[:-2]


def _outside(iteration: Iteration) -> tuple[tuple[str, ...], float | None] | None:
    """Return the changed files outside the plan's scope, and the share of the change that they make up.

    Return None if the plan has no scope.
    """
    plan = iteration.plan
    patterns = list_scope_paths(plan.scope, iteration.roots) if plan and iteration.report else ()
    if not patterns:
        return None
    # A renamed file is judged by the better of its two names.
    strange = set(outside(patterns, (path for file in iteration.changed for path in (file.path, file.was) if path)))
    strangers = {file.path for file in iteration.changed if file.path in strange and (file.was or file.path) in strange}
    lines = sum(file.lines for file in iteration.changed)
    theirs = sum(file.lines for file in iteration.changed if file.path in strangers)
    # Binary and empty files have no lines; if nothing else changed, use the share of files.
    total, part = (lines, theirs) if lines else (len(iteration.changed), len(strangers))
    return tuple(sorted(strangers))[:FILES_NAMED], round(part / total, 4) if strangers else None


def _judge_items(before: TrackerMemory, iteration: Iteration) -> dict[str, ItemMemory]:
    """Return the status of each verifiable action item. The keys are the texts of the items."""
    plan_items = iteration.plan.reflection.action_items if iteration.plan else ()
    items_by_mark = {item.mark: item for item in before.items}
    changed = tuple(file.path for file in iteration.changed)
    result: dict[str, ItemMemory] = {}
    for text in dict.fromkeys((*iteration.items, *plan_items)):
        item = _judge_item(text, items_by_mark.get(mark(text)), changed=changed, checks=iteration.checks)
        if item is not None and len(result) < ITEMS_REMEMBERED:
            result[text] = item
    return result


def _judge_item(
    text: str, earlier: ItemMemory | None, *, changed: tuple[str, ...], checks: CheckReport | None
) -> ItemMemory | None:
    """Return the status of an action item, or None if the item cannot be verified."""
    rounds = earlier.rounds + 1 if earlier else 1
    check = _named_check(text, checks.results if checks else ())
    if check is not None:
        if check.passed:
            return ItemMemory(mark=mark(text), done=True)
        check_mark = check.signature[:MARK]
        # Another failure of the check means that something was done about the item.
        same = earlier is not None and earlier.about == check_mark
        return ItemMemory(mark=mark(text), rounds=rounds if same else 1, about=check_mark)
    files = files_in(text)
    # "Leave config.py alone" names a file without asking for a change.
    if not files or _LEAVE.search(text):
        return None
    # Done items stay done, because later iterations change other files.
    if (earlier is not None and earlier.done) or len(outside(files, changed)) < len(changed):
        return ItemMemory(mark=mark(text), done=True)
    return ItemMemory(mark=mark(text), rounds=rounds)


def _named_check(text: str, results: Iterable[CheckResult]) -> CheckResult | None:
    """Return the check that an action item refers to, or None.

    If several checks match, the check with the longest name is returned.
    """
    if not re.search(r"\b(?:pass|passes|green|succeeds?)\b", text, re.IGNORECASE):
        return None
    matching_checks = [result for result in results if any(name and name in text for name in (result.name, result.run))]
    # `pytest` is also a part of `pytest tests/unit`.
    return max(matching_checks, key=lambda result: len(result.name), default=None)


TITLE_CHARACTERS = 120
COMMAND_CHARACTERS = 300

_LINE = re.compile(
    r"^iteration (?P<iteration>\d+): (?P<title>.*?) -> checks (?P<before>\S+) -> (?P<after>\S+)"
    r"(?: \[(?P<command>.*)\])?(?P<same> \(no change\))?$"
)
_UNKNOWN = "-"


class HistoryEntry(Value):
    """An entry of the history, with the work done in an iteration and the result."""

    iteration: int
    title: str = ""
    command: str = ""
    """First command of the plan, as formatted by `command_text`. Empty if there was none."""
    before: str = _UNKNOWN
    """Number of passed checks out of the total before the iteration, such as `1/3`."""
    after: str = _UNKNOWN
    changed: bool = True
    """True if the tree changed."""


def one_line(text: str, limit: int) -> str:
    """Return the text on one line, truncated to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def command_text(command: Iterable[str]) -> str:
    """Return a command as one shell-quoted line, truncated to `COMMAND_CHARACTERS`."""
    return one_line(shlex.join(command), COMMAND_CHARACTERS)


def history_line(
    iteration: int, title: str, *, command: Iterable[str] = (), before: str = "", after: str = "", changed: bool
) -> str:
    """Return the history line of an iteration.

    For example: `iteration 3: Sort imports -> checks 1/3 -> 2/3 [isort .]`.
    """
    # The line is parsed again: a title must not contain the arrow that ends it.
    short_title = one_line(title.replace("->", "→"), TITLE_CHARACTERS)
    text = command_text(command)
    return (
        f"iteration {iteration}: {short_title} -> checks {_word(before)} -> {_word(after)}"
        + (f" [{text}]" if text else "")
        + ("" if changed else " (no change)")
    )


def parse_history_line(line: str) -> HistoryEntry | None:
    """Parse a line written by `history_line`. Return None for any other line."""
    match = _LINE.match(line.strip())
    if match is None:
        return None
    return HistoryEntry(
        iteration=int(match["iteration"]),
        title=match["title"],
        command=match["command"] or "",
        before=match["before"],
        after=match["after"],
        changed=match["same"] is None,
    )


def parse_history(lines: Iterable[str]) -> tuple[HistoryEntry, ...]:
    """Parse the lines written by `history_line`, in order. Other lines are skipped."""
    return tuple(entry for line in lines if (entry := parse_history_line(line)) is not None)


def _word(text: str) -> str:
    return "".join(text.split()) or _UNKNOWN
