"""The circuit breakers of a plan: which bound was reached, in words, and what to do about it."""

from tightloop.plan.document.plan import PlanBudget
from tightloop.plan.engine.graph import Node
from tightloop.plan.request import PlanSpent

MORE = "Raise the bound with top_up, or cancel the plan"
# Attempts first: a loop of steps that cost nothing reaches no other bound.
_REACHED = {
    "max_attempts": "{:.0f} attempts of steps were started",
    "max_cost_usd": "{:.4g} USD were spent",
    "max_tokens": "{:.0f} tokens were used",
    "max_api_calls": "{:.0f} API calls were made",
    "max_wall_s": "the plan has worked for {:.0f} s",
}
"""By the bound that is looked at, in this order."""


def find_breach(budget: PlanBudget, spent: PlanSpent, *, depth: int = 1) -> str | None:
    """Return why nothing more may start, as a sentence with what was spent and the limit; None while all is within.

    `depth` is 1 for a plan of its own, one more for each plan around it.
    """
    if depth > budget.max_depth:
        return (
            f"the plan is nested {depth} deep, max_depth is {budget.max_depth}. "
            "Raise max_depth in the budget of the outermost plan, or put the steps into this plan"
        )
    used = spent.by_bound()
    for name, words in _REACHED.items():
        bound = getattr(budget, name)
        if bound is not None and used[name] >= bound:
            shown = f"{bound:.4g}" if name == "max_cost_usd" else f"{bound:.0f}"
            return f"{words.format(used[name])}, {name} is {shown}. {MORE}"
    return None


def find_revisions_breach(budget: PlanBudget, spent: PlanSpent) -> str | None:
    """Return why the plan may not be changed once more."""
    if spent.revisions < budget.max_revisions:
        return None
    return f"the plan has {spent.revisions} revisions, max_revisions is {budget.max_revisions}. {MORE}"


def find_fan_out_breach(node: Node, count: int, budget: PlanBudget) -> str | None:
    """Return why a template may not become `count` steps."""
    if count < 0:
        return (
            f"{node.id} cannot be made into steps: its for_each is not a list, or the step that it names returned "
            "none. Return a list from that step, or correct for_each"
        )
    if count <= budget.max_fan_out:
        return None
    return f"{node.id} would become {count} steps, max_fan_out is {budget.max_fan_out}. {MORE}"


def find_step_overspend(node: Node, *, cost_usd: float, tokens: int) -> str | None:
    """Return why a step may not spend more, given what its attempts spent together."""
    if node.budget.max_cost_usd is not None and cost_usd > node.budget.max_cost_usd:
        spent = f"{node.id} has spent {cost_usd:.4g} USD, its budget is {node.budget.max_cost_usd:.4g} USD"
        return f"{spent}. Raise budget.max_cost_usd of the step"
    if node.budget.max_tokens is not None and tokens > node.budget.max_tokens:
        spent = f"{node.id} has used {tokens} tokens, its budget is {node.budget.max_tokens}"
        return f"{spent}. Raise budget.max_tokens of the step"
    return None
