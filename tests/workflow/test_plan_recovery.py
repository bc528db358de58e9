"""What follows failures of plans: alternates, people, compensation, limits, broken workers, cancelling."""

from collections.abc import Callable

import pytest

from activities.plan.requests import RunStepRequest
from tests.support.plan.doubles import (
    BASE,
    Hanging,
    PlanStage,
    Playing,
    ScriptedPlanActivities,
    asks,
    done,
    fails,
    plan_worker,
)
from tests.support.plan.impatient import ImpatientPlan
from tightloop.errors import GitError, InvalidRequestError, WorkspaceError
from tightloop.executor.model import Usage
from tightloop.ledger.alert import AlertKind
from tightloop.plan.failing import Recovery
from tightloop.plan.request import PlanOutcome

CHAIN = """
id: chain
on_failure: {policy}
steps:
  - {{id: one, shell: {{run: "true"}}}}
  - {{id: two, needs: [one], shell: {{run: "true"}}}}
  - {{id: three, needs: [two], shell: {{run: "true"}}}}
  - {{id: after, needs: [three], shell: {{run: "true"}}}}
  - {{id: beside, needs: [one], shell: {{run: "true"}}, access: none}}
"""
ALTERNATE = """
id: alternate
steps:
  - {id: make, shell: {run: "true"}}
  - {id: fast, needs: [make], shell: {run: "true"}, on_failure: {to: slow, compensate: [make]}}
  - {id: slow, shell: {run: "true"}}
  - {id: after, needs: [fast], shell: {run: "true"}, access: none}
"""


def chain(policy: str) -> str:
    return CHAIN.format(policy=policy)


def step(**fields: object) -> str:
    """A plan with one step, that asks nobody."""
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return f'id: one\non_failure: fail\nsteps: [{{id: a, shell: {{run: "true"}}, access: none{more}}}]\n'


async def test_failed_step_blocks_what_needs_it_and_the_rest_is_done_before_the_plan_fails(playing: Playing):
    async with playing(chain("fail"), {"two": fails("no disk")}) as stage:
        result = await stage.result()
        steps = await stage.steps()
    assert result.outcome is PlanOutcome.FAILED
    assert result.reason == "1 step failed: two (no disk)"
    assert steps == {
        "one": "completed",
        "two": "failed",
        "three": "abandoned",
        "after": "abandoned",
        "beside": "completed",
    }
    assert [request.alert.kind for request in stage.scripted.alerts] == [AlertKind.FAILED]
    assert stage.scripted.closed[0].statuses == {"two": "failed", "three": "abandoned", "after": "abandoned"}


@pytest.mark.parametrize(
    ("answer", "outcome", "expected"),
    [
        ("retry", PlanOutcome.COMPLETED, {"completed": 5}),
        ("skip", PlanOutcome.COMPLETED, {"completed": 2, "skipped": 3}),
        ("fail", PlanOutcome.FAILED, {"completed": 2, "failed": 1, "abandoned": 2}),
    ],
)
async def test_person_decides_about_a_failure(playing: Playing, answer, outcome, expected):
    async with playing(chain("ask"), {"two": [fails("no disk"), done()]}) as stage:
        status = await stage.paused()
        await stage.alerted()
        said = await stage.plans.answer(stage.id, answer, question="two", by="ada")
        result = await stage.result()
    assert (status.questions[0].step, status.failed[0].failure.reason) == ("two", "no disk")
    assert status.questions[0].title == "two failed: no disk"
    assert status.counts == {"completed": 2, "failed": 1, "blocked": 2}
    assert said == f"two: {answer}"
    assert (result.outcome, result.counts) == (outcome, expected)
    assert stage.scripted.alerts[0].alert.kind is AlertKind.FAILED_STEP


async def test_a_failed_step_is_tried_again_with_what_a_person_fixed_but_not_by_a_bare_resume(playing: Playing):
    async with playing(chain("ask"), {"two": [fails("no disk"), done()]}) as stage:
        await stage.paused()
        stage.scripted.edited = f"{BASE},one,fixed"
        await stage.temporal.get_workflow_handle(stage.id).signal("resume")
        await stage.plans.answer(stage.id, "retry", by="ada")
        result = await stage.result()
        told = await stage.told()
    assert "waits two: failed_step needs a decision: retry, skip, fail" in told
    assert stage.scripted.closed[0].decisions["two"][0].by == "ada"
    assert stage.scripted.closed[0].edits == ("edits to 1 file made during the pause were kept",)
    assert result.outcome is PlanOutcome.COMPLETED
    assert result.tree == f"{BASE},one,fixed,two,three,after"
    assert [ran.attempt for ran in stage.scripted.ran if ran.step == "two"] == [1, 2]


async def test_failure_is_answered_while_other_steps_still_run(playing: Playing):
    slow = Hanging()
    async with playing(chain("ask"), {"two": [fails("no disk"), done()], "beside": slow}) as stage:
        await stage.until(lambda status: status.questions)
        await stage.plans.answer(stage.id, "retry")
        await stage.until(lambda status: status.counts.get("completed") == 4)
        slow.go.set()
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


async def test_answer_without_a_question_is_refused(playing: Playing):
    async with playing(chain("ask"), {"two": fails()}) as stage:
        await stage.paused()
        with pytest.raises(InvalidRequestError, match="'three' is not an open question"):
            await stage.plans.answer(stage.id, "retry", question="three")
        with pytest.raises(InvalidRequestError, match="Example: "):
            await stage.plans.answer(stage.id, "again", question="two")
        await stage.plans.answer(stage.id, "fail")
        await stage.result()


async def test_failed_plan_takes_everything_back_in_reverse_order(playing: Playing):
    async with playing(chain("compensate"), {"three": fails("no disk")}) as stage:
        result = await stage.result()
        steps, status = await stage.steps(), await stage.status()
    assert result.outcome is PlanOutcome.COMPENSATED
    assert stage.scripted.taken_back == ["two", "one"]
    assert (result.tree, result.reason, status.status) == (
        BASE,
        "three: no disk. Undone: two: 1 file restored; one: 1 file restored",
        "compensated",
    )
    assert (steps["one"], steps["two"], steps["after"]) == ("compensated", "compensated", "abandoned")


async def test_what_cannot_be_taken_back_is_told_and_the_rest_goes_on(playing: Playing):
    async with playing(chain("compensate"), {"three": fails("no disk")}, cannot_take_back={"two"}) as stage:
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.FAILED
    assert stage.scripted.taken_back == ["one"]
    not_undone = "Not undone: two: a later step changed the same lines of app.py"
    assert result.reason == f"three: no disk. Undone: one: 1 file restored. {not_undone}"
    assert "not undone two: a later step changed the same lines of app.py" in told


async def test_running_steps_are_stopped_before_anything_is_taken_back(playing: Playing):
    slow = Hanging()

    async def after_slow(_request: RunStepRequest):
        await slow.started.wait()
        return fails("no disk")

    async with playing(chain("compensate"), {"beside": slow, "two": after_slow}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPENSATED
    assert slow.cancelled == 1
    assert stage.scripted.order.index("-beside") < stage.scripted.order.index("~one")


async def test_alternate_does_the_work_after_the_named_steps_were_taken_back(playing: Playing):
    async with playing(ALTERNATE, {"fast": fails("too hard")}) as stage:
        result = await stage.result()
        steps = await stage.steps()
    assert result.outcome is PlanOutcome.COMPLETED
    assert steps == {"make": "compensated", "fast": "recovered", "slow": "completed", "after": "completed"}
    assert [ran.expected_tree for ran in stage.scripted.ran if ran.step == "slow"] == [BASE]
    assert result.tree == f"{BASE},slow"


async def test_alternate_that_fails_too_is_asked_about(playing: Playing):
    async with playing(ALTERNATE, {"fast": fails("too hard"), "slow": [fails("also hard"), done()]}) as stage:
        status = await stage.paused()
        await stage.plans.answer(stage.id, "retry", question="slow")
        result = await stage.result()
    assert [question.step for question in status.questions] == ["slow"]
    assert result.outcome is PlanOutcome.COMPLETED


async def test_undone_step_that_a_repaired_step_needs_runs_again(playing: Playing):
    script = {"fast": [fails("too hard"), done()], "slow": fails("also hard")}
    async with playing(ALTERNATE, script) as stage:
        await stage.paused()
        await stage.plans.replan(stage.id, ALTERNATE, rationale="the line is back")
        result = await stage.result()
        steps = await stage.steps()
    assert result.outcome is PlanOutcome.COMPLETED
    assert steps == {"make": "completed", "fast": "completed", "slow": "skipped", "after": "completed"}
    assert [(ran.step, ran.attempt) for ran in stage.scripted.ran if ran.step == "make"] == [("make", 1), ("make", 2)]
    assert result.tree == f"{BASE},make,fast"


async def test_failure_mode_that_says_skip_goes_on_without_the_step(playing: Playing):
    async with playing(chain("ask"), {"two": fails("nothing found", recover=Recovery.SKIP, mode="empty")}) as stage:
        result = await stage.result()
    assert (result.outcome, result.counts) == (PlanOutcome.COMPLETED, {"completed": 2, "skipped": 3})


async def test_failure_mode_that_says_abort_ends_the_plan_at_once(playing: Playing):
    async with playing(chain("ask"), {"two": fails("wrong branch", recover=Recovery.ABORT)}) as stage:
        result = await stage.result()
    assert (result.outcome, result.reason) == (PlanOutcome.FAILED, "two: wrong branch")


async def test_retry_of_a_person_gives_a_step_all_its_attempts_again(playing: Playing):
    no_answer = [fails("no answer", "transient")] * 5
    source = step(retry="{attempts: 3, initial_s: 0}").replace("on_failure: fail\n", "")
    async with playing(source, {"a": [*no_answer, done()]}) as stage:
        await stage.paused()
        assert [ran.attempt for ran in stage.scripted.ran] == [1, 2, 3]
        await stage.plans.answer(stage.id, "retry")
        result = await stage.result()
        timeline = [line.text for line in await stage.plans.timeline(stage.id)]
    assert result.outcome is PlanOutcome.COMPLETED
    assert [ran.attempt for ran in stage.scripted.ran] == [1, 2, 3, 4, 5, 6]
    assert sum("no answer" in line for line in timeline if line.startswith("a: transient")) == 5


async def test_service_that_asks_for_patience_gets_it(playing: Playing):
    script = {"a": [fails("429", "transient", retry_after_s=0.6), done()]}
    async with playing(step(retry="{initial_s: 0}"), script) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert result.spent.wall_time.total_seconds() >= 0.6


async def test_time_box_ends_the_tries(playing: Playing):
    script = {"a": fails("busy", "transient")}
    async with playing(step(timebox_s=5, retry="{attempts: 50, initial_s: 1, factor: 1}"), script) as stage:
        result = await stage.result()
        timeline = [line.text for line in await stage.plans.timeline(stage.id)]
    assert result.outcome is PlanOutcome.FAILED
    tries = len(stage.scripted.ran)
    assert 2 <= tries <= 5
    assert (
        f"a: attempt {tries} of 50 is the last one: the time box of 5 s leaves no time for another attempt" in timeline
    )


async def test_step_budget_ends_the_tries(playing: Playing):
    usage = Usage(input_tokens=60, output_tokens=0, cost_usd=0.1)
    busy = fails("busy", "transient").evolve(usage=usage)
    source = step(retry="{attempts: 9, initial_s: 0}", budget="{max_tokens: 100}")
    async with playing(source, {"a": busy}) as stage:
        result = await stage.result()
    assert len(stage.scripted.ran) == 2
    assert "a has used 120 tokens, but its budget is 100" in result.reason
    assert (result.spent.tokens, round(result.spent.cost_usd, 2)) == (120, 0.2)


async def test_watchdog_that_cancels_is_a_failure_that_is_tried_again(playing: Playing):
    slow = Hanging()
    source = step(watchdog="{after_s: 1.5, escalate: cancel}", retry="{attempts: 9, initial_s: 0}")
    async with playing(source, {"a": [slow, done()]}) as stage:
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert slow.cancelled == 1
    assert "failed a: transient: the watchdog stopped the attempt after 1.5 s" in told


@pytest.mark.parametrize("escalate", ["alert", "pause"])
async def test_watchdog_tells_a_person(playing: Playing, escalate):
    slow = Hanging()
    async with playing(step(watchdog=f"{{after_s: 0.3, escalate: {escalate}}}"), {"a": slow}) as stage:
        await stage.until(lambda _: stage.scripted.alerts)
        status = await stage.status()
        slow.go.set()
        # Without a pause the plan may have ended by now, and would refuse the message.
        if escalate == "pause":
            await stage.plans.resume(stage.id)
        result = await stage.result()
    alert = stage.scripted.alerts[0].alert
    assert (alert.kind, alert.step) == (AlertKind.OVERDUE, "a")
    assert status.status == ("paused" if escalate == "pause" else "running")
    assert slow.cancelled == 0
    assert result.outcome is PlanOutcome.COMPLETED


def broken(times: int, error: Callable[[], Exception]) -> Callable:
    """A step whose worker is in trouble so many times."""
    left = times

    async def act(_request: RunStepRequest):
        nonlocal left
        left -= 1
        if left >= 0:
            raise error()
        return done()

    return act


async def test_trouble_of_a_worker_is_no_failure_of_the_step(playing: Playing):
    async with playing(step(), {"a": broken(2, lambda: GitError("git is busy"))}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert (result.spent.attempts, {ran.attempt for ran in stage.scripted.ran}) == (1, {1})


async def test_workspace_that_cannot_be_used_pauses_the_plan_and_the_same_attempt_is_run_again(playing: Playing):
    async with playing(step(), {"a": broken(1, lambda: WorkspaceError("no room on /data"))}) as stage:
        status = await stage.paused()
        await stage.alerted()
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert (status.questions[0].title, status.questions[0].default) == ("no room on /data", "retry")
    assert stage.scripted.alerts[0].alert.kind is AlertKind.FATAL
    assert [ran.attempt for ran in stage.scripted.ran] == [1, 1]
    assert result.outcome is PlanOutcome.COMPLETED


@pytest.mark.parametrize(
    ("budget", "addition", "sentence"),
    [
        ("{max_attempts: 4}", {"attempts": 10}, "the plan has started 4 step attempts, and max_attempts is 4"),
        ("{max_tokens: 100}", {"tokens": 1_000}, "the plan has used 120 tokens, and max_tokens is 100"),
        ("{max_cost_usd: 0.1}", {"cost_usd": 5}, "the plan has spent 0.1 USD, and max_cost_usd is 0.1"),
        ("{max_api_calls: 1}", {"api_calls": 50}, "the plan has made 1 API calls, and max_api_calls is 1"),
    ],
)
async def test_spent_budget_pauses_the_plan_until_it_is_raised(playing: Playing, budget, addition, sentence):
    usage = Usage(input_tokens=60, output_tokens=0, cost_usd=0.1)
    spending = done(usage=usage, api_calls=1)
    twice = [fails("busy", "transient"), spending]
    steps = "".join(
        f'  - {{id: s{n}, shell: {{run: "true"}}, access: none, needs: [{f"s{n - 1}" if n else ""}], '
        "retry: {initial_s: 0}}\n"
        for n in range(4)
    )
    source = f"id: budget\nbudget: {budget}\nsteps:\n{steps}"
    async with playing(source, {"s0": twice, **{f"s{n}": spending for n in range(1, 4)}}) as stage:
        status = await stage.paused()
        await stage.alerted()
        said = await stage.plans.top_up(stage.id, **addition)
        result = await stage.result()
    assert sentence in status.questions[0].title
    assert said == "the budget was raised"
    assert stage.scripted.alerts[0].alert.kind is AlertKind.BUDGET
    assert result.outcome is PlanOutcome.COMPLETED


async def test_template_that_would_become_too_many_steps_waits_for_a_person(playing: Playing):
    source = """
id: fan
budget: {max_fan_out: 2}
steps:
  - {id: list, shell: {run: "true"}, access: none, outputs: {found: json}}
  - {id: look-*, needs: [list], for_each: "${list.found}", shell: {run: "true"}, access: none}
"""
    async with playing(source, {"list": done(counts={"found": 5})}) as stage:
        status = await stage.paused()
        await stage.plans.top_up(stage.id, fan_out=3)
        result = await stage.result()
    assert "look-* would expand to 5 steps, but max_fan_out is 2" in status.questions[0].title
    assert result.counts == {"completed": 6}


async def test_plan_is_cancelled_and_its_running_steps_are_stopped(playing: Playing):
    slow = Hanging()
    async with playing(chain("ask"), {"two": slow}) as stage:
        await slow.started.wait()
        await stage.plans.cancel(stage.id, "wrong plan", by="ada")
        result = await stage.result()
        status, steps = await stage.status(), await stage.steps()
    assert (result.outcome, result.reason, status.status) == (PlanOutcome.CANCELLED, "wrong plan", "cancelled")
    assert slow.cancelled == 1
    assert stage.scripted.taken_back == []
    assert (steps["one"], steps["two"], steps["three"]) == ("completed", "abandoned", "abandoned")


async def test_cancelled_plan_is_taken_back_where_it_says_so(playing: Playing):
    slow = Hanging()
    async with playing(chain("compensate"), {"two": slow}) as stage:
        await slow.started.wait()
        await stage.plans.cancel(stage.id)
        result = await stage.result()
    assert result.outcome is PlanOutcome.CANCELLED
    assert stage.scripted.taken_back == ["one"]


async def test_cancelling_in_temporal_stops_the_steps_and_gives_the_workspace_back(playing: Playing):
    slow = Hanging()
    async with playing(chain("ask"), {"two": slow}) as stage:
        await slow.started.wait()
        await stage.temporal.get_workflow_handle(stage.id).cancel()
        result = await stage.result()
    assert (result.outcome, result.reason) == (PlanOutcome.CANCELLED, "cancelled in Temporal")
    assert slow.cancelled == 1
    assert stage.scripted.closed[0].outcome is PlanOutcome.CANCELLED


async def test_plan_is_cancelled_while_its_definition_of_done_runs(playing: Playing):
    source = step() + "definition_of_done: [sleep 1000]\n"
    async with playing(source, hang_when_verifying=True) as stage:
        await stage.until(lambda status: status.phase == "VERIFYING")
        await stage.plans.cancel(stage.id, "too slow")
        result = await stage.result()
    assert (result.outcome, result.reason) == (PlanOutcome.CANCELLED, "too slow")


async def test_plan_is_cancelled_while_it_waits_for_a_person(playing: Playing):
    source = "id: gate\nsteps: [{id: g, gate: {approval: {}}}]\n"
    async with playing(source, {"g": asks()}) as stage:
        await stage.waits()
        await stage.plans.cancel(stage.id)
        result = await stage.result()
    assert result.outcome is PlanOutcome.CANCELLED


async def test_missing_worker_pauses_the_plan_with_what_to_do(temporal_client, settings, plans):
    scripted = ScriptedPlanActivities()
    stage = PlanStage(plans, scripted, temporal_client)
    own, queue = settings.temporal.task_queue, f"{settings.temporal.task_queue}-host"
    opening = [scripted.open_plan, scripted.close_plan, scripted.adopt_workspace]
    gone = [method for method in scripted.all() if method not in opening]
    async with plan_worker(temporal_client, own, [scripted.send_alerts], workflows=[ImpatientPlan]):
        async with plan_worker(temporal_client, queue, opening, workflows=[]):
            await stage.start(step(), queues={"workspace": queue})
            await stage.until(lambda status: status.running)
        status = await stage.paused()
        async with plan_worker(temporal_client, queue, [*opening, *gone], workflows=[]):
            await stage.plans.resume(stage.id)
            result = await stage.result()
    assert status.questions[0].title.startswith(f"no worker on task queue '{queue}' accepted run_shell within 5 s")
    assert scripted.alerts[0].alert.kind is AlertKind.NO_EXECUTOR
    assert result.outcome is PlanOutcome.COMPLETED
