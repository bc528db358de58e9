"""Rules for the probability class of a change."""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from tightloop.episode.progress.tracking import (
    ProbabilityClass,
    Reason,
    ReasonKind,
    Spending,
    Thresholds,
    TrackingFacts,
)
from tightloop.value import format_count, shorten

RULES = "deviation/6"
"""Version of the rules, stored with each class. Update it whenever the rules change."""
NAMES_LISTED = 5
DETAIL_CHARACTERS = 200

_HIGH, _MEDIUM, _LOW = ProbabilityClass.HIGH, ProbabilityClass.MEDIUM, ProbabilityClass.LOW
_ORDER = (_LOW, _MEDIUM, _HIGH)

Rule = Callable[[TrackingFacts, Thresholds], Iterator[Reason]]


def classify(
    facts: TrackingFacts, thresholds: Thresholds = Thresholds.model_construct()
) -> tuple[ProbabilityClass, tuple[Reason, ...]]:
    """Classify an iteration based on the facts about it.

    Return the lowest class that any of the facts implies, and all reasons. The first reason is the ratio.
    """
    reasons = [reason for rule in EVERY_RULE for reason in rule(facts, thresholds)]
    lowered = lowest(reason.implies for reason in reasons)
    kinds = [reason.kind.value for reason in reasons if reason.implies is not _HIGH]
    if lowered is not _LOW and len(kinds) >= thresholds.reasons_low:
        lowered = _LOW
        reasons.append(_reason(ReasonKind.COMBINATION, _LOW, f"{len(kinds)} reasons together: {', '.join(kinds)}"))
    return lowered, tuple(reasons)


def lowest(classes: Iterable[ProbabilityClass]) -> ProbabilityClass:
    """Return the lowest class, or HIGH if there are no classes."""
    return min(classes, key=_ORDER.index, default=_HIGH)


def class_of_ratio(ratio: float, thresholds: Thresholds = Thresholds.model_construct()) -> ProbabilityClass:
    """Return the class that a ratio belongs to."""
    if ratio >= thresholds.high_from:
        return _HIGH
    return _MEDIUM if ratio >= thresholds.medium_from else _LOW


def spending_class(spent: Spending, thresholds: Thresholds) -> tuple[ProbabilityClass, str]:
    """Classify an iteration by the amount spent since progress was last made.

    Return the class, and the exceeded thresholds as text.
    """
    hours = spent.wall_time / timedelta(hours=1)
    amounts = (
        (spent.iterations, thresholds.iterations_per_progress, f"{format_count(spent.iterations, 'iteration')}"),
        (spent.tokens, thresholds.tokens_per_progress, f"{spent.tokens} tokens"),
        (spent.cost_usd, thresholds.cost_usd_per_progress, f"{spent.cost_usd:.2f} USD"),
        (hours, thresholds.hours_per_progress, f"{hours:.1f} hours"),
    )
    over = [(amount / bound, label) for amount, bound, label in amounts if bound is not None and amount >= bound]
    if not over:
        return _HIGH, ""
    worst = max(share for share, _ in over)
    return (_LOW if worst >= thresholds.cost_low_factor else _MEDIUM), ", ".join(label for _, label in over)


def _reason(kind: ReasonKind, implies: ProbabilityClass, detail: str) -> Reason:
    return Reason(kind=kind, implies=implies, detail=shorten(detail, DETAIL_CHARACTERS))


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join(sorted(names)[:NAMES_LISTED])


def _change(facts: TrackingFacts, thresholds: Thresholds) -> Iterator[Reason]:
    """Yield the reasons that concern changes to the tree and the checks."""
    implied = class_of_ratio(facts.ratio, thresholds)
    # A rewrite that improves the checks is not lost work, but large enough to reflect on.
    if facts.made_progress and implied is _LOW:
        implied = _MEDIUM
    # The ratio cannot distinguish growth from replacement: new files lower it although every old line is kept.
    if implied is not _HIGH and facts.lines_kept is not None and facts.lines_kept >= thresholds.growth_keeps:
        announced = facts.scope_announced and not facts.out_of_scope
        implied = _HIGH if announced or facts.made_progress else _MEDIUM
    yield _reason(ReasonKind.RATIO, implied, f"{facts.ratio:.3f} of the tree is unchanged")
    # A claim confirmed by passing checks needs no change: there was nothing left to do.
    if facts.executor_changed_nothing and not (facts.green and facts.claimed_done):
        again = facts.no_change_streak
        implied = _LOW if again >= thresholds.no_change_low else _MEDIUM
        times = f", {again} times in a row" if again > 1 else ""
        yield _reason(ReasonKind.NO_CHANGE, implied, f"the executor did not change any files{times}")
    if facts.newly_failing:
        # A long change breaks several checks before it repairs them.
        implied = _MEDIUM if facts.progress else _LOW
        yield _reason(ReasonKind.NEWLY_FAILING, implied, f"newly failing: {_list_names(facts.newly_failing)}")


def _plan_reasons(facts: TrackingFacts, thresholds: Thresholds) -> Iterator[Reason]:
    """Yield the reasons that are based on open action items and on files outside the plan's scope."""
    excused = facts.made_progress or facts.green
    if facts.out_of_scope:
        share = facts.out_of_scope_share
        of_the_change = "" if share is None else f" ({share:.0%} of the change)"
        implied = _MEDIUM if share is None or share >= thresholds.scope_share_medium else _HIGH
        if share is not None and share >= thresholds.scope_share_low and not excused:
            implied = _LOW
        detail = (
            f"{format_count(len(facts.out_of_scope), 'file')} outside the plan{of_the_change}: "
            f"{_list_names(facts.out_of_scope)}"
        )
        yield _reason(ReasonKind.OUT_OF_SCOPE, implied, detail)
    going_on = facts.made_progress or facts.progress
    # While the work advances, items may wait for their turn.
    patience = 2 if going_on else 1
    if facts.open_items and facts.open_for >= thresholds.open_items_medium * patience:
        excused = going_on or facts.green
        implied = _LOW if facts.open_for >= thresholds.open_items_low and not excused else _MEDIUM
        detail = f"no work was done on action items for {facts.open_for} iterations: {_list_names(facts.open_items)}"
        yield _reason(ReasonKind.OPEN_ITEMS, implied, detail)


def _repetition(facts: TrackingFacts, thresholds: Thresholds) -> Iterator[Reason]:
    """Yield the reasons that concern repetition. Progress excuses a repetition, but not a cycle."""
    stuck = not (facts.made_progress or facts.progress)
    # Without a change the tree is always the previous one; NO_CHANGE already covers that.
    if stuck and facts.tree_seen_before and not facts.executor_changed_nothing:
        yield _reason(ReasonKind.SAME_TREE_AGAIN, _MEDIUM, "the tree was in exactly this state before")
    if stuck and facts.error_count >= 2:
        implied = _LOW if facts.error_count >= thresholds.same_error_low else _MEDIUM
        detail = f"the checks failed in the same way {facts.error_count} times in a row"
        yield _reason(ReasonKind.SAME_ERROR_AGAIN, implied, detail)
    elif stuck and facts.error_seen_before:
        detail = "the checks fail again in a way that was already fixed"
        yield _reason(ReasonKind.SAME_ERROR_AGAIN, _MEDIUM, detail)
    if stuck and facts.plan_seen_before:
        yield _reason(ReasonKind.SAME_PLAN_AGAIN, _MEDIUM, "the same plan was already carried out")
    if facts.alternates:
        yield _reason(ReasonKind.ALTERNATION, _LOW, "the tree keeps going back and forth between the same states")
    elif facts.errors_alternate:
        yield _reason(ReasonKind.ALTERNATION, _LOW, "the checks keep going back and forth between the same failures")


def _waste(facts: TrackingFacts, thresholds: Thresholds) -> Iterator[Reason]:
    """Yield the reasons that concern false claims, unfinished work and spending without progress."""
    stuck = not (facts.made_progress or facts.progress)
    if stuck and facts.claimed_done and facts.checks_failed:
        detail = f"the planner claims that the goal is met, but {format_count(facts.checks_failed, 'check')} failed"
        yield _reason(ReasonKind.FALSE_CLAIM, _MEDIUM, detail)
    if facts.outcome_unknown:
        yield _reason(ReasonKind.OUTCOME_UNKNOWN, _MEDIUM, "the executor's last action is unknown")
    elif stuck and facts.executor_failed:
        yield _reason(ReasonKind.EXECUTOR_FAILED, _MEDIUM, "the executor did not finish its work")
    if not facts.made_progress and not facts.green:
        implied, excess = spending_class(facts.since_progress, thresholds)
        # New work that no check measures yet may be expensive and still right.
        if facts.progress and implied is _LOW:
            implied = _MEDIUM
        if excess:
            yield _reason(ReasonKind.COST, implied, f"no check improved for {excess}")


# The first reason of a class is the ratio, so `_change` comes first.
EVERY_RULE: tuple[Rule, ...] = (_change, _plan_reasons, _repetition, _waste)
