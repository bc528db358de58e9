"""Plans that would never end by themselves: a breaker stops each of them, and says which bound was reached."""

import asyncio
from pathlib import Path

import pytest

from activities.plan.requests import RunStepRequest
from tests.support.episodes import Git, Working
from tests.support.plan.doubles import Playing, asks, done, fails
from tightloop.client import TightloopClient
from tightloop.executor.model import Usage
from tightloop.plan.child import StepResult
from tightloop.plan.request import PlanOutcome, PlanRequest

ADVICE = "Raise the limit with tightloop top-up, or cancel the plan"


def wide(count: int, budget: str) -> str:
    """A plan of steps side by side, four at once."""
    steps = "".join(f'  - {{id: s{n}, shell: {{run: "true"}}, access: none}}\n' for n in range(count))
    return f"id: wide\nmax_parallel: 4\nbudget: {budget}\nsteps:\n{steps}"


def attempt(number: int) -> str:
    """A revision whose one step is another try of the same."""
    return (
        f"id: again\non_failure: fail\nbudget: {{max_revisions: 5}}\nsteps:\n"
        f'  - {{id: first}}\n  - {{id: try{number}, needs: [first], shell: {{run: "false"}}, access: none}}\n'
    )


async def test_planner_that_only_ever_writes_another_try_is_stopped(playing: Playing):
    async with playing(attempt(0), {}, planner=attempt(1)) as stage:

        async def breaks(request: RunStepRequest) -> StepResult:
            stage.scripted.planner = attempt(int(request.step.removeprefix("try")) + 1)
            return fails("broken again")

        stage.scripted.script.update({f"try{number}": breaks for number in range(100)})
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.FAILED
    assert "try4 (broken again)" in result.reason
    assert stage.scripted.names() == ["first", *(f"try{number}" for number in range(5))]
    assert (result.revision, len(stage.scripted.revisions)) == (5, 4)
    assert f"refused revision: the plan has 5 revisions, and max_revisions is 5. {ADVICE}" in told


async def test_planner_that_writes_the_same_failing_step_is_asked_twice_and_not_again(playing: Playing):
    def text(note: int) -> str:
        return f'id: same\non_failure: fail\nsteps: [{{id: a, title: n{note}, shell: {{run: "false"}}}}]\n'

    async with playing(text(0), {}, planner=text(1)) as stage:

        async def breaks(request: RunStepRequest) -> StepResult:
            stage.scripted.planner = text(len(stage.scripted.ran))
            return fails("broken again")

        stage.scripted.script["a"] = breaks
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert len(stage.scripted.revisions) == 2
    assert stage.scripted.names() == ["a"] * 3


async def test_template_that_explodes_makes_no_step_at_all(playing: Playing):
    source = """
id: explosion
steps:
  - {id: list, shell: {run: "true"}, access: none, outputs: {found: json}}
  - {id: look-*, needs: [list], for_each: "${list.found}", shell: {run: "true"}, access: none}
"""
    async with playing(source, {"list": done(counts={"found": 1_000_000})}) as stage:
        status = await stage.paused()
        await stage.plans.cancel(stage.id)
        result = await stage.result()
    assert status.questions[0].title == f"look-* would expand to 1000000 steps, but max_fan_out is 100. {ADVICE}"
    assert result.outcome is PlanOutcome.CANCELLED
    assert stage.scripted.names() == ["list"]


async def test_templates_that_feed_templates_are_stopped_by_the_number_of_attempts(playing: Playing):
    items = ", ".join(str(n) for n in range(100))
    steps = [f"  - {{id: a0-*, for_each: [{items}], shell: {{run: x}}, outputs: {{x: json}}}}\n"]
    steps += [
        f'  - {{id: a{n}-*, needs: ["a{n - 1}-*"], for_each: "${{a{n - 1}-*.x}}", '
        "shell: {run: x}, outputs: {x: json}}\n"
        for n in range(1, 6)
    ]
    source = f"id: cascade\nmax_parallel: 20\nbudget: {{max_attempts: 250}}\nsteps:\n{''.join(steps)}"
    async with playing(source) as stage:
        status = await stage.paused()
        await stage.plans.cancel(stage.id)
        result = await stage.result()
    assert "step attempts, and max_attempts is 250" in status.questions[0].title
    assert 250 <= len(stage.scripted.names()) < 250 + 20
    assert result.outcome is PlanOutcome.CANCELLED


async def test_step_that_fails_for_ever_is_stopped_by_the_number_of_attempts(playing: Playing):
    source = """
id: for-ever
budget: {max_attempts: 12}
steps:
  - {id: a, shell: {run: "false"}, access: none, retry: {attempts: 50, initial_s: 0}}
  - {id: b, needs: [a], shell: {run: "true"}}
"""
    async with playing(source, {"a": fails("busy", "transient")}) as stage:
        status = await stage.paused()
        await stage.plans.cancel(stage.id, "it never ends")
        result = await stage.result()
    assert status.questions[0].title == f"the plan has started 12 step attempts, and max_attempts is 12. {ADVICE}"
    assert status.questions[0].names == ("extend", "cancel")
    assert stage.scripted.names() == ["a"] * 12
    assert (result.outcome, result.reason) == (PlanOutcome.CANCELLED, "it never ends")


async def test_step_that_asks_a_person_gets_no_more_attempts_by_that(playing: Playing):
    source = """
id: asking
on_failure: fail
steps: [{id: a, shell: {run: "false"}, retry: {attempts: 2, initial_s: 0}}]
"""

    async def act(request: RunStepRequest) -> StepResult:
        return fails("busy", "transient") if request.answers or request.attempt == 1 else await asks()(request)

    async with playing(source, {"a": act}) as stage:
        await stage.waits()
        await stage.plans.answer(stage.id, "approve", question="a")
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert [(ran.attempt, len(ran.answers)) for ran in stage.scripted.ran] == [(1, 0), (2, 0), (2, 1)]


async def test_step_that_fails_for_ever_is_stopped_by_its_time_box(playing: Playing):
    source = """
id: boxed
on_failure: fail
steps: [{id: a, shell: {run: "false"}, timebox_s: 1, retry: {attempts: 50, initial_s: 0.3, factor: 1}}]
"""
    async with playing(source, {"a": fails("busy", "transient")}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert "a (busy)" in result.reason
    assert 1 < len(stage.scripted.names()) <= 4


@pytest.mark.parametrize(
    ("budget", "sentence"),
    [
        ("{max_cost_usd: 5}", "USD, and max_cost_usd is 5"),
        ("{max_tokens: 5000}", "tokens, and max_tokens is 5000"),
        ("{max_api_calls: 5}", "API calls, and max_api_calls is 5"),
    ],
)
async def test_steps_that_spend_too_much_stop_the_plan(playing: Playing, budget: str, sentence: str):
    spending = done(usage=Usage(input_tokens=900, output_tokens=100, cost_usd=1.0), api_calls=1)
    async with playing(wide(60, budget), {f"s{n}": spending for n in range(60)}) as stage:
        status = await stage.paused()
        await stage.plans.cancel(stage.id)
        result = await stage.result()
    started = len(stage.scripted.names())
    assert sentence in status.questions[0].title
    assert status.questions[0].title.endswith(ADVICE)
    assert 5 <= started < 5 + 4
    assert result.spent.cost_usd == started


async def test_plan_that_works_too_long_starts_nothing_more(playing: Playing):
    async def slow(_request: RunStepRequest) -> StepResult:
        await asyncio.sleep(0.4)
        return done()

    source = wide(200, "{max_wall_s: 1}")
    async with playing(source, {f"s{n}": slow for n in range(200)}) as stage:
        status = await stage.paused()
        await stage.plans.cancel(stage.id)
        await stage.result()
    assert status.questions[0].title.startswith("the plan has worked for ")
    assert f"max_wall_s is 1. {ADVICE}" in status.questions[0].title
    assert len(stage.scripted.names()) < 40


async def test_person_is_asked_while_a_step_works_longer_than_the_plan_may(playing: Playing):
    going = asyncio.Event()

    async def slow(_request: RunStepRequest) -> StepResult:
        await going.wait()
        return done()

    source = "id: p\nbudget: {max_wall_s: 1}\nsteps: [{id: a, shell: {run: x}}, {id: b, needs: [a], shell: {run: x}}]"
    async with playing(source, {"a": slow, "b": done()}) as stage:
        status = await stage.until(lambda status: status.status == "paused")
        assert [line.id for line in status.running] == ["a"]
        assert "max_wall_s is 1" in status.questions[0].title
        going.set()
        await stage.until(lambda status: not status.running)
        assert stage.scripted.names().count("b") == 0
        await stage.plans.top_up(stage.id, wall_minutes=10)
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


async def test_last_step_that_works_too_long_asks_nobody_in_the_end(playing: Playing):
    async def slow(_request: RunStepRequest) -> StepResult:
        await asyncio.sleep(1.5)
        return done()

    async with playing("id: p\nbudget: {max_wall_s: 1}\nsteps: [{id: a, shell: {run: x}}]", {"a": slow}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


async def test_subplan_that_contains_itself_ends_at_the_depth_of_the_outermost_plan(
    working: Working, client: TightloopClient, workspace: Path, git: Git
):
    text = """
id: matryoshka
on_failure: fail
budget: {{max_depth: {depth}}}
steps: [{{id: inner, subplan: {{file: matryoshka.yaml}}}}]
"""
    (workspace / "matryoshka.yaml").write_text(text.format(depth=16))
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "a plan within itself")
    request = PlanRequest(workspace=str(workspace), source=text.format(depth=3))
    async with working():
        plan_id = await client.start(request)
        async with asyncio.timeout(60):
            result = await client.result(plan_id)
        started = [row.id for row in await client.list(limit=500) if row.id.startswith(plan_id)]
    assert result.outcome is PlanOutcome.FAILED
    assert "the plan is nested 4 levels deep, but max_depth is 3" in result.reason
    assert "Raise max_depth in the budget of the outermost plan" in result.reason
    assert sorted(started) == [plan_id, f"{plan_id}.inner.1", f"{plan_id}.inner.1.inner.1"]
