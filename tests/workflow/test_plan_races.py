"""What reaches a plan at a bad moment: while it opens, gives way, takes steps back, is changed, or ends."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from activities.plan.requests import PlanVerification
from tests.support.plan.doubles import BASE, Hanging, Playing, asks, done, fails
from tightloop.errors import InvalidRequestError, PlanError
from tightloop.plan.request import PlanOutcome, PlanPhase
from tightloop.plan.text.reading import read_plan

LINE = """
id: line
on_failure: {policy}
steps:
  - {{id: a, shell: {{run: "true"}}}}
  - {{id: b, needs: [a], shell: {{run: "true"}}}}
  - {{id: c, needs: [b], shell: {{run: "true"}}}}
"""
ASK, TAKE_BACK = LINE.format(policy="ask"), LINE.format(policy="compensate")


class Gate:
    """An activity that says when it begins, and waits."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        """Wait here."""
        self.begun.set()
        await self.go.wait()


async def send(stage: Any, name: str, *words: Any) -> None:
    await stage.temporal.get_workflow_handle(stage.id).signal(name, args=list(words))


# -- giving way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_temporal", [False, True])
async def test_plan_cancelled_while_its_next_run_loads_is_taken_back_and_closed(playing: Playing, in_temporal):
    gate = Gate()
    async with playing(TAKE_BACK, request={"attempts_per_run": 2}) as stage:
        stage.scripted.before_load = gate.pass_through
        await gate.begun.wait()
        if in_temporal:
            await stage.temporal.get_workflow_handle(stage.id).cancel()
        else:
            await stage.plans.cancel(stage.id, "enough")
        await asyncio.sleep(0.1)
        gate.go.set()
        result = await stage.result()
    assert result.outcome is PlanOutcome.CANCELLED
    assert stage.scripted.taken_back == ["b", "a"]
    assert [closed.expected_tree for closed in stage.scripted.closed] == [BASE]


async def test_plan_cancelled_in_temporal_while_a_change_holds_up_its_next_run_is_closed(playing: Playing):
    slow, gate = Hanging(), Gate()
    async with playing(TAKE_BACK, {"b": slow}, {"attempts_per_run": 2}) as stage:
        await slow.started.wait()
        stage.scripted.before_revision = (gate.begun, gate.go)
        change = asyncio.create_task(stage.plans.replan(stage.id, TAKE_BACK + "# more\n"))
        await gate.begun.wait()
        slow.go.set()
        await stage.until(lambda status: status.counts.get("completed") == 2)
        await asyncio.sleep(0.2)
        await stage.temporal.get_workflow_handle(stage.id).cancel()
        with pytest.raises(InvalidRequestError, match="ending"):
            await change
        result = await stage.result()
    assert result.outcome is PlanOutcome.CANCELLED
    assert len(stage.scripted.closed) == 1
    assert stage.scripted.taken_back == ["b", "a"]


async def test_unmet_definition_of_done_is_answered_in_the_run_that_follows(playing: Playing):
    source = ASK + 'definition_of_done: ["false"]\n'
    unmet = [PlanVerification(passed=False, total=1, failed=("false",))]
    async with playing(source, None, {"attempts_per_run": 3}, verifications=unmet) as stage:
        await stage.until(lambda status: status.status == "paused" and stage.scripted.loads)
        said = await stage.plans.answer(stage.id, "cancel", "it is good enough", by="ada")
        result = await stage.result()
    assert said == "unmet: cancel"
    assert (result.outcome, result.reason) == (PlanOutcome.CANCELLED, "it is good enough")


# -- changes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_temporal", [False, True])
async def test_plan_is_cancelled_at_once_while_a_change_is_decided_on(playing: Playing, in_temporal):
    gate = Gate()
    async with playing(ASK, {"b": asks()}) as stage:
        await stage.waits()
        stage.scripted.before_revision = (gate.begun, gate.go)
        change = asyncio.create_task(stage.plans.replan(stage.id, ASK + "# more\n"))
        await gate.begun.wait()
        if in_temporal:
            await stage.temporal.get_workflow_handle(stage.id).cancel()
        else:
            await stage.plans.cancel(stage.id, "enough")
        with pytest.raises(InvalidRequestError, match="ending"):
            await change
        result = await stage.result(10)
        status = await stage.status()
    assert result.outcome is PlanOutcome.CANCELLED
    assert status.phase is PlanPhase.CLOSED
    assert status.revision == 1


async def test_plan_that_is_being_changed_is_not_failed_for_its_old_definition_of_done(playing: Playing):
    source = LINE.format(policy="fail") + 'definition_of_done: ["false"]\n'
    gate, unmet = Gate(), [PlanVerification(passed=False, total=1, failed=("false",))]
    async with playing(source, verifications=unmet) as stage:
        stage.scripted.before_verification = gate.pass_through
        await gate.begun.wait()
        await stage.plans.replan(stage.id, source + "  # more\n", rationale="changed")
        longer = source.replace(
            "definition_of_done", '  - {id: d, needs: [c], shell: {run: "true"}}\ndefinition_of_done'
        )
        await stage.plans.replan(stage.id, longer)
        gate.go.set()
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED, result.reason
    assert stage.scripted.names()[-1] == "d"


# -- taking back ------------------------------------------------------------------------------------

TWO_WAYS = """
id: ways
steps:
  - {id: one, shell: {run: "true"}}
  - {id: two, needs: [one], shell: {run: "true"}}
  - {id: x, needs: [two], access: none, shell: {run: "false"}, on_failure: {to: p, compensate: [one]}}
  - {id: y, needs: [two], access: none, shell: {run: "false"}, on_failure: {to: q, compensate: [two]}}
  - {id: p, shell: {run: "true"}}
  - {id: q, shell: {run: "true"}}
"""


async def test_two_steps_that_fail_at_once_take_back_one_after_the_other(playing: Playing):
    async with playing(TWO_WAYS, {"x": fails(), "y": fails()}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert sorted(stage.scripted.taken_back) == ["one", "two"]
    assert result.tree in (f"{BASE},p,q", f"{BASE},q,p")


async def test_plan_cancelled_while_a_step_is_taken_back_leaves_nothing_running(playing: Playing):
    gate = Gate()
    async with playing(TWO_WAYS, {"x": fails()}) as stage:
        stage.scripted.before_compensation = gate.pass_through
        await gate.begun.wait()
        await stage.plans.cancel(stage.id)
        result = await stage.result(10)
    assert result.outcome is PlanOutcome.CANCELLED
    assert result.counts.get("running", 0) == 0, result.counts


async def test_edits_of_a_pause_are_kept_beside_a_step_that_only_reads(playing: Playing):
    source = """
id: reading
steps:
  - {id: look, access: reads, shell: {run: "true"}}
  - {id: b, needs: [look], shell: {run: "true"}}
"""
    slow = Hanging()
    async with playing(source, {"look": slow}) as stage:
        await slow.started.wait()
        await stage.plans.pause(stage.id)
        stage.scripted.edited = f"{BASE},by hand"
        await stage.plans.resume(stage.id)
        await stage.until(lambda status: status.status == "running")
        await asyncio.sleep(0.2)
        slow.go.set()
        result = await stage.result()
    assert result.tree == f"{BASE},by hand,b"


# -- pauses and bounds ------------------------------------------------------------------------------


async def test_pause_of_an_operator_outlasts_the_pause_that_was_on(playing: Playing):
    source = ASK + "budget: {max_api_calls: 1}\n"
    async with playing(source, {"a": done(api_calls=1)}) as stage:
        await stage.paused()
        await stage.plans.pause(stage.id, "lunch", by="ada")
        await stage.plans.top_up(stage.id, api_calls=10)
        status = await stage.until(lambda status: [each.title for each in status.questions] == ["lunch"])
        ran = stage.scripted.names()
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert status.status == "paused"
    assert ran == ["a"]
    assert result.outcome is PlanOutcome.COMPLETED


async def test_a_bare_resume_ends_the_pause_and_does_not_run_a_failed_step_again(playing: Playing):
    async with playing(ASK, {"b": [fails(), done()]}) as stage:
        await stage.paused()
        await stage.plans.pause(stage.id, "lunch")
        await stage.plans.resume(stage.id, note="back again", by="ada")
        status = await stage.until(lambda status: [each.kind.value for each in status.questions] == ["failed_step"])
        told = await stage.told()
        await stage.plans.answer(stage.id, "retry")
        result = await stage.result()
    assert status.questions[0].default == ""
    assert "waits b: failed_step needs a decision: retry, skip, fail" in told
    assert "answered resume (by ada) back again" in told
    assert stage.scripted.names().count("b") == 2
    assert result.outcome is PlanOutcome.COMPLETED


async def test_budget_raised_before_the_plan_is_open_is_raised(playing: Playing):
    gate = Gate()
    source, script = ASK + "budget: {max_api_calls: 1}\n", {"a": done(api_calls=1)}
    async with playing(source, script, before_opening=gate.pass_through) as stage:
        await gate.begun.wait()
        raised = asyncio.create_task(stage.plans.top_up(stage.id, api_calls=10))
        await asyncio.sleep(0.2)
        gate.go.set()
        await raised
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


@pytest.mark.parametrize("more", [{"attempts": 10**400}, {"attempts": 10**13}, {"wall_minutes": 1e300}])
async def test_bound_cannot_be_raised_beyond_all_measure(playing: Playing, more):
    async with playing(ASK, {"a": asks()}) as stage:
        await stage.waits()
        with pytest.raises(InvalidRequestError, match="each amount must be at most"):
            await stage.plans.top_up(stage.id, **more)
        await stage.plans.answer(stage.id, "approve")
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


async def test_fan_out_raised_to_its_utmost_does_not_end_the_plan_in_its_next_run(playing: Playing):
    async with playing(ASK, {"a": asks()}, {"attempts_per_run": 2}) as stage:
        await stage.waits()
        await stage.plans.top_up(stage.id, fan_out=5_000)
        await stage.plans.answer(stage.id, "approve")
        result = await stage.result()
        assert stage.scripted.loads
    assert result.outcome is PlanOutcome.COMPLETED, result.reason


# -- what is no message at all ----------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None,
    7,
    -1.5,
    True,
    [],
    ["a", {"b": 1}],
    {},
    {"": None},
    {"question": []},
    {"question": {}, "option": 3},
    "",
    "ö" * 200_000,
    "nobody",
    {"by": "x" * 500_000, "text": "y" * 500_000},
    {"x" * 900_000: 1},
    "\x00" * 300_000,
    [[[[[[]]]]]],
    10**300,
    {"reason": {"deep": [1, 2]}, "by": 5},
)
SIGNALS = ("child_waits", "pause", "resume")
UPDATES = ("answer", "replan", "run_step", "top_up")


@pytest.mark.parametrize("name", SIGNALS)
async def test_no_signal_whatever_it_holds_stops_a_plan(playing: Playing, name):
    async with playing(ASK, {"a": asks("?", count=2), "b": [fails(), done()]}) as stage:
        await stage.waits()
        for word in ODD:
            await send(stage, name, word)
        await send(stage, name, 1, 2, 3)
        await send(stage, "nonsense", {"a": 1})
        await stage.plans.cancel(stage.id)
        result = await stage.result(20)
    assert result.outcome is PlanOutcome.CANCELLED


@pytest.mark.parametrize("name", UPDATES)
async def test_no_update_whatever_it_holds_stops_a_plan(playing: Playing, name):
    async with playing(ASK, {"a": asks()}) as stage:
        await stage.waits()
        handle = stage.temporal.get_workflow_handle(stage.id)
        for word in ODD[3:]:
            async with asyncio.timeout(10):
                said = await answer_to(handle, name, word)
            assert len(said) < 10_000
        await stage.status()


async def answer_to(handle: Any, name: str, word: Any) -> str:
    try:
        return str(await handle.execute_update(name, word))
    except (WorkflowUpdateFailedError, RPCError) as refused:
        return str(refused.__cause__ or refused)


# -- odd plans --------------------------------------------------------------------------------------


def test_wait_that_grows_beyond_all_measure_is_refused_with_its_place():
    with pytest.raises(PlanError, match=r"4:\d+: .*factor"):
        read_plan("id: p\nsteps:\n  - id: a\n    retry: {initial_s: 0, factor: .inf}\n    shell: {run: 'true'}\n")
