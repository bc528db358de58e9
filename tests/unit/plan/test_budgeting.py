"""What a new revision does to the bounds of a plan that runs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.plan.document import PlanBudget
from tightloop.plan.guard import carry_over_bounds, changed_bounds, merge_stated_limits

COSTS = st.one_of(st.none(), st.floats(0, 1_000))
COUNTS = st.one_of(st.none(), st.integers(0, 10**9))
BUDGETS = st.builds(
    PlanBudget,
    max_wall_s=st.one_of(st.none(), st.floats(1, 1_000)),
    max_cost_usd=COSTS,
    max_tokens=COUNTS,
    max_api_calls=COUNTS,
    max_attempts=st.integers(1, 20_000),
    max_depth=st.integers(1, 16),
    max_fan_out=st.integers(1, 2_500),
    max_revisions=st.integers(1, 100),
)


def bounds(budget: PlanBudget) -> dict[str, Any]:
    return {name: getattr(budget, name) for name in PlanBudget.model_fields}


def higher(one: float | None, other: float | None) -> bool:
    return other is not None and (one is None or one > other)


@given(BUDGETS, BUDGETS)
def test_text_states_the_bounds_that_it_names_and_leaves_the_others(new: PlanBudget, before: PlanBudget) -> None:
    named = PlanBudget.model_validate({"max_cost_usd": new.max_cost_usd, "max_attempts": new.max_attempts})
    assert bounds(merge_stated_limits(named, before)) == {
        **bounds(before),
        "max_cost_usd": new.max_cost_usd,
        "max_attempts": new.max_attempts,
    }
    assert merge_stated_limits(PlanBudget(), before) == before


def test_bound_is_lifted_only_by_a_text_that_says_so() -> None:
    before = PlanBudget(max_cost_usd=2.0, max_attempts=50)
    assert merge_stated_limits(PlanBudget.model_validate({"max_cost_usd": None}), before).max_cost_usd is None
    assert merge_stated_limits(PlanBudget.model_validate({"max_attempts": 20_000}), before).max_attempts == 20_000


@given(BUDGETS, BUDGETS)
def test_person_who_leaves_a_bound_as_it_was_takes_no_top_up_back(in_force: PlanBudget, text: PlanBudget) -> None:
    assert carry_over_bounds(in_force, text, text, by_person=True) == in_force


@given(BUDGETS, BUDGETS, BUDGETS)
def test_bounds_that_a_person_changes_are_the_ones_of_the_new_text(
    in_force: PlanBudget, before: PlanBudget, after: PlanBudget
) -> None:
    now, old, new = (bounds(each) for each in (in_force, before, after))
    found = bounds(carry_over_bounds(in_force, before, after, by_person=True))
    assert found == {name: now[name] if new[name] == old[name] else new[name] for name in now}


@given(BUDGETS, BUDGETS, BUDGETS)
def test_planner_raises_no_bound(in_force: PlanBudget, before: PlanBudget, after: PlanBudget) -> None:
    now, new = bounds(in_force), bounds(after)
    found = bounds(carry_over_bounds(in_force, before, after, by_person=False))
    assert not [name for name in now if higher(found[name], now[name])]
    assert all(found[name] in (now[name], new[name]) for name in now)


@pytest.mark.parametrize(
    ("by_person", "expected"),
    [(True, PlanBudget(max_cost_usd=12.0, max_attempts=40)), (False, PlanBudget(max_cost_usd=12.0, max_attempts=30))],
)
def test_newest_word_counts_also_after_a_top_up(by_person: bool, expected: PlanBudget) -> None:
    in_force = PlanBudget(max_cost_usd=15.0, max_attempts=30)
    before = PlanBudget(max_cost_usd=10.0, max_attempts=20)
    after = PlanBudget(max_cost_usd=12.0, max_attempts=40)
    assert carry_over_bounds(in_force, before, after, by_person=by_person) == expected


def test_changed_bounds_are_told_in_words() -> None:
    before = PlanBudget(max_cost_usd=2.0, max_wall_s=60.0)
    after = PlanBudget(max_cost_usd=2.5, max_tokens=1_000_000)
    assert changed_bounds(before, after) == "max_wall_s 60 -> none, max_cost_usd 2 -> 2.5, max_tokens none -> 1000000"
    assert changed_bounds(before, before) == ""
