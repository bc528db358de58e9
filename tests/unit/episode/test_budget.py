"""Budgets: sums never shrink, unknown is not zero, bounds are named when they are reached."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.budget import (
    Breach,
    Budget,
    BudgetItem,
    Spent,
    TopUp,
    breaches,
    should_converge,
    topped_up,
)
from tightloop.executor.model import Usage

counts = st.one_of(st.none(), st.integers(min_value=0, max_value=10**9))
costs = st.one_of(st.none(), st.floats(min_value=0, max_value=1e6))
usages = st.builds(Usage, input_tokens=counts, cached_tokens=counts, output_tokens=counts, cost_usd=costs)
limits = st.one_of(st.none(), st.integers(min_value=0, max_value=10**6))
durations = st.timedeltas(min_value=timedelta(), max_value=timedelta(days=30))
budgets = st.builds(
    Budget,
    max_iterations=limits,
    warn_at_iteration=limits,
    max_executor_failures=limits,
    max_infrastructure_retries=limits,
    max_tokens=limits,
    max_cost_usd=costs,
    max_wall_time=st.one_of(st.none(), durations),
)
amounts = st.integers(min_value=0, max_value=10**6)
spendings = st.builds(
    Spent,
    iterations=amounts,
    executor_failures=amounts,
    infrastructure_retries=amounts,
    input_tokens=amounts,
    output_tokens=amounts,
    cost_usd=st.floats(min_value=0, max_value=1e6),
    wall_time=durations,
)
top_ups = st.builds(
    TopUp,
    iterations=st.integers(min_value=-100, max_value=10**6),
    executor_failures=st.integers(min_value=-100, max_value=10**6),
    infrastructure_retries=st.integers(min_value=-100, max_value=10**6),
    tokens=st.integers(min_value=-100, max_value=10**6),
    cost_usd=st.floats(),
    wall_minutes=st.floats(),
)


@given(spendings, usages)
def test_spending_only_grows_and_unknown_usage_is_counted_as_unknown(spent: Spent, usage: Usage) -> None:
    after = spent.with_usage(usage)
    assert after.tokens >= spent.tokens
    assert after.cost_usd >= spent.cost_usd
    tokens_known = usage.input_tokens is not None and usage.output_tokens is not None
    assert after.unreported_calls == spent.unreported_calls + (not tokens_known)
    assert after.unpriced_calls == spent.unpriced_calls + (usage.cost_usd is None)


@given(budgets, spendings)
def test_bound_is_reached_exactly_when_it_is_spent(budget: Budget, spent: Spent) -> None:
    found = {breach.item for breach in breaches(budget, spent)}
    assert (BudgetItem.ITERATIONS in found) == (
        budget.max_iterations is not None and spent.iterations >= budget.max_iterations
    )
    assert (BudgetItem.TOKENS in found) == (budget.max_tokens is not None and spent.tokens >= budget.max_tokens)
    assert (BudgetItem.WALL_TIME in found) == (
        budget.max_wall_time is not None and spent.wall_time >= budget.max_wall_time
    )


@given(spendings)
def test_unbounded_budget_is_never_spent(spent: Spent) -> None:
    assert breaches(Budget(**dict.fromkeys(Budget.model_fields)), spent) == ()


def test_breaches_are_said_in_plain_numbers() -> None:
    budget = Budget(max_tokens=1_000_000, max_cost_usd=2.5, max_wall_time=timedelta(hours=1))
    spent = Spent(input_tokens=1_200_000, output_tokens=34_567, cost_usd=2.50009, wall_time=timedelta(hours=2))
    assert [str(breach) for breach in breaches(budget, spent)] == [
        "tokens 1234567 of 1000000",
        "cost_usd 2.5001 of 2.5",
        "wall_time 2:00:00 of 1:00:00",
    ]


def test_breaches_come_in_the_order_of_the_items() -> None:
    spent = Spent(iterations=15, executor_failures=6, infrastructure_retries=200)
    assert [breach.item for breach in breaches(Budget(), spent)] == [
        BudgetItem.ITERATIONS,
        BudgetItem.EXECUTOR_FAILURES,
        BudgetItem.INFRASTRUCTURE_RETRIES,
    ]
    assert breaches(Budget(), spent)[0] == Breach(item=BudgetItem.ITERATIONS, spent="15", limit="15")


def test_planner_is_asked_to_converge_from_the_warning_on() -> None:
    budget = Budget(warn_at_iteration=3)
    assert [should_converge(budget, Spent(iterations=n)) for n in (2, 3, 4)] == [False, True, True]
    assert not should_converge(Budget(warn_at_iteration=None), Spent(iterations=99))


@given(budgets, top_ups)
def test_top_up_raises_only_what_is_bounded_and_lowers_nothing(budget: Budget, addition: TopUp) -> None:
    before, after = budget.model_dump(), topped_up(budget, addition).model_dump()
    for name, limit in before.items():
        if limit is None:
            assert after[name] is None
        else:
            assert after[name] >= limit


@pytest.mark.parametrize(("item", "field"), [("tokens", "max_tokens"), ("iterations", "max_iterations")])
def test_top_up_adds_what_it_says(item: str, field: str) -> None:
    budget = Budget(max_tokens=100, max_iterations=15)
    raised = topped_up(budget, TopUp.model_validate({item: 5}))
    assert getattr(raised, field) == getattr(budget, field) + 5


def test_top_up_of_time_and_money_adds_what_it_says() -> None:
    raised = topped_up(Budget(max_cost_usd=1.0), TopUp(cost_usd=0.5, wall_minutes=90))
    assert raised.max_cost_usd == 1.5
    assert raised.max_wall_time == timedelta(hours=13, minutes=30)


def test_top_up_of_iterations_moves_the_warning_too() -> None:
    assert topped_up(Budget(), TopUp(iterations=5)).warn_at_iteration == 17
