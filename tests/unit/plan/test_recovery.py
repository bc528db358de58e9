"""Which way out of a failure is taken, circuit breakers, and what is undone."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.plan.child import StepFailure
from tightloop.plan.document import OnPlanFailure, PlanBudget
from tightloop.plan.engine.graph import Node
from tightloop.plan.engine.recovery import (
    Route,
    RouteAction,
    backoff_s,
    choose_route,
    find_breach,
    find_fan_out_breach,
    find_revisions_breach,
    find_step_overspend,
    may_be_undone,
    select_undo,
)
from tightloop.plan.engine.state import UndoEntry
from tightloop.plan.failing import FailureClass, Recovery, Retry
from tightloop.plan.request import PlanSpent
from tightloop.plan.step import StepBudget

TRANSIENT, LOGIC, POLICY = FailureClass
ASK, FAIL, COMPENSATE = OnPlanFailure
PLAIN = Node(id="a")
WITH_ALTERNATE = Node(id="a", alternate=7, take_back=("b",))


def _route(
    node: Node,
    failure: FailureClass,
    recover: Recovery | None = None,
    *,
    attempt: int = 1,
    elapsed_s: float = 0,
    replan: bool = False,
    plan: OnPlanFailure = ASK,
) -> Route:
    return choose_route(
        node,
        StepFailure(failure_class=failure, reason="it broke", recover=recover),
        attempt=attempt,
        elapsed=timedelta(seconds=elapsed_s),
        replan_allowed=replan,
        on_plan_failure=plan,
    )


def test_a_transient_failure_is_tried_again_with_longer_and_longer_waits() -> None:
    node = Node(id="a", retry=Retry(attempts=4, initial_s=2, factor=3, maximum_s=10))
    found = [_route(node, TRANSIENT, attempt=attempt) for attempt in (1, 2, 3, 4)]
    assert [each.action for each in found] == [RouteAction.RETRY] * 3 + [RouteAction.ASK]
    assert [each.after_s for each in found[:3]] == [2, 6, 10]


def test_a_time_box_ends_the_retries() -> None:
    node = Node(id="a", retry=Retry(attempts=9, initial_s=5), timebox_s=60)
    assert _route(node, TRANSIENT, elapsed_s=54).action is RouteAction.RETRY
    assert _route(node, TRANSIENT, elapsed_s=55).action is RouteAction.ASK


@pytest.mark.parametrize("failure", FailureClass)
def test_the_alternate_comes_after_what_it_wants_taken_back(failure: FailureClass) -> None:
    found = _route(WITH_ALTERNATE, failure, attempt=3, replan=True)
    assert found == Route(action=RouteAction.ALTERNATE, to=7, compensate=("b",))


@pytest.mark.parametrize(
    ("plan", "action"),
    [(ASK, RouteAction.ASK), (FAIL, RouteAction.FAIL), (COMPENSATE, RouteAction.COMPENSATE)],
)
@pytest.mark.parametrize("failure", [LOGIC, POLICY])
def test_without_another_way_the_plan_says_what_follows(
    failure: FailureClass, plan: OnPlanFailure, action: RouteAction
) -> None:
    assert _route(PLAIN, failure, plan=plan).action is action


def test_a_planner_is_asked_about_wrong_work_but_never_to_get_round_a_rule() -> None:
    assert _route(PLAIN, LOGIC, replan=True).action is RouteAction.REPLAN
    assert _route(PLAIN, TRANSIENT, attempt=3, replan=True).action is RouteAction.REPLAN
    assert _route(PLAIN, POLICY, replan=True).action is RouteAction.ASK
    assert _route(PLAIN, POLICY, Recovery.REPLAN, replan=True).action is RouteAction.ASK


@pytest.mark.parametrize(
    ("recover", "node", "replan", "action"),
    [
        (Recovery.RETRY, PLAIN, False, RouteAction.RETRY),
        (Recovery.ALTERNATE, WITH_ALTERNATE, True, RouteAction.ALTERNATE),
        (Recovery.ALTERNATE, PLAIN, False, RouteAction.ASK),
        (Recovery.REPLAN, WITH_ALTERNATE, True, RouteAction.REPLAN),
        (Recovery.REPLAN, WITH_ALTERNATE, False, RouteAction.ALTERNATE),
        (Recovery.REPLAN, PLAIN, False, RouteAction.ASK),
        (Recovery.ASK, WITH_ALTERNATE, True, RouteAction.ASK),
        (Recovery.ABORT, WITH_ALTERNATE, True, RouteAction.ABORT),
        (Recovery.SKIP, WITH_ALTERNATE, True, RouteAction.SKIP),
    ],
)
def test_a_recognised_failure_mode_decides(recover: Recovery, node: Node, replan: bool, action: RouteAction) -> None:
    assert _route(node, LOGIC, recover, replan=replan).action is action


def test_an_abort_takes_everything_back_where_the_plan_wants_that() -> None:
    assert _route(PLAIN, LOGIC, Recovery.ABORT, plan=COMPENSATE).action is RouteAction.COMPENSATE


@given(
    st.builds(
        Retry,
        initial_s=st.floats(0, 1e9),
        factor=st.floats(1, 1e300),
        maximum_s=st.floats(0, 1e6),
        attempts=st.just(50),
    ),
    st.integers(1, 50),
)
def test_a_wait_is_never_longer_than_its_maximum(retry: Retry, attempt: int) -> None:
    assert 0 <= backoff_s(retry, attempt) <= retry.maximum_s


@given(st.sampled_from(FailureClass), st.none() | st.sampled_from(Recovery), st.integers(3, 50), st.booleans())
def test_no_failure_is_retried_when_its_attempts_are_used_up(
    failure: FailureClass, recover: Recovery | None, attempt: int, replan: bool
) -> None:
    assert _route(PLAIN, failure, recover, attempt=attempt, replan=replan).action is not RouteAction.RETRY


@pytest.mark.parametrize(
    ("budget", "spent", "words"),
    [
        (
            PlanBudget(max_attempts=5),
            PlanSpent(attempts=5),
            "the plan has started 5 step attempts, and max_attempts is 5",
        ),
        (
            PlanBudget(max_cost_usd=1.5),
            PlanSpent(cost_usd=1.75),
            "the plan has spent 1.75 USD, and max_cost_usd is 1.5",
        ),
        (PlanBudget(max_tokens=10), PlanSpent(tokens=11), "the plan has used 11 tokens, and max_tokens is 10"),
        (PlanBudget(max_api_calls=0), PlanSpent(), "the plan has made 0 API calls, and max_api_calls is 0"),
        (
            PlanBudget(max_wall_s=60),
            PlanSpent(wall_time=timedelta(seconds=61)),
            "worked for 61 s, and max_wall_s is 60",
        ),
    ],
)
def test_a_breaker_says_what_was_spent_of_what_and_how_to_go_on(
    budget: PlanBudget, spent: PlanSpent, words: str
) -> None:
    said = find_breach(budget, spent)
    assert said is not None
    assert words in said
    assert "tightloop top-up" in said


def test_nothing_breaks_within_the_bounds() -> None:
    spent = PlanSpent(attempts=4, cost_usd=0.5, tokens=9, api_calls=9, wall_time=timedelta(seconds=59), revisions=9)
    budget = PlanBudget(max_attempts=5, max_cost_usd=1, max_tokens=10, max_api_calls=10, max_wall_s=60)
    assert find_breach(budget, spent, depth=4) is None
    assert find_revisions_breach(budget, spent) is None
    assert find_fan_out_breach(PLAIN, 100, budget) is None


def test_plans_in_plans_and_plans_that_are_changed_again_and_again_are_stopped() -> None:
    assert "nested 5 levels deep, but max_depth is 4" in str(find_breach(PlanBudget(), PlanSpent(), depth=5))
    assert "10 revisions, and max_revisions is 10" in str(find_revisions_breach(PlanBudget(), PlanSpent(revisions=10)))


def test_a_template_without_a_list_or_with_too_long_a_one_is_stopped() -> None:
    node = Node(id="look-*")
    assert "look-* would expand to 101 steps, but max_fan_out is 100" in str(
        find_fan_out_breach(node, 101, PlanBudget())
    )
    assert "is not a list" in str(find_fan_out_breach(node, -1, PlanBudget()))


def test_a_step_cannot_spend_more_than_its_own_budget() -> None:
    node = Node(id="a", budget=StepBudget(max_cost_usd=0.5, max_tokens=100))
    assert find_step_overspend(node, cost_usd=0.5, tokens=100) is None
    assert "0.75 USD, but its budget is 0.5" in str(find_step_overspend(node, cost_usd=0.75, tokens=0))
    assert "101 tokens, but its budget is 100" in str(find_step_overspend(node, cost_usd=0, tokens=101))


def test_the_latest_work_is_taken_back_first() -> None:
    undo = (
        UndoEntry(step="a"),
        UndoEntry(step="look-1", template="look-*", item=0),
        UndoEntry(step="b"),
        UndoEntry(step="look-2", template="look-*", item=1),
    )
    assert [entry.step for entry in select_undo(undo)] == ["look-2", "b", "look-1", "a"]
    assert [entry.step for entry in select_undo(undo, ("a", "look-*"))] == ["look-2", "look-1", "a"]
    assert select_undo(undo, ()) == ()


def test_only_what_left_something_can_be_taken_back() -> None:
    writer, custom = Node(id="w", compensates=True), Node(id="c", compensates=True, own_compensation=True)
    assert may_be_undone(writer, completed=False, tree_before="t1", tree_after="t2")
    assert not may_be_undone(writer, completed=True, tree_before="t1", tree_after="t1")
    assert may_be_undone(custom, completed=True, tree_before="", tree_after="")
    assert not may_be_undone(custom, completed=False, tree_before="", tree_after="")
    assert not may_be_undone(Node(id="n"), completed=True, tree_before="t1", tree_after="t2")
