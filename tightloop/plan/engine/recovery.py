"""What follows a failed step."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tightloop.plan.child import StepFailure
from tightloop.plan.document import OnPlanFailure, PlanBudget
from tightloop.plan.engine.graph import Node
from tightloop.plan.engine.state import UndoEntry
from tightloop.plan.failing import FailureClass, Recovery, Retry
from tightloop.plan.request import PlanSpent


class RouteAction(StrEnum):
    """What is done about a failed attempt."""

    RETRY = "retry"
    """Run the step again after `Route.after_s`."""
    ALTERNATE = "alternate"
    """Take back `Route.compensate`, then let the step's alternate go."""
    SKIP = "skip"
    """Go on as if the step had been skipped."""
    REPLAN = "replan"
    """Ask a planner for a new revision."""
    ASK = "ask"
    """The step has failed; go on with what does not depend on it and ask a person."""
    FAIL = "fail"
    """The step has failed; go on with what does not depend on it, then end as failed."""
    ABORT = "abort"
    """The step has failed; start nothing more and end as failed."""
    COMPENSATE = "compensate"
    """The step has failed; start nothing more, take everything back and end as failed."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way out of a failure."""

    action: RouteAction
    after_s: float = 0.0
    to: int | None = None
    """Number of the alternate in the graph."""
    compensate: tuple[str, ...] = ()
    """Ids of steps to take back before it starts."""


def choose_route(
    node: Node,
    failure: StepFailure,
    *,
    attempt: int,
    elapsed: timedelta,
    replan_allowed: bool,
    on_plan_failure: OnPlanFailure,
) -> Route:
    """Return what follows the failure of one attempt.

    A recognised failure mode says what to do; without one a transient failure is tried again while attempts and
    time box allow. What is left goes to the alternate, to a planner (never where a rule or a person refused), and
    last to what the plan says about failures.

    Args:
        node: the step.
        failure: of the attempt.
        attempt: its number, from 1.
        elapsed: time since the step's first attempt began.
        replan_allowed: a planner may be asked now.
        on_plan_failure: of the plan.
    """
    wanted = _wanted(failure)
    if wanted is Recovery.RETRY:
        if attempt < node.retry.attempts and _is_in_time(node, attempt, elapsed):
            return Route(action=RouteAction.RETRY, after_s=backoff_s(node.retry, attempt))
        wanted = None
    # Both enumerations have the same values for these.
    last = RouteAction(on_plan_failure.value)
    if wanted is Recovery.SKIP or wanted is Recovery.ASK:
        return Route(action=RouteAction(wanted.value))
    if wanted is Recovery.ABORT:
        return Route(action=last if last is RouteAction.COMPENSATE else RouteAction.ABORT)
    # Another plan could do again what a rule or a person refused.
    may_replan = replan_allowed and failure.failure_class is not FailureClass.POLICY
    if node.alternate is not None and not (may_replan and wanted is Recovery.REPLAN):
        return Route(action=RouteAction.ALTERNATE, to=node.alternate, compensate=node.take_back)
    return Route(action=RouteAction.REPLAN if may_replan else last)


def is_out_of_time(node: Node, failure: StepFailure, *, attempt: int, elapsed: timedelta) -> bool:
    """Return whether nothing but its time box keeps a step from another attempt."""
    may_retry = _wanted(failure) is Recovery.RETRY and attempt < node.retry.attempts
    return may_retry and not _is_in_time(node, attempt, elapsed)


def _wanted(failure: StepFailure) -> Recovery | None:
    if failure.recover is None and failure.failure_class is FailureClass.TRANSIENT:
        return Recovery.RETRY
    return failure.recover


def _is_in_time(node: Node, attempt: int, elapsed: timedelta) -> bool:
    return node.timebox_s is None or elapsed.total_seconds() + backoff_s(node.retry, attempt) < node.timebox_s


def backoff_s(retry: Retry, attempt: int) -> float:
    """Return how many seconds to wait after the given attempt, from 1; at most `retry.maximum_s`."""
    try:
        wait = retry.initial_s * retry.factor ** (attempt - 1)
    # A float raised to the power of many attempts: Python raises instead of returning infinity.
    except OverflowError:
        return retry.maximum_s
    return min(wait, retry.maximum_s)


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


def may_be_undone(node: Node, *, completed: bool, tree_before: str, tree_after: str) -> bool:
    """Return whether an attempt left something that can be taken back.

    An attempt that failed can have changed files too; a compensation of the step's own is for completed ones.
    """
    if not node.compensates:
        return False
    # A step that never looked at the tree has no tree after it.
    moved = bool(tree_after) and tree_after != tree_before
    return moved or (completed and node.own_compensation)


def select_undo(undo: Iterable[UndoEntry], only: Collection[str] | None = None) -> tuple[UndoEntry, ...]:
    """Return what is taken back, the latest first.

    Args:
        undo: attempts in the order of their ends.
        only: ids of steps, or of templates for all that was made from them; None: everything.
    """
    wanted = [entry for entry in undo if only is None or {entry.step, entry.template}.intersection(only)]
    return tuple(reversed(wanted))
