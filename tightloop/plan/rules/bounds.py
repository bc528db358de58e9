"""Budgets within budgets."""

from typing import Any

from tightloop.plan.model import PlanBudget


def bounded(budget: PlanBudget, cost_usd: float | None, tokens: int | None) -> PlanBudget:
    """Return a budget with no more than this cost and so many tokens."""
    return budget.model_copy(
        update={
            "max_cost_usd": least(budget.max_cost_usd, cost_usd),
            "max_tokens": least(budget.max_tokens, tokens),
        }
    )


def narrowest(budget: PlanBudget, bound: PlanBudget) -> PlanBudget:
    """Return the lower bound of each kind."""
    fields = PlanBudget.model_fields
    return PlanBudget(**{name: least(getattr(budget, name), getattr(bound, name)) for name in fields})


def least(first: Any, second: Any) -> Any:
    """Return the smaller of two bounds, where None is none at all."""
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None
