"""Derives the facts of an iteration from its results and from what is remembered of earlier ones."""

import hashlib
import re
from collections.abc import Iterable

from tightloop.episode.budget import Spent
from tightloop.episode.check import CheckReport, CheckResult, Verification
from tightloop.episode.failure import LONGEST_CIRCLE, NUMBERS_LIMIT, goes_round, signature, without_noise
from tightloop.episode.progress.tracking import ItemMemory, Spending, TrackerMemory, TrackingFacts
from tightloop.episode.progress.work import Work
from tightloop.executor.messages.message import PlanMessage
from tightloop.executor.model import ExecutorReport, ExecutorStatus
from tightloop.safety.scope import announced, files_in, outside
from tightloop.value import Value

# Two rounds of the longest circle that `goes_round` recognises.
REMEMBERED = 2 * LONGEST_CIRCLE
ERRORS_REMEMBERED = 4 * LONGEST_CIRCLE
ITEMS_REMEMBERED = 12
FILES_NAMED = 20
MARK = 12
"""Characters of a signature that are remembered."""
BOTH_WAYS = 2
PROGRESS = "+"
"""Before the signature of an error that was left after progress."""
UNFINISHED = frozenset({ExecutorStatus.FAILED, ExecutorStatus.TIMED_OUT, ExecutorStatus.REFUSED})

_LEAVE = re.compile(r"\b(?:do not|don't|never|avoid|without|leave|keep|instead of|no longer)\b", re.IGNORECASE)


class ChangedFile(Value):
    """A changed file, and how many lines of it."""

    path: str
    was: str = ""
    """Its path before, if it was renamed."""
    lines: int = 0


class Iteration(Value):
    """What is known at the end of an iteration, besides the trees."""

    spent: Spent = Spent()
    roots: tuple[str, ...] = ()
    """Absolute paths of the working tree, as a plan may name it."""
    changed: tuple[ChangedFile, ...] = ()
    files_changed: int = 0
    """May be more than are listed in `changed`."""
    work: Work = Work.AGAIN
    touched: str = ""
    """What is remembered of the lines that were touched, with this change."""
    tree_seen_before: bool = False
    plan: PlanMessage | None = None
    """The plan that was delivered, or that claims that nothing is left to do."""
    items: tuple[str, ...] = ()
    """Action items that were given before the plan was made."""
    claimed_done: bool = False
    report: ExecutorReport | None = None
    """None: nothing was delivered."""
    obeyed: bool = False
    """A person denied the executor something in this iteration."""
    verification: Verification | None = None
    checks: CheckReport | None = None


class _Count(Value):
    """What the failing checks count."""

    numbers: tuple[float, ...] = ()
    ways: tuple[int, ...] = ()
    """As in the memory."""
    better: bool = False
    """Whether a number went on in the one way that it goes, and nothing says that this way is bad."""
    worse: bool = False
    """Whether a number went in its bad way, and none in a good one."""


def mark(*parts: str) -> str:
    """Return a short signature of a text, for the memory."""
    return signature(*parts)[:MARK]


def reset_counts(memory: TrackerMemory | None, spent: Spent, *, keep_plans: bool = False) -> TrackerMemory:
    """Return the memory after a person stepped in: what is counted towards a class starts at zero."""
    plans = memory.plans if memory and keep_plans else ()
    touched = memory.touched if memory and not keep_plans else ""
    return TrackerMemory(plans=plans, touched=touched, at_progress=spending(spent))


def spending(spent: Spent) -> Spending:
    """Return the part of what was spent that the tracker looks at."""
    return Spending(
        iterations=spent.iterations, tokens=spent.tokens, cost_usd=spent.cost_usd, wall_time=spent.wall_time
    )


def observe(memory: TrackerMemory | None, iteration: Iteration) -> tuple[TrackingFacts, TrackerMemory]:
    """Return what classifies an iteration, without the trees, and the memory for the next iteration."""
    # An episode older than the memory is not charged for what it spent before.
    before = memory or TrackerMemory(at_progress=Spending() if iteration.spent.iterations <= 1 else None)
    verification, report = iteration.verification, iteration.report
    ran = verification is not None
    scope = _outside(iteration)
    count = _count(before, iteration)
    went_on = _went_on(before, iteration, count)
    reported = TrackingFacts(
        files_changed=iteration.files_changed,
        executor_changed_nothing=report is not None and iteration.files_changed == 0,
        checks_failed=verification.failed_count if verification and verification.total else None,
        newly_failing=verification.newly_failing if verification else (),
        made_progress=verification is not None and verification.progress,
        work=iteration.work,
        went_on=went_on,
        tree_seen_before=iteration.tree_seen_before,
        claimed_done=iteration.claimed_done,
        outcome_unknown=report is not None and report.status is ExecutorStatus.OUTCOME_UNKNOWN,
        executor_failed=report is not None and report.status in UNFINISHED and not iteration.obeyed,
        scope_announced=scope is not None,
        out_of_scope=scope[0] if scope else (),
        out_of_scope_share=scope[1] if scope else None,
    )
    errors = _errors(before, verification, went_on=went_on)
    same_error = ran and _times(errors) > 1
    items = _judge_items(before, iteration)
    # An item about a check that keeps failing in the same way is the same error, which has a reason of its own.
    still_open = {text: item for text, item in items.items() if item.rounds and not (item.about and same_error)}
    # The number and the reflection of a plan do not matter: the same steps are the same plan.
    steps = iteration.plan.steps if iteration.plan and iteration.report else ()
    told = "\n".join(f"{step.title}\n{' '.join(step.run)}" for step in steps)
    # "Part 9" and "part 10" are two plans.
    plan = (
        hashlib.sha256(without_noise(told, numbers=False).encode("utf-8", "replace")).hexdigest()[:MARK] if told else ""
    )
    now = spending(iteration.spent)
    # Another failure alone is not worth what it cost.
    settled = reported.green or (went_on and (iteration.work is Work.NEW or reported.made_progress or count.better))
    baseline = now if settled or before.at_progress is None else before.at_progress
    was_carried_out = report is not None and report.succeeded
    after = TrackerMemory(
        plans=(*before.plans, plan)[-REMEMBERED:] if plan and was_carried_out else before.plans,
        touched=iteration.touched,
        numbers=count.numbers,
        ways=count.ways,
        errors=errors,
        no_change=before.no_change if report is None else (before.no_change + 1) * (iteration.files_changed == 0),
        items=tuple({item.mark: item for item in items.values()}.values()),
        at_progress=baseline,
    )
    facts = reported.evolve(
        no_change_streak=after.no_change,
        open_items=tuple(still_open),
        open_for=max((item.rounds for item in still_open.values()), default=0),
        error_count=_times(errors) if ran else 0,
        error_seen_before=ran and _came_back(errors),
        errors_alternate=ran and not reported.green and not went_on and goes_round(errors),
        plan_seen_before=bool(plan) and plan in before.plans,
        since_progress=now.since(baseline),
    )
    return facts, after


def _went_on(before: TrackerMemory, iteration: Iteration, count: _Count) -> bool:
    """Return whether the iteration brought something that was not there before."""
    verification = iteration.verification
    known = verification is None or verification.same or verification.signature[:MARK] in _plain(before.errors)
    if verification is not None and verification.progress and not known:
        return True
    if iteration.files_changed == 0 or iteration.tree_seen_before:
        return False
    if count.better:
        return True
    if iteration.work is Work.NOTHING or count.worse or (verification is not None and verification.regress):
        return False
    return iteration.work is Work.NEW or not known


def _plain(errors: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(error.removeprefix(PROGRESS) for error in errors)


def _count(before: TrackerMemory, iteration: Iteration) -> _Count:
    if iteration.checks is None:
        return _Count(numbers=before.numbers, ways=before.ways)
    printed = [result.printed for result in iteration.checks.failed]
    numbers = tuple(number for each in printed for number in each.numbers)[:NUMBERS_LIMIT]
    good = tuple(way for each in printed for way in each.better)[:NUMBERS_LIMIT]
    if len(numbers) != len(before.numbers) or len(before.ways) != len(numbers):
        return _Count(numbers=numbers, ways=(0,) * len(numbers))
    steps = [(now > earlier) - (now < earlier) for now, earlier in zip(numbers, before.numbers, strict=True)]
    told = list(zip(steps, before.ways, good, strict=True))
    return _Count(
        numbers=numbers,
        ways=tuple(way if not step or way == step else step if not way else BOTH_WAYS for step, way, _ in told),
        # Where nobody says which way is good, a number has to go the same way twice.
        better=any(
            step and (step == better == (way or step) or (not better and step == way)) for step, way, better in told
        ),
        worse=any(step and step == -better for step, _, better in told)
        and not any(step and step == better for step, _, better in told),
    )


def _errors(before: TrackerMemory, verification: Verification | None, *, went_on: bool) -> tuple[str, ...]:
    if verification is None:
        return before.errors
    mark = "" if verification.green else verification.signature[:MARK]
    # What is left after progress is not yet the same error again: the first fruitless iteration counts as the first.
    return (*before.errors, f"{PROGRESS}{mark}" if mark and went_on else mark)[-ERRORS_REMEMBERED:]


def _times(errors: tuple[str, ...]) -> int:
    last = errors[-1] if errors else ""
    count = 0
    while last and count < len(errors) and errors[-1 - count] == last:
        count += 1
    return count


def _came_back(errors: tuple[str, ...]) -> bool:
    last = errors[-1] if errors else ""
    return bool(last) and len(errors) > 2 and errors[-2].removeprefix(PROGRESS) != last and last in errors[:-2]


def _outside(iteration: Iteration) -> tuple[tuple[str, ...], float | None] | None:
    """Return the files outside of the plan's scope and their share of the change; None where none was announced."""
    plan = iteration.plan
    patterns = announced(plan.scope, iteration.roots) if plan and iteration.report else ()
    if not patterns:
        return None
    # A renamed file counts by the better of its two names.
    strange = set(outside(patterns, (path for file in iteration.changed for path in (file.path, file.was) if path)))
    strangers = {file.path for file in iteration.changed if file.path in strange and (file.was or file.path) in strange}
    lines = sum(file.lines for file in iteration.changed)
    theirs = sum(file.lines for file in iteration.changed if file.path in strangers)
    # Binary and empty files have no lines; where nothing else changed, the share is one of files.
    total, part = (lines, theirs) if lines else (len(iteration.changed), len(strangers))
    return tuple(sorted(strangers))[:FILES_NAMED], round(part / total, 4) if strangers else None


def _judge_items(before: TrackerMemory, iteration: Iteration) -> dict[str, ItemMemory]:
    """Return the action items that can be judged, by their text, and what was done about them."""
    own = iteration.plan.reflection.action_items if iteration.plan else ()
    known = {item.mark: item for item in before.items}
    changed = tuple(file.path for file in iteration.changed)
    found: dict[str, ItemMemory] = {}
    for text in dict.fromkeys((*iteration.items, *own)):
        item = _judge_item(text, known.get(mark(text)), changed=changed, checks=iteration.checks)
        if item is not None and len(found) < ITEMS_REMEMBERED:
            found[text] = item
    return found


def _judge_item(
    text: str, earlier: ItemMemory | None, *, changed: tuple[str, ...], checks: CheckReport | None
) -> ItemMemory | None:
    """Say whether anything was done about an item; None where files and checks cannot tell."""
    rounds = earlier.rounds + 1 if earlier else 1
    check = _named_check(text, checks.results if checks else ())
    if check is not None:
        if check.passed:
            return ItemMemory(mark=mark(text), done=True)
        about = check.signature[:MARK]
        same = earlier is not None and earlier.about == about
        return ItemMemory(mark=mark(text), rounds=rounds if same else 1, about=about)
    files = files_in(text)
    # "Leave config.py alone" names a file that no change must follow.
    if not files or _LEAVE.search(text):
        return None
    if (earlier is not None and earlier.done) or len(outside(files, changed)) < len(changed):
        return ItemMemory(mark=mark(text), done=True)
    return ItemMemory(mark=mark(text), rounds=rounds)


def _named_check(text: str, results: Iterable[CheckResult]) -> CheckResult | None:
    """Return the check that an item wants to pass: the one with the longest name or command in it."""
    if not re.search(r"\b(?:pass|passes|green|succeeds?)\b", text, re.IGNORECASE):
        return None
    found = [result for result in results if any(name and name in text for name in (result.name, result.run))]
    return max(found, key=lambda result: len(result.name), default=None)
