"""Reactions to failed steps, and budget checks."""

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
    """Reaction to a failed attempt."""

    RETRY = "retry"
    """Run the step again after `Route.after_s`."""
    ALTERNATE = "alternate"
    """Compensate the steps in `Route.compensate`, then start the alternate."""
    SKIP = "skip"
    """Treat the step as skipped, together with the steps that need it."""
    CONTINUE = "continue"
    """Leave the step failed, and start the steps that need it as if it had completed."""
    REPLAN = "replan"
    """Ask a planner for a new revision."""
    ASK = "ask"
    """Fail the step, finish all independent steps, then ask a person."""
    FAIL = "fail"
    """Fail the step, finish all independent steps, then end as failed."""
    ABORT = "abort"
    """Fail the step, start nothing more and end as failed."""
    COMPENSATE = "compensate"
    """Fail the step, start nothing more, compensate everything and end as failed."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Chosen reaction to a failure, with its parameters."""

    action: RouteAction
    after_s: float = 0.0
    to: int | None = None
    """Index of the alternate in the graph."""
    compensate: tuple[str, ...] = ()
    """IDs of the steps to compensate before the alternate starts."""


def choose_route(
    node: Node,
    failure: StepFailure,
    *,
    attempt: int,
    elapsed: timedelta,
    replan_allowed: bool,
    on_plan_failure: OnPlanFailure,
) -> Route:
    """Return the reaction to a failed attempt.

    If a failure mode matches, it decides. Otherwise, a transient failure is retried as long as the number of attempts
    and the time box allow it. All other failures are handled by the alternate, then by a planner (never after a refusal
    by a rule or a person), and finally according to the plan's `on_failure`.

    Args:
        node: the step.
        failure: failure of the attempt.
        attempt: number of the attempt, starting with 1.
        elapsed: time since the start of the first attempt.
        replan_allowed: whether a planner may be asked now.
        on_plan_failure: the plan's setting.
    """
    recovery = _find_recovery(failure)
    if recovery is Recovery.RETRY:
        if attempt < node.retry.attempts and _is_in_time(node, attempt, elapsed):
            return Route(action=RouteAction.RETRY, after_s=backoff_s(node.retry, attempt))
        # Out of attempts or time: from here on, treated like a failure without a mode.
        recovery = None
    # Both enumerations have the same values for these.
    last = RouteAction(on_plan_failure.value)
    if recovery is not None and recovery in (Recovery.SKIP, Recovery.CONTINUE, Recovery.ASK):
        return Route(action=RouteAction(recovery.value))
    if recovery is Recovery.ABORT:
        # A plan that compensates on failure does so after an abort too.
        return Route(action=last if last is RouteAction.COMPENSATE else RouteAction.ABORT)
    # A new plan could repeat an action that a rule or a person refused.
    may_replan = replan_allowed and failure.failure_class is not FailureClass.POLICY
    # An alternate goes before a planner, because it costs no model call and was written for this failure.
    if node.alternate is not None and not (may_replan and recovery is Recovery.REPLAN):
        return Route(action=RouteAction.ALTERNATE, to=node.alternate, compensate=node.take_back)
    return Route(action=RouteAction.REPLAN if may_replan else last)


def is_out_of_time(node: Node, failure: StepFailure, *, attempt: int, elapsed: timedelta) -> bool:
    """Return whether the time box is the only thing that prevents another attempt."""
    may_retry = _find_recovery(failure) is Recovery.RETRY and attempt < node.retry.attempts
    return may_retry and not _is_in_time(node, attempt, elapsed)


def _find_recovery(failure: StepFailure) -> Recovery | None:
    if failure.recover is None and failure.failure_class is FailureClass.TRANSIENT:
        return Recovery.RETRY
    return failure.recover


def _is_in_time(node: Node, attempt: int, elapsed: timedelta) -> bool:
    # Including the wait: an attempt that could only begin after the time box is not scheduled.
    return node.timebox_s is None or elapsed.total_seconds() + backoff_s(node.retry, attempt) < node.timebox_s


def backoff_s(retry: Retry, attempt: int) -> float:
    """Return the wait in seconds after an attempt, at most `retry.maximum_s`. Attempts are counted from 1."""
    try:
        wait = retry.initial_s * retry.factor ** (attempt - 1)
    # Python raises for a float power that is too large, instead of returning infinity.
    except OverflowError:
        return retry.maximum_s
    return min(wait, retry.maximum_s)


MORE = "Raise the limit with tightloop top-up, or cancel the plan"
# Attempts first: a loop of steps that cost nothing reaches no other bound.
_REACHED = {
    "max_attempts": "the plan has started {:.0f} step attempts",
    "max_cost_usd": "the plan has spent {:.4g} USD",
    "max_tokens": "the plan has used {:.0f} tokens",
    "max_api_calls": "the plan has made {:.0f} API calls",
    "max_wall_s": "the plan has worked for {:.0f} s",
}
"""Message for each limit, in the order in which the limits are checked."""


def find_breach(budget: PlanBudget, spent: PlanSpent, *, depth: int = 1) -> str | None:
    """Return a sentence that names an exhausted limit and the usage, or None if the budget is not exhausted.

    `depth` is 1 for a top-level plan, plus one for each enclosing plan.
    """
    if depth > budget.max_depth:
        return (
            f"the plan is nested {depth} levels deep, but max_depth is {budget.max_depth}. "
            "Raise max_depth in the budget of the outermost plan, or move the steps into this plan"
        )
    used = spent.by_bound()
    for name, template in _REACHED.items():
        bound = getattr(budget, name)
        if bound is not None and used[name] >= bound:
            limit = f"{bound:.4g}" if name == "max_cost_usd" else f"{bound:.0f}"
            return f"{template.format(used[name])}, and {name} is {limit}. {MORE}"
    return None


def find_revisions_breach(budget: PlanBudget, spent: PlanSpent) -> str | None:
    """Return the reason why no further revision is allowed, or None."""
    if spent.revisions < budget.max_revisions:
        return None
    return f"the plan has {spent.revisions} revisions, and max_revisions is {budget.max_revisions}. {MORE}"


def find_fan_out_breach(node: Node, count: int, budget: PlanBudget) -> str | None:
    """Return the reason why a template must not expand to `count` steps, or None."""
    if count < 0:
        return (
            f"cannot expand {node.id}: for_each is not a list, or refers to a step that did not return one. Correct "
            "for_each, or return a list from that step"
        )
    if count <= budget.max_fan_out:
        return None
    return f"{node.id} would expand to {count} steps, but max_fan_out is {budget.max_fan_out}. {MORE}"


def find_step_overspend(node: Node, *, cost_usd: float, tokens: int) -> str | None:
    """Return the reason why a step must not spend more, or None. The amounts are totals for all of its attempts."""
    # Above the bound, not at it: this judges finished work, while `find_breach` stops further work at the bound.
    if node.budget.max_cost_usd is not None and cost_usd > node.budget.max_cost_usd:
        spent = f"{node.id} has spent {cost_usd:.4g} USD, but its budget is {node.budget.max_cost_usd:.4g} USD"
        return f"{spent}. Raise the step's budget.max_cost_usd"
    if node.budget.max_tokens is not None and tokens > node.budget.max_tokens:
        spent = f"{node.id} has used {tokens} tokens, but its budget is {node.budget.max_tokens}"
        return f"{spent}. Raise the step's budget.max_tokens"
    return None


def may_be_undone(node: Node, *, completed: bool, tree_before: str, tree_after: str) -> bool:
    """Return whether an attempt may have left something to undo."""
    if not node.compensates:
        return False
    # A step that never looked at the tree has no tree after it.
    moved = bool(tree_after) and tree_after != tree_before
    return moved or (completed and node.own_compensation)


def select_undo(undo: Iterable[UndoEntry], only: Collection[str] | None = None) -> tuple[UndoEntry, ...]:
    """Select the attempts to undo, latest first.

    Args:
        undo: attempts, in order of completion.
        only: step IDs, or template IDs for all steps created from the template. None selects all entries.
    """
    entries = [entry for entry in undo if only is None or {entry.step, entry.template}.intersection(only)]
    return tuple(reversed(entries))
