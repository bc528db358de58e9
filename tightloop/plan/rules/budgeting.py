"""Budgets within budgets, and the bounds with which a plan continues under a new revision."""

from collections.abc import Iterator
from typing import Any

from tightloop.plan.document.plan import PlanBudget


def bounded(budget: PlanBudget, cost_usd: float | None, tokens: int | None) -> PlanBudget:
    """Return a budget with at most this cost and this number of tokens."""
    return budget.evolve(max_cost_usd=least(budget.max_cost_usd, cost_usd), max_tokens=least(budget.max_tokens, tokens))


def narrowest(budget: PlanBudget, bound: PlanBudget) -> PlanBudget:
    """Return the lower bound of each kind."""
    fields = PlanBudget.model_fields
    return PlanBudget(**{name: least(getattr(budget, name), getattr(bound, name)) for name in fields})


def least(first: Any, second: Any) -> Any:
    """Return the smaller of two bounds; None means unbounded."""
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None


def merge_stated(new: PlanBudget, before: PlanBudget) -> PlanBudget:
    """Return the bounds of a revision: those that its text names, and for the others those of the revision before.

    A bound is lifted only by a text that says so (`max_tokens: null`), not by one that leaves it out.
    """
    return before.evolve(**{name: getattr(new, name) for name in new.model_fields_set})


def carry_over_bounds(in_force: PlanBudget, before: PlanBudget, after: PlanBudget, *, by_person: bool) -> PlanBudget:
    """Return the bounds with which a plan continues under a new revision.

    A bound that the revision does not change stays as it is in force, with what people added. One that it changes is
    the new one; a text that a planner wrote lowers bounds at most.

    Args:
        in_force: the bounds of now, with what people added.
        before: as the revision before states them.
        after: as the new revision states them.
        by_person: the text came from a person, not from a planner.
    """
    # Compared with the revision before, not with what is in force: people may have added to that.
    changed = {name: getattr(after, name) for name in _different(before, after)}
    if not by_person:
        changed = {name: least(getattr(in_force, name), bound) for name, bound in changed.items()}
    return in_force.evolve(**changed)


def changed_bounds(before: PlanBudget, after: PlanBudget) -> str:
    """Return the differences, such as `max_cost_usd 2 -> 2.5, max_tokens none -> 1000000`; else nothing."""
    return ", ".join(
        f"{name} {_shown(getattr(before, name))} -> {_shown(getattr(after, name))}"
        for name in _different(before, after)
    )


def _different(before: PlanBudget, after: PlanBudget) -> Iterator[str]:
    return (name for name in PlanBudget.model_fields if getattr(before, name) != getattr(after, name))


def _shown(bound: float | None) -> str:
    return "none" if bound is None else f"{bound:.12g}"
