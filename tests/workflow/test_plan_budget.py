"""The bounds of a plan when it is changed: a person's word counts, a planner's raises nothing, a top-up stays."""

import json

import pytest

from tests.support.episodes import Working, eventually
from tests.support.plan.doubles import Hanging, Playing, done, fails
from tightloop.client import TightloopClient
from tightloop.plan.document import PlanBudget, StoredPlan
from tightloop.plan.request import PlanOutcome, PlanRequest


def line(*, steps: str = "abc", **budget: float | None) -> str:
    """Return a plan of steps that follow each other."""
    written = [
        {"id": name, "shell": {"run": "true"}, "needs": list(steps[max(at - 1, 0) : at])}
        for at, name in enumerate(steps)
    ]
    return json.dumps({"id": "line", "steps": written, "budget": budget})


async def test_person_who_raises_the_bound_that_is_reached_lets_the_plan_go_on(playing: Playing):
    async with playing(line(max_api_calls=1), {"a": done(api_calls=1)}) as stage:
        before = await stage.paused()
        said = await stage.plans.replan(stage.id, line(max_api_calls=10), rationale="it is worth it", by="ada")
        result = await stage.result()
        told = await stage.told()
    assert "max_api_calls is 1" in before.questions[0].title
    assert "max_api_calls 1 -> 10" in said
    assert "budget max_api_calls 1 -> 10 (by ada)" in told
    assert (result.outcome, stage.scripted.names()) == (PlanOutcome.COMPLETED, ["a", "b", "c"])


async def test_person_who_lowers_a_bound_stops_the_plan_where_it_is_reached(playing: Playing):
    slow = Hanging()
    async with playing(line(), {"b": slow}) as stage:
        await slow.started.wait()
        await stage.plans.replan(stage.id, line(max_attempts=2), by="ada")
        slow.go.set()
        status = await stage.paused()
        await stage.plans.top_up(stage.id, attempts=5)
        result = await stage.result()
    assert status.questions[0].title.startswith("the plan has started 2 step attempts, and max_attempts is 2")
    assert (result.outcome, stage.scripted.names()) == (PlanOutcome.COMPLETED, ["a", "b", "c"])


async def test_top_up_outlasts_a_revision_that_says_nothing_else(playing: Playing):
    slow = Hanging()
    script = {"a": done(api_calls=1), "b": slow, "c": done(api_calls=5)}
    async with playing(line(max_api_calls=2), script) as stage:
        await slow.started.wait()
        await stage.plans.top_up(stage.id, api_calls=10)
        said = await stage.plans.replan(stage.id, line(steps="abcd", max_api_calls=2), by="ada")
        slow.go.set()
        result = await stage.result()
    assert said == "revision 2 is now active. added: d"
    assert (result.outcome, stage.scripted.names()) == (PlanOutcome.COMPLETED, ["a", "b", "c", "d"])


async def test_planner_cannot_raise_a_bound(playing: Playing):
    greedy = line(steps="axyz", max_attempts=1_000)
    async with playing(line(max_attempts=3), {"b": fails("no way")}, planner=greedy) as stage:
        status = await stage.paused()
        told = await stage.told()
        await stage.plans.cancel(stage.id)
        await stage.result()
    assert (status.revision, status.spent.attempts) == (2, 3)
    assert "max_attempts is 3" in status.questions[0].title
    assert [event for event in told if event.startswith("budget")] == []


async def test_planner_that_a_person_asks_cannot_raise_a_bound_either(playing: Playing):
    slow = Hanging()
    greedy = line(steps="abxyz", max_attempts=1_000)
    async with playing(line(max_attempts=3), {"b": slow}, planner=greedy) as stage:
        await slow.started.wait()
        await stage.plans.replan(stage.id, "", rationale="do more", by="ada")
        slow.go.set()
        status = await stage.paused()
        await stage.plans.cancel(stage.id)
        await stage.result()
    assert (status.revision, status.spent.attempts) == (2, 3)


async def test_raise_that_is_not_enough_leaves_the_plan_paused(playing: Playing):
    async with playing(line(steps="abcd", max_api_calls=3), {"a": done(api_calls=5)}) as stage:
        await stage.paused()
        await stage.plans.replan(stage.id, line(steps="abcd", max_api_calls=4), by="ada")
        status = await stage.paused()
        await stage.plans.top_up(stage.id, api_calls=100)
        result = await stage.result()
    assert status.status == "paused"
    assert status.revision == 2
    assert result.outcome is PlanOutcome.COMPLETED


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({}, PlanBudget(max_wall_s=0.001, max_cost_usd=2.0)),
        ({"max_wall_s": 600}, PlanBudget(max_wall_s=600, max_cost_usd=2.0)),
        ({"max_wall_s": 600, "max_cost_usd": None}, PlanBudget(max_wall_s=600)),
    ],
)
async def test_revision_that_leaves_a_bound_out_keeps_it(
    client: TightloopClient, working: Working, workspace, stated, kept
):
    source = line(max_wall_s=0.001, max_cost_usd=2.0)
    async with working() as adapters:
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))

        async def is_paused() -> bool:
            return (await client.status(plan_id)).status == "paused"

        await eventually(is_paused)
        await client.replan(plan_id, line(steps="abcd", **stated), by="ada")
        status = await client.status(plan_id)
        assert status.plan is not None
        stored = StoredPlan.model_validate_json(adapters.stores(workspace).get(status.plan))
        if not stated:
            assert status.status == "paused"
            await client.top_up(plan_id, wall_minutes=10)
        result = await client.result(plan_id)
    assert stored.plan.budget == kept
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
