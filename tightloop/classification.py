"""The rules that turn what was measured of an iteration into its class, each with its reason.

Every rule looks at the facts alone and gives at most one reason; the class is the lowest that any reason
implies. A fact that speaks against an iteration never raises its class, and the order of things does not
matter. What excuses: checks that got better excuse a repetition, never a circle or a broken check.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta

from tightloop.tracking import ProbabilityClass, Reason, ReasonKind, Spending, Thresholds, TrackingFacts
from tightloop.value import shorten

RULES = "deviation/2"
NAMES_LISTED = 5
DETAIL_CHARACTERS = 200

_HIGH, _MEDIUM, _LOW = ProbabilityClass.HIGH, ProbabilityClass.MEDIUM, ProbabilityClass.LOW
_ORDER = (_LOW, _MEDIUM, _HIGH)

Rule = Callable[[TrackingFacts, Thresholds], Reason | None]


def classify(
    facts: TrackingFacts, thresholds: Thresholds = Thresholds()
) -> tuple[ProbabilityClass, tuple[Reason, ...]]:
    """Return the lowest class that any reason implies, with all reasons; the first one is the ratio."""
    reasons = [reason for rule in EVERY_RULE if (reason := rule(facts, thresholds)) is not None]
    together = _combination(reasons, thresholds)
    if together is not None:
        reasons.append(together)
    return lowest(reason.implies for reason in reasons), tuple(reasons)


def lowest(classes: Iterable[ProbabilityClass]) -> ProbabilityClass:
    """Return the lowest class; HIGH where there is none."""
    return min(classes, key=_ORDER.index, default=_HIGH)


def class_of_ratio(ratio: float, thresholds: Thresholds = Thresholds()) -> ProbabilityClass:
    """Map a ratio to its class."""
    if ratio >= thresholds.high_from:
        return _HIGH
    return _MEDIUM if ratio >= thresholds.medium_from else _LOW


def spending_class(spent: Spending, thresholds: Thresholds) -> tuple[ProbabilityClass, str]:
    """Return the class of what was spent without progress, and what reached its bound in words."""
    hours = spent.wall_time / timedelta(hours=1)
    amounts = (
        (spent.iterations, thresholds.iterations_per_progress, f"{spent.iterations} iterations"),
        (spent.tokens, thresholds.tokens_per_progress, f"{spent.tokens} tokens"),
        (spent.cost_usd, thresholds.cost_usd_per_progress, f"{spent.cost_usd:.2f} USD"),
        (hours, thresholds.hours_per_progress, f"{hours:.1f} hours"),
    )
    over = [(amount / bound, words) for amount, bound, words in amounts if bound is not None and amount >= bound]
    if not over:
        return _HIGH, ""
    worst = max(share for share, _ in over)
    return (_LOW if worst >= thresholds.cost_low_factor else _MEDIUM), ", ".join(words for _, words in over)


def _reason(kind: ReasonKind, implies: ProbabilityClass, detail: str) -> Reason:
    return Reason(kind=kind, implies=implies, detail=shorten(detail, DETAIL_CHARACTERS))


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(sorted(names)[:NAMES_LISTED])


def _ratio(facts: TrackingFacts, thresholds: Thresholds) -> Reason:
    implied = class_of_ratio(facts.ratio, thresholds)
    if facts.made_progress and implied is _LOW:
        implied = _MEDIUM
    if implied is not _HIGH and facts.lines_kept is not None and facts.lines_kept >= thresholds.growth_keeps:
        announced = facts.scope_announced and not facts.out_of_scope
        implied = _HIGH if announced or facts.made_progress else _MEDIUM
    return _reason(ReasonKind.RATIO, implied, f"{facts.ratio:.3f} of the tree is unchanged")


def _no_change(facts: TrackingFacts, thresholds: Thresholds) -> Reason | None:
    if not facts.executor_changed_nothing or (facts.green and facts.claimed_done):
        return None
    again = facts.no_change_streak
    implied = _LOW if again >= thresholds.no_change_low else _MEDIUM
    times = f", {again} times in a row" if again > 1 else ""
    return _reason(ReasonKind.NO_CHANGE, implied, f"the executor changed no file{times}")


def _newly_failing(facts: TrackingFacts, _: Thresholds) -> Reason | None:
    if not facts.newly_failing:
        return None
    return _reason(ReasonKind.NEWLY_FAILING, _LOW, f"newly failing: {_named(facts.newly_failing)}")


def _out_of_scope(facts: TrackingFacts, thresholds: Thresholds) -> Reason | None:
    if not facts.out_of_scope:
        return None
    share = facts.out_of_scope_share
    of_the_change = "" if share is None else f" ({share:.0%} of the change)"
    detail = f"{len(facts.out_of_scope)} files outside the plan{of_the_change}: {_named(facts.out_of_scope)}"
    if share is not None and share >= thresholds.scope_share_low and not (facts.made_progress or facts.green):
        return _reason(ReasonKind.OUT_OF_SCOPE, _LOW, detail)
    much = share is None or share >= thresholds.scope_share_medium
    return _reason(ReasonKind.OUT_OF_SCOPE, _MEDIUM if much else _HIGH, detail)


def _open_items(facts: TrackingFacts, thresholds: Thresholds) -> Reason | None:
    patience = 2 if facts.made_progress else 1
    if not facts.open_items or facts.open_for < thresholds.open_items_medium * patience:
        return None
    grave = facts.open_for >= thresholds.open_items_low and not (facts.made_progress or facts.green)
    detail = f"nothing was done about action items for {facts.open_for} iterations: {_named(facts.open_items)}"
    return _reason(ReasonKind.OPEN_ITEMS, _LOW if grave else _MEDIUM, detail)


def _same_tree(facts: TrackingFacts, _: Thresholds) -> Reason | None:
    if not facts.tree_seen_before or facts.executor_changed_nothing or facts.made_progress:
        return None
    return _reason(ReasonKind.SAME_TREE_AGAIN, _MEDIUM, "the tree was exactly like this before")


def _same_error(facts: TrackingFacts, thresholds: Thresholds) -> Reason | None:
    if facts.made_progress:
        return None
    if facts.error_count >= 2:
        implied = _LOW if facts.error_count >= thresholds.same_error_low else _MEDIUM
        detail = f"the checks failed in the same way {facts.error_count} times in a row"
        return _reason(ReasonKind.SAME_ERROR_AGAIN, implied, detail)
    if facts.error_seen_before:
        detail = "the checks fail again in a way that had been mended"
        return _reason(ReasonKind.SAME_ERROR_AGAIN, _MEDIUM, detail)
    return None


def _same_plan(facts: TrackingFacts, _: Thresholds) -> Reason | None:
    if not facts.plan_seen_before or facts.made_progress:
        return None
    return _reason(ReasonKind.SAME_PLAN_AGAIN, _MEDIUM, "the same plan was carried out before")


def _alternation(facts: TrackingFacts, _: Thresholds) -> Reason | None:
    if facts.alternates:
        return _reason(ReasonKind.ALTERNATION, _LOW, "the tree goes back and forth between the same states")
    if facts.errors_alternate:
        return _reason(ReasonKind.ALTERNATION, _LOW, "the checks go back and forth between the same failures")
    return None


def _false_claim(facts: TrackingFacts, _: Thresholds) -> Reason | None:
    if not facts.claimed_done or not facts.checks_failed or facts.made_progress:
        return None
    return _reason(
        ReasonKind.FALSE_CLAIM, _MEDIUM, f"the planner calls the goal met, {facts.checks_failed} checks fail"
    )


def _executor(facts: TrackingFacts, _: Thresholds) -> Reason | None:
    if facts.outcome_unknown:
        return _reason(ReasonKind.OUTCOME_UNKNOWN, _MEDIUM, "what the executor did last is not known")
    if facts.executor_failed and not facts.made_progress:
        return _reason(ReasonKind.EXECUTOR_FAILED, _MEDIUM, "the executor did not finish its work")
    return None


def _cost(facts: TrackingFacts, thresholds: Thresholds) -> Reason | None:
    if facts.made_progress or facts.green:
        return None
    implied, words = spending_class(facts.since_progress, thresholds)
    return _reason(ReasonKind.COST, implied, f"no check got better for {words}") if words else None


EVERY_RULE: tuple[Rule, ...] = (
    _ratio,
    _no_change,
    _newly_failing,
    _out_of_scope,
    _open_items,
    _same_tree,
    _same_error,
    _same_plan,
    _alternation,
    _false_claim,
    _executor,
    _cost,
)


def _combination(reasons: list[Reason], thresholds: Thresholds) -> Reason | None:
    kinds = [reason.kind.value for reason in reasons if reason.implies is not _HIGH]
    if len(kinds) < thresholds.reasons_low or any(reason.implies is _LOW for reason in reasons):
        return None
    return _reason(ReasonKind.COMBINATION, _LOW, f"{len(kinds)} reasons together: {', '.join(kinds)}")
