"""The bounds that a stored revision states, which plans within it inherit."""

from pathlib import Path

import pytest

from activities.plan.port import WrittenPlan
from activities.plan.requests import PlanScope, RevisePlanRequest
from tests.support.git_sample import make_repository
from tests.support.plan.stage import activities_for, stage
from tightloop.plan.document import Plan, PlanBudget, StoredPlan
from tightloop.plan.request import PlanRequest


class Greedy:
    """A planner that wants more than the plan has."""

    available = True

    def write(self, scope: PlanScope, request: PlanRequest) -> WrittenPlan:
        raise AssertionError(f"nobody asked for a plan: {scope} {request}")

    def revise(self, request: RevisePlanRequest, plan: Plan) -> WrittenPlan:
        ids = [*(step.id for step in plan.steps), "more"]
        steps = "".join(f"  - {{id: {name}}}\n" for name in ids)
        return WrittenPlan(
            text=f"id: {plan.id}\nbudget: {{max_attempts: 900, max_tokens: 3}}\nsteps:\n{steps}", model="m"
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repo", {"a.txt": "one\n"})


def test_revision_of_a_planner_states_no_higher_bound_than_the_one_before(root: Path) -> None:
    plan = stage(
        root,
        {"id": "one"},
        plan={"budget": {"max_attempts": 7, "max_cost_usd": 2}},
        activities=activities_for(plan_writer=Greedy()),
    )
    revised = plan.call("revise_plan", RevisePlanRequest(scope=plan.scope, trouble="it failed"))
    stored = StoredPlan.model_validate_json(plan.artifact(revised.plan))
    assert revised.diff == "added: more\nplan fields: budget"
    assert stored.plan.budget == PlanBudget(max_attempts=7, max_cost_usd=2.0, max_tokens=3)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("", PlanBudget(max_attempts=7, max_cost_usd=2.0)),
        ("budget: {max_attempts: 20000}\n", PlanBudget(max_attempts=20_000, max_cost_usd=2.0)),
        ("budget: {max_cost_usd: null}\n", PlanBudget(max_attempts=7)),
    ],
)
def test_bounds_that_a_text_does_not_name_stay(root: Path, budget: str, expected: PlanBudget) -> None:
    plan = stage(root, {"id": "one"}, plan={"budget": {"max_attempts": 7, "max_cost_usd": 2}})
    source = f"id: p\n{budget}steps:\n  - {{id: one}}\n  - {{id: two}}\n"
    revised = plan.call("revise_plan", RevisePlanRequest(scope=plan.scope, source=source))
    assert revised.problem == ""
    assert StoredPlan.model_validate_json(plan.artifact(revised.plan)).plan.budget == expected


def test_budget_alone_is_a_change(root: Path) -> None:
    plan = stage(root, {"id": "one"})
    source = "id: p\nbudget: {max_cost_usd: 5}\nsteps:\n  - {id: one}\n"
    revised = plan.call("revise_plan", RevisePlanRequest(scope=plan.scope, source=source))
    assert (revised.problem, revised.diff) == ("", "plan fields: budget")
