"""The circuit breakers of a plan: which bound was reached, in words, and what to do about it."""

from collections.abc import Iterator

from tightloop.plan.engine.graph import Node
from tightloop.plan.model import PlanBudget
from tightloop.plan.request import PlanSpent

MORE = "Raise the bound with top_up, or cancel the plan"


def breach(budget: PlanBudget, spent: PlanSpent, *, depth: int = 1) -> str | None:
    """Return why nothing more may start, as a sentence with what was spent and the limit; None while all is within.

    Args:
        budget: the bounds, with what people added.
        spent: the sums so far.
        depth: 1 for a plan of its own, one more for each plan around it.
    """
    if depth > budget.max_depth:
        return (
            f"the plan is nested {depth} deep, max_depth is {budget.max_depth}. "
            "Raise max_depth in the budget of the outermost plan, or put the steps into this plan"
        )
    reached = next(_reached(budget, spent), None)
    return None if reached is None else f"{reached}. {MORE}"


def revisions_breach(budget: PlanBudget, spent: PlanSpent) -> str | None:
    """Return why the plan may not be changed once more."""
    if spent.revisions < budget.max_revisions:
        return None
    return f"the plan has {spent.revisions} revisions, max_revisions is {budget.max_revisions}. {MORE}"


def fan_out_breach(node: Node, count: int, budget: PlanBudget) -> str | None:
    """Return why a template may not become `count` steps."""
    if count < 0:
        return (
            f"{node.id} cannot be made into steps: its for_each is no list, or the step that it names returned "
            "none. Return a list from that step, or correct for_each"
        )
    if count <= budget.max_fan_out:
        return None
    return f"{node.id} would become {count} steps, max_fan_out is {budget.max_fan_out}. {MORE}"


def over_step_budget(node: Node, *, cost_usd: float, tokens: int) -> str | None:
    """Return why a step may not spend more, given what its attempts spent together."""
    if node.budget.max_cost_usd is not None and cost_usd > node.budget.max_cost_usd:
        limit = f"{node.budget.max_cost_usd:.4g}"
        return (
            f"{node.id} has spent {cost_usd:.4g} USD, its budget is {limit} USD. Raise budget.max_cost_usd of the step"
        )
    if node.budget.max_tokens is not None and tokens > node.budget.max_tokens:
        limit = str(node.budget.max_tokens)
        return f"{node.id} has used {tokens} tokens, its budget is {limit}. Raise budget.max_tokens of the step"
    return None


def _reached(budget: PlanBudget, spent: PlanSpent) -> Iterator[str]:
    if spent.attempts >= budget.max_steps:
        yield f"{spent.attempts} attempts of steps were started, max_steps is {budget.max_steps}"
    if budget.max_cost_usd is not None and spent.cost_usd >= budget.max_cost_usd:
        yield f"{spent.cost_usd:.4g} USD were spent, max_cost_usd is {budget.max_cost_usd:.4g}"
    if budget.max_tokens is not None and spent.tokens >= budget.max_tokens:
        yield f"{spent.tokens} tokens were used, max_tokens is {budget.max_tokens}"
    if budget.max_api_calls is not None and spent.api_calls >= budget.max_api_calls:
        yield f"{spent.api_calls} API calls were made, max_api_calls is {budget.max_api_calls}"
    seconds = spent.wall_time.total_seconds()
    if budget.max_wall_s is not None and seconds >= budget.max_wall_s:
        yield f"the plan has worked for {seconds:.0f} s, max_wall_s is {budget.max_wall_s:.0f}"
