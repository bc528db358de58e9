"""Reactions to failed steps, and budget checks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from tightloop.plan.child import StepFailure
from tightloop.plan.document import OnPlanFailure, PlanBudget
from tightloop.plan.engine import state as code
from tightloop.plan.engine.graph import ON_CHOICE, ON_FAILURE, ON_SUCCESS, Graph, Node
from tightloop.plan.engine.revision import StepIndex
from tightloop.plan.engine.state import UndoEntry
from tightloop.plan.failing import FailureClass, Recovery, Retry
from tightloop.plan.request import PlanSpent
from tightloop.plan.step import Join


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
    """Reaction to a failure, with its parameters."""

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
    """Choose the reaction to a failed attempt.

    If a failure mode matches, it determines the reaction. Otherwise, a transient failure is retried if
    there are attempts left and the time box is not exceeded. Other failures are handled by the alternate,
    then by a planner, and finally according to the plan's `on_failure`. A planner is never asked after a
    refusal by a rule or a person.

    Args:
        node: the step.
        failure: failure of the attempt.
        attempt: number of the attempt, starting with 1.
        elapsed: time since the start of the first attempt.
        replan_allowed: True if a planner may be asked now.
        on_plan_failure: the plan's setting `on_failure`.
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
    """Return True if another attempt is prevented only by the time box."""
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
    """Return a sentence about an exhausted limit, or None if no limit is exhausted.

    `depth` is 1 for a top-level plan, and increases by 1 for each enclosing plan.
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
    """Return the reason why no further revisions are allowed, or None if they are allowed."""
    if spent.revisions < budget.max_revisions:
        return None
    return f"the plan has {spent.revisions} revisions, and max_revisions is {budget.max_revisions}. {MORE}"


def find_fan_out_breach(node: Node, count: int, budget: PlanBudget) -> str | None:
    """Return the reason why a template must not expand to `count` steps, or None if it may."""
    if count < 0:
        return (
            f"cannot expand {node.id}: for_each is not a list, or refers to a step that did not return one. Fix "
            "for_each, or return a list from that step"
        )
    if count <= budget.max_fan_out:
        return None
    return f"{node.id} would expand to {count} steps, but max_fan_out is {budget.max_fan_out}. {MORE}"


def find_step_overspend(node: Node, *, cost_usd: float, tokens: int) -> str | None:
    """Return the reason why a step must not spend more, or None if it may.

    The amounts are totals for all attempts of the step.
    """
    # Above the bound, not at it: this judges finished work, while `find_breach` stops further work at the bound.
    if node.budget.max_cost_usd is not None and cost_usd > node.budget.max_cost_usd:
        spent = f"{node.id} has spent {cost_usd:.4g} USD, but its budget is {node.budget.max_cost_usd:.4g} USD"
        return f"{spent}. Raise the step's budget.max_cost_usd"
    if node.budget.max_tokens is not None and tokens > node.budget.max_tokens:
        spent = f"{node.id} has used {tokens} tokens, but its budget is {node.budget.max_tokens}"
        return f"{spent}. Raise the step's budget.max_tokens"
    return None


def may_be_undone(node: Node, *, completed: bool, tree_before: str, tree_after: str) -> bool:
    """Return True if an attempt may have effects that must be undone."""
    if not node.compensates:
        return False
    # A step that never looked at the tree has no tree after it.
    moved = bool(tree_after) and tree_after != tree_before
    return moved or (completed and node.own_compensation)


def select_undo(undo: Iterable[UndoEntry], only: Collection[str] | None = None) -> tuple[UndoEntry, ...]:
    """Select the attempts to undo, latest first.

    Args:
        undo: attempts, in order of completion.
        only: IDs of steps or templates. A template ID selects all steps created from the template. None
            selects all entries.
    """
    entries = [entry for entry in undo if only is None or {entry.step, entry.template}.intersection(only)]
    return tuple(reversed(entries))


OPEN: Final = 0
GOOD: Final = 1
SKIPPED: Final = 2
BAD: Final = 3
HELD: Final = 4
"""Outcomes of a step, as seen by its dependents. HELD means that it is blocked for now, but may still be skipped and
release others.
"""

_MEANING = {
    **dict.fromkeys((code.COMPLETED, code.RECOVERED, code.COMPENSATED, code.TOLERATED), GOOD),
    code.SKIPPED: SKIPPED,
    code.FAILED: BAD,
}
_FAILED_OVER: Final = 1
_DONE: Final = 2
_OTHERWISE: Final = 4
"""States of a step, as seen by its conditional edges: failed over, completed, or settled in another way."""
_SIGNALS = {
    **dict.fromkeys((code.COMPLETED, code.COMPENSATED), _DONE),
    **dict.fromkeys((code.SKIPPED, code.FAILED, code.TOLERATED), _OTHERWISE),
    **dict.fromkeys((code.FAILED_OVER, code.RECOVERED), _OTHERWISE | _FAILED_OVER),
}


class Verdicts:
    """Derives the status codes of templates and of steps that have not started.

    The codes are derived from the number of other steps with each outcome.
    """

    def __init__(
        self, graph: Graph, roster: StepIndex, codes: Sequence[str], selected_steps: Mapping[int, Sequence[str]]
    ) -> None:
        """Create the counters with all steps open.

        `codes` and `selected_steps` are shared with the owner and are never modified here.
        """
        self._graph, self._index, self._codes, self._chosen = graph, roster, codes, selected_steps
        size = len(graph.nodes)
        self._means = [OPEN] * len(roster)
        self._signals = [0] * size
        self._needs = [[0] * 5 for _ in range(size)]
        self._inside = {number: [0] * 5 for number, _ in roster.expansions}
        self._fired_edges = [0] * size
        # Undecided edges per step: a step whose edges are all decided without one that fired is skipped.
        self._undecided = [0] * size
        # Alternate -> failed steps whose recovery depends on it.
        self._over: dict[int, list[int]] = {}
        # Templates with a failed-over instance: the alternate of a template starts once for all instances.
        self._failed_over_templates: dict[int, bool] = {}
        for edges in graph.edges:
            for target, _ in edges:
                self._undecided[target] += 1
        self._conditional = [count > 0 for count in self._undecided]

    def means(self, number: int) -> int:
        """Return a step's outcome, as seen by its dependents: OPEN, GOOD, SKIPPED, BAD or HELD."""
        return self._means[number]

    def is_unchosen(self, number: int) -> bool:
        """Return True if a step depends on an event that has not happened yet.

        The event is the step being chosen, or the success or failure of another step.
        """
        return number < len(self._conditional) and self._conditional[number] and not self._fired_edges[number]

    def grow(self, count: int) -> None:
        """Add counters for the instances of the most recently expanded template."""
        self._means.extend([OPEN] * count)
        self._inside[self._index.expansions[-1][0]] = [0] * 5

    def mark_failed_over(self, number: int) -> None:
        """Record that the alternate of a step may start."""
        node = self._index.node(number)
        self._failed_over_templates[self._index.origin[number]] = True
        if node.recovers and node.alternate is not None:
            self._over.setdefault(node.alternate, []).append(number)

    def derive(self, number: int) -> tuple[str, bool]:
        """Return the derived code of a step, and whether the step may start.

        If no code can be derived, the current code is returned.
        """
        letter = self._codes[number]
        if number in self._inside:
            return self._of_instances(number, letter), False
        if letter in (code.PENDING, code.BLOCKED) and not self._index.is_instance(number):
            node = self._graph.nodes[number]
            counts = self._needs[number]
            is_lenient = node.join is Join.ENDED
            all_skipped = counts[SKIPPED] == len(node.needs)
            skipped = not is_lenient and counts[SKIPPED] > 0 and (node.join is not Join.ANY or all_skipped)
            never = self._conditional[number] and not self._fired_edges[number] and not self._undecided[number]
            if skipped or never:
                return code.SKIPPED, False
            if (counts[BAD] or counts[HELD]) and not is_lenient:
                return code.BLOCKED, False
            # The remaining joins accept every outcome that is left.
            return code.PENDING, self._is_decided(number)
        if letter == code.FAILED_OVER and self._meaning(number, letter) == GOOD:
            return code.RECOVERED, False
        return letter, False

    def propagate(self, number: int) -> list[int]:
        """Propagate the current outcome of a step, and return the steps to evaluate again."""
        letter = self._codes[number]
        touched: list[int] = []
        meaning = self._meaning(number, letter)
        if meaning != self._means[number]:
            touched += self._update_dependents(number, meaning)
        # Instances have no edges of their own: those of their template fire once for all of them.
        if not self._index.is_instance(number) and self._graph.edges[number]:
            touched += self._update_targets(number, letter)
        return touched

    def _of_instances(self, number: int, letter: str) -> str:
        # Closing the plan abandons a template while its instances may still be open; the counters must not revive it.
        if letter == code.ABANDONED:
            return letter
        counts = self._inside[number]
        instances = self._index.instances(number) or ()
        if counts[GOOD] + counts[SKIPPED] + counts[BAD] < len(instances):
            return code.EXPANDED
        if counts[BAD]:
            return code.FAILED
        return code.COMPLETED if counts[GOOD] else code.SKIPPED

    def _is_decided(self, number: int) -> bool:
        """Return True if all dependencies of a step have ended and its conditional edges allow it to start."""
        counts, needs = self._needs[number], self._graph.nodes[number].needs
        has_ended = counts[GOOD] + counts[SKIPPED] + counts[BAD] == len(needs)
        return has_ended and (self._fired_edges[number] > 0 or not self._conditional[number])

    def _meaning(self, number: int, letter: str) -> int:
        if letter == code.BLOCKED:
            # With all needs ended, nothing can release the step any more; for its dependents it has failed.
            return BAD if self._is_decided(number) else HELD
        if letter != code.FAILED_OVER:
            return _MEANING.get(letter, OPEN)
        node = self._index.node(number)
        if not node.recovers or node.alternate is None:
            return BAD
        # A blocked alternate may still be released, so the outcome is open.
        meaning = OPEN if self._codes[node.alternate] == code.BLOCKED else self._means[node.alternate]
        # An alternate that was skipped has not done the work.
        return BAD if meaning == SKIPPED else meaning

    def _update_dependents(self, number: int, meaning: int) -> list[int]:
        # The counters are adjusted and not recounted: a join over 10 000 steps is updated 10 000 times.
        before, self._means[number] = self._means[number], meaning
        if self._index.is_instance(number):
            template = self._index.origin[number]
            counts = self._inside[template]
            counts[before] -= 1
            counts[meaning] += 1
            return [template]
        dependents = self._graph.dependents[number]
        for dependent in dependents:
            counts = self._needs[dependent]
            counts[before] -= 1
            counts[meaning] += 1
        return [*dependents, *self._over.get(number, ())]

    def _update_targets(self, number: int, letter: str) -> list[int]:
        signals = _SIGNALS.get(letter, 0)
        if number in self._inside and self._failed_over_templates.get(number):
            signals |= _FAILED_OVER
        before = self._signals[number]
        if signals == before:
            return []
        self._signals[number] = signals
        selected_steps = self._chosen.get(number, ())
        touched: list[int] = []
        for target, bits in self._graph.edges[number]:
            picked = bits & ON_CHOICE and self._graph.nodes[target].id in selected_steps
            was, now = _fires(before, bits, picked=bool(picked)), _fires(signals, bits, picked=bool(picked))
            self._fired_edges[target] += now - was
            # As a difference, because signals add up: a template fails over before it ends.
            self._undecided[target] -= _count_decisions(signals, now) - _count_decisions(before, was)
            touched.append(target)
        return touched


def _fires(signals: int, bits: int, *, picked: bool) -> int:
    if signals & _FAILED_OVER and bits & ON_FAILURE:
        return 1
    return 1 if signals & _DONE and (bits & ON_SUCCESS or picked) else 0


def _count_decisions(signals: int, fired: int) -> int:
    return 1 if fired or signals & (_DONE | _OTHERWISE) else 0
