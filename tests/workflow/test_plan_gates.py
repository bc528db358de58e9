"""Gates of plans: who approves, how often, with which option, and what goes on meanwhile."""

import json

import pytest
from temporalio.common import SearchAttributeKey

from tests.plan_doubles import asks, done, option
from tests.workflow.conftest import Playing
from tightloop.alert import AlertKind, Subject
from tightloop.errors import InvalidRequestError
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
        status = await stage.until(lambda status: status.waiting and status.counts.get("completed") == 2)
        found = await stage.temporal.get_workflow_handle(stage.id).describe()
        said = await stage.plans.approve(stage.id, "release", rationale="looked at it", by="ada")
        result = await stage.result()
        told, steps = await stage.told(), await stage.steps()
    assert status.status == "running"
    assert (status.waiting[0].step, status.waiting[0].question.text) == ("release", "may it go out?")
    assert found.typed_search_attributes.get(KIND) == "approval"
    assert said == "release is approved"
    assert result.outcome is PlanOutcome.COMPLETED
    assert "approved release: by ada looked at it" in told
    assert steps["report"] == "skipped"
    given = [ran.decisions for ran in stage.scripted.ran if ran.step == "release"]
    assert [len(each) for each in given] == [0, 1]
    assert (given[1][0].by, given[1][0].approved, given[1][0].rationale) == ("ada", True, "looked at it")


async def test_waiting_gate_is_told_once_with_the_command_that_answers_it(playing: Playing):
    async with playing(GATE, {"release": asks("may it go out?")}) as stage:
        await stage.waits()
        await stage.alerted()
        await stage.plans.approve(stage.id)
        await stage.result()
    alert = stage.scripted.alerts[0].alert
    assert len(stage.scripted.alerts) == 1
    assert (alert.kind, alert.subject, alert.step, alert.goal) == (
        AlertKind.APPROVAL,
        Subject.PLAN,
        "release",
        "Release",
    )


async def test_rejection_is_a_failure_of_policy_with_the_rationale_and_starts_the_alternate(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        said = await stage.plans.reject(stage.id, "release", rationale="not on a Friday", by="bob")
        result = await stage.result()
        steps, told = await stage.steps(), await stage.told()
    assert said == "release is rejected"
    assert "failed release: policy: bob refused: not on a Friday" in told
    assert steps["report"] == "completed"
    assert steps["release"] == "recovered"
    assert result.outcome is PlanOutcome.COMPLETED


async def test_two_approvals_must_come_from_two_people(playing: Playing):
    async with playing(GATE, {"release": asks(count=2)}) as stage:
        await stage.waits()
        first = await stage.plans.approve(stage.id, "release", by="ada")
        with pytest.raises(InvalidRequestError, match="ada has approved release already; it needs 2 different people"):
            await stage.plans.approve(stage.id, "release", by="ada")
        between = await stage.status()
        second = await stage.plans.approve(stage.id, "release", by="bob")
        result = await stage.result()
    assert first == "release is approved by ada; 1 more must approve"
    assert [said.by for said in between.waiting[0].decisions] == ["ada"]
    assert second == "release is approved"
    assert result.outcome is PlanOutcome.COMPLETED


async def test_chosen_option_decides_which_steps_start(playing: Playing):
    script = {"way": asks(options=(option("fast", "left"), option("safe", "right")))}
    async with playing(OPTIONS, script) as stage:
        await stage.waits()
        with pytest.raises(InvalidRequestError, match="way needs one of its options: fast, safe"):
            await stage.plans.approve(stage.id, "way")
        with pytest.raises(InvalidRequestError, match="way has no option 'slow'"):
            await stage.plans.approve(stage.id, "way", option="slow")
        await stage.plans.approve(stage.id, "way", option="safe")
        await stage.result()
        steps = await stage.steps()
    assert steps == {"way": "completed", "left": "skipped", "right": "completed"}


async def test_window_is_approved_together_and_told_once(playing: Playing):
    script = {"one": asks(window="evening"), "two": asks(window="evening"), "other": asks()}
    async with playing(TWO, script) as stage:
        await stage.waits(3)
        await stage.alerted(2)
        with pytest.raises(InvalidRequestError, match="3 steps wait: "):
            await stage.plans.approve(stage.id)
        said = await stage.plans.approve(stage.id, "evening", by="ada")
        await stage.waits(1)
        await stage.plans.approve(stage.id, by="ada")
        result = await stage.result()
    assert sorted(said.split("; ")) == ["one is approved", "two is approved"]
    assert result.outcome is PlanOutcome.COMPLETED
    assert sorted(request.alert.step for request in stage.scripted.alerts) == ["evening", "other"]


async def test_bare_signal_from_the_temporal_ui_approves_the_only_gate(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        await stage.temporal.get_workflow_handle(stage.id).signal("approve_gate")
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert "approved release: by operator" in told


async def test_wrong_signal_is_seen_in_the_timeline_and_changes_nothing(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        handle = stage.temporal.get_workflow_handle(stage.id)
        await handle.signal("approve_gate", "releese")
        await handle.signal("reject_gate", {"gate": "release", "why": "typo"})
        told = await stage.told()
        await stage.plans.approve(stage.id, "release")
        await stage.result()
    assert "refused approve_gate: 'releese' does not wait for an approval. Waiting are: release" in told
    assert any(line.startswith("refused reject_gate: why: Extra inputs are not permitted") for line in told)


async def test_step_that_policy_wants_approved_runs_after_the_yes(playing: Playing):
    async def guarded(request):
        return done(summary="deployed") if request.decisions else await asks("deploy needs an approval")(request)

    async with playing(GATE, {"release": done(), "deploy": guarded}) as stage:
        await stage.waits()
        await stage.plans.approve(stage.id, "deploy", by="ada")
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert "completed deploy: deployed" in told


async def test_gate_is_approved_during_a_pause_and_goes_on_after_it(playing: Playing):
    async with playing(GATE, {"release": asks()}) as stage:
        await stage.waits()
        await stage.plans.pause(stage.id, "lunch", by="ada")
        await stage.paused()
        await stage.plans.approve(stage.id, "release")
        status = await stage.until(lambda status: not status.waiting)
        ran = stage.scripted.names().count("release")
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert (status.status, ran) == ("paused", 1)
    assert result.outcome is PlanOutcome.COMPLETED


async def test_nobody_answers_and_the_plan_fails(playing: Playing):
    async with playing(GATE, {"release": asks()}, {"pause_timeout": 1.0}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.FAILED
    assert result.reason == "nobody answered within 0:00:01: release"
    assert [request.alert.kind for request in stage.scripted.alerts] == [AlertKind.APPROVAL, AlertKind.FAILED]


async def test_details_show_the_json_that_approves(playing: Playing):
    async with playing(GATE, {"release": asks("may it go out?")}) as stage:
        await stage.waits()
        handle = stage.temporal.get_workflow_handle(stage.id)
        details = await handle.query("__temporal_workflow_metadata")
        shown = str(details)
        await stage.plans.approve(stage.id, "release")
        await stage.result()
    assert "may it go out?" in shown
    word = json.dumps({"gate": "release", "by": "your name"})
    assert word in shown.replace('\\"', '"')
