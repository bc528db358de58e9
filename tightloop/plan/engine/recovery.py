"""What follows a failure: the same again, another step, another plan, a person, or the end."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tightloop.plan.document.failing import FailureClass, Recovery, Retry
from tightloop.plan.document.plan import OnPlanFailure
from tightloop.plan.engine.graph import Node
from tightloop.plan.result import StepFailure


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
