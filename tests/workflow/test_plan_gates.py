"""Gates of plans: who approves, how often, with which option, and what goes on meanwhile."""

import json

import pytest
from temporalio.common import SearchAttributeKey

from tests.support.plan.doubles import Playing, asks, done, option
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import AlertKind, Subject
from tightloop.plan.request import PlanOutcome

GATE = """
id: gated
title: Release
steps:
  - {id: build, shell: {run: "true"}, access: none}
  - {id: release, needs: [build], gate: {approval: {question: may it go out?}}, on_failure: {to: report}}
  - {id: deploy, needs: [release], shell: {run: "true"}, access: none}
  - {id: report, shell: {run: "true"}, access: none}
  - {id: beside, needs: [build], shell: {run: "true"}, access: none}
"""
TWO = """
id: two
steps:
  - {id: one, gate: {window: evening, approval: {}}}
  - {id: two, gate: {window: evening, approval: {}}}
  - {id: other, gate: {approval: {}}}
"""
OPTIONS = """
id: options
steps:
  - {id: way, gate: {approval: {options: [{name: fast, to: [left]}, {name: safe, to: [right]}]}}}
  - {id: left, shell: {run: "true"}, access: none}
  - {id: right, shell: {run: "true"}, access: none}
"""
KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")


async def test_gate_waits_for_a_person_while_the_rest_goes_on(playing: Playing):
    async with playing(GATE, {"release": asks("may it go out?", role="owner")}) as stage:
        status = await stage.until(lambda status: status.questions and status.counts.get("completed") == 2)
        found = await stage.temporal.get_workflow_handle(stage.id).describe()
        said = await stage.plans.answer(stage.id, "approve", "looked at it", question="release", by="ada")
        result = await stage.result()
        told, steps = await stage.told(), await stage.steps()
    assert status.status == "running"
    assert (status.questions[0].step, status.questions[0].title) == ("release", "may it go out?")
    assert found.typed_search_attributes.get(KIND) == "gate"
    assert said == "release: approve"
    assert result.outcome is PlanOutcome.COMPLETED
    assert "answered release: approve (by ada) looked at it" in told
    assert steps["report"] == "skipped"
    given = [ran.answers for ran in stage.scripted.ran if ran.step == "release"]
    assert [len(each) for each in given] == [0, 1]
    assert (given[1][0].by, given[1][0].option, given[1][0].text) == ("ada", "approve", "looked at it")


async def test_waiting_gate_is_told_once_with_the_command_that_answers_it(playing: Playing):
    async with playing(GATE, {"release": asks("may it go out?")}) as stage:
        await stage.waits()
        await stage.alerted()
        await stage.plans.answer(stage.id, "approve")
        await stage.result()
    alert = stage.scripted.alerts[0].alert
    assert len(stage.scripted.alerts) == 1
    assert (alert.kind, alert.subject, alert.step, alert.goal) == (
        AlertKind.GATE,
        Subject.PLAN,
        "release",
        "Release",
    )


async def test_rejection_is_a_failure_of_policy_with_the_rationale_and_starts_the_alternate(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        said = await stage.plans.answer(stage.id, "reject", "not on a Friday", question="release", by="bob")
        result = await stage.result()
        steps, told = await stage.steps(), await stage.told()
    assert said == "release: reject"
    assert "failed release: policy: bob refused: not on a Friday" in told
    assert steps["report"] == "completed"
    assert steps["release"] == "recovered"
    assert result.outcome is PlanOutcome.COMPLETED


async def test_two_approvals_must_come_from_two_people(playing: Playing):
    async with playing(GATE, {"release": asks(count=2)}) as stage:
        await stage.waits()
        first = await stage.plans.answer(stage.id, "approve", question="release", by="ada")
        with pytest.raises(
            InvalidRequestError, match="ada has already answered q1, which needs answers from 2 different people"
        ):
            await stage.plans.answer(stage.id, "approve", question="release", by="ada")
        between = await stage.status()
        second = await stage.plans.answer(stage.id, "approve", question="release", by="bob")
        result = await stage.result()
    assert first == "release: approve by ada. Approvals still needed: 1"
    assert [said.by for said in between.questions[0].answers] == ["ada"]
    assert second == "release: approve"
    assert result.outcome is PlanOutcome.COMPLETED


async def test_chosen_option_decides_which_steps_start(playing: Playing):
    script = {"way": asks(options=(option("fast", "left"), option("safe", "right")))}
    async with playing(OPTIONS, script) as stage:
        await stage.waits()
        with pytest.raises(InvalidRequestError, match="Options: fast, safe, reject"):
            await stage.plans.answer(stage.id, "approve", question="way")
        with pytest.raises(InvalidRequestError, match="'slow' is not an option of q1"):
            await stage.plans.answer(stage.id, "slow", question="way")
        await stage.plans.answer(stage.id, "safe", question="way")
        await stage.result()
        steps = await stage.steps()
    assert steps == {"way": "completed", "left": "skipped", "right": "completed"}


async def test_window_is_approved_together_and_told_once(playing: Playing):
    script = {"one": asks(window="evening"), "two": asks(window="evening"), "other": asks()}
    async with playing(TWO, script) as stage:
        await stage.waits(3)
        await stage.alerted(2)
        with pytest.raises(InvalidRequestError, match="several questions are open"):
            await stage.plans.answer(stage.id, "approve")
        said = await stage.plans.answer(stage.id, "approve", question="evening", by="ada")
        await stage.waits(1)
        await stage.plans.answer(stage.id, "approve", by="ada")
        result = await stage.result()
    assert sorted(said.split("; ")) == ["one: approve", "two: approve"]
    assert result.outcome is PlanOutcome.COMPLETED
    assert sorted(request.alert.step for request in stage.scripted.alerts) == ["evening", "other"]


async def test_bare_option_from_the_temporal_ui_answers_the_only_gate(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        await stage.temporal.get_workflow_handle(stage.id).execute_update("answer", "approve: looked at it")
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert "answered release: approve (by operator) looked at it" in told


async def test_bare_resume_decides_no_gate(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        await stage.temporal.get_workflow_handle(stage.id).signal("resume", "approve")
        await stage.waits()
        await stage.plans.answer(stage.id, "approve", question="release")
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


async def test_step_that_policy_wants_approved_runs_after_the_yes(playing: Playing):
    async def guarded(request):
        return done(summary="deployed") if request.answers else await asks("deploy needs an approval")(request)

    async with playing(GATE, {"release": done(), "deploy": guarded}) as stage:
        await stage.waits()
        await stage.plans.answer(stage.id, "approve", question="deploy", by="ada")
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert "completed deploy: deployed" in told


async def test_gate_is_approved_during_a_pause_and_goes_on_after_it(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        await stage.plans.pause(stage.id, "lunch", by="ada")
        await stage.paused()
        await stage.plans.answer(stage.id, "approve", question="release")
        status = await stage.until(lambda status: len(status.questions) == 1)
        ran = stage.scripted.names().count("release")
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert (status.status, ran) == ("paused", 1)
    assert result.outcome is PlanOutcome.COMPLETED


async def test_nobody_answers_and_the_plan_fails(playing: Playing):
    async with playing(GATE, {"release": asks()}, {"pause_timeout": 1.0}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert result.reason == "nobody answered within 1 s: release"
    assert [request.alert.kind for request in stage.scripted.alerts] == [AlertKind.GATE, AlertKind.FAILED]


async def test_details_show_the_json_that_approves(playing: Playing):
    async with playing(GATE, {"release": asks("may it go out?")}) as stage:
        await stage.waits()
        handle = stage.temporal.get_workflow_handle(stage.id)
        details = await handle.query("__temporal_workflow_metadata")
        shown = str(details)
        await stage.plans.answer(stage.id, "approve", question="release")
        await stage.result()
    assert "may it go out?" in shown
    word = json.dumps({"question": "q1", "option": "approve"})
    assert word in shown.replace('\\"', '"')
