"""A plan shows what waits for a person in the workflows that its steps started, and where the answer goes to."""

import asyncio
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from activities.plan.requests import StepRun
from tests.support.plan.doubles import Hanging, PlanStage, Playing, asks, done, fails
from tightloop.errors import InvalidRequestError
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.question import ChildWait, Question, QuestionKind

INNER = """
id: inner
on_failure: fail
steps:
  - {id: release, gate: {approval: {}}}
"""
OUTER = """
id: outer
on_failure: fail
steps:
  - {id: sub, subplan: {steps: [{id: x, shell: {run: "true"}}]}}
  - {id: after, needs: [sub], shell: {run: "true"}}
"""


def child(source: str) -> StepRun:
    return StepRun(plans=(PlanRequest(workspace="/sample/project", source=source),))


async def details(temporal: Client, workflow_id: str) -> str:
    handle = temporal.get_workflow_handle(workflow_id)
    seen = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(seen.current_details)


async def details_with(stage: PlanStage, word: str) -> str:
    async with asyncio.timeout(20):
        while word not in (shown := await details(stage.temporal, stage.id)):
            await asyncio.sleep(0.03)
    return shown


async def details_without(stage: PlanStage, word: str) -> str:
    async with asyncio.timeout(20):
        while word in (shown := await details(stage.temporal, stage.id)):
            await asyncio.sleep(0.03)
    return shown


async def test_gate_of_a_subplan_is_shown_by_its_plan_until_it_is_answered(playing: Playing):
    script = {"release": [asks("Release 1.2?"), asks("Release 1.2?")], "after": asks("and now?")}
    async with playing(OUTER, script, children={"sub": child(INNER)}) as stage:
        inner = f"{stage.id}.sub.1"
        shown = await details_with(stage, "Release 1.2?")
        with pytest.raises(
            InvalidRequestError,
            match=rf"belong to child workflows of the plan: {inner}.*tightloop answer {inner} approve",
        ) as refused:
            await stage.plans.answer(stage.id, "approve")
        assert "respond" not in refused.value.message
        await stage.plans.answer(inner, "approve", question="release", by="ada")
        later = await details_with(stage, "and now?")
        await stage.plans.answer(stage.id, "approve", question="after", by="ada")
        result = await stage.result()
        told = await stage.told()
    assert f"- waits in step `sub`: `{inner} at release`: gate: Release 1.2?" in shown
    assert f"tightloop status {inner}" in shown
    assert inner not in later
    assert result.outcome is PlanOutcome.COMPLETED
    assert f"waits sub: {inner} at release: gate: Release 1.2?" in told
    assert told.index(f"continues sub: {inner}") < told.index("completed sub")


async def test_pause_of_a_subplan_is_shown_and_gone_when_it_goes_on(playing: Playing):
    script = {"release": asks("Release?")}
    async with playing(OUTER, script, children={"sub": child(INNER)}) as stage:
        inner = f"{stage.id}.sub.1"
        await details_with(stage, "Release?")
        await stage.plans.pause(inner, "lunch", by="bob")
        paused = await details_with(stage, "operator: lunch")
        await stage.plans.resume(inner, by="bob")
        resumed = await details_without(stage, "lunch")
        await stage.plans.cancel(stage.id)
        await stage.result()
    assert "gate: Release?" in paused
    assert "gate: Release?" in resumed


async def test_failure_that_a_person_is_asked_about_within_a_subplan_is_shown(playing: Playing):
    source = 'id: inner\nsteps: [{id: b, shell: {run: "true"}}]\n'
    async with playing(OUTER, {"b": fails("no disk")}, children={"sub": child(source)}) as stage:
        inner = f"{stage.id}.sub.1"
        shown = await details_with(stage, "no disk")
        await stage.plans.answer(inner, "skip", question="b")
        result = await stage.result()
    assert f"`{inner} at b`: failed_step: b failed: no disk" in shown
    assert shown.count("no disk") == 1
    assert result.outcome is PlanOutcome.COMPLETED


async def test_step_that_waits_for_a_person_gives_its_slot_to_the_next(playing: Playing):
    source = """
id: outer
max_parallel: 1
steps:
  - {id: sub, priority: 1, subplan: {steps: [{id: x, shell: {run: "true"}}]}}
  - {id: other, access: none, shell: {run: "true"}}
"""
    async with playing(source, {"release": asks("Release?")}, children={"sub": child(INNER)}) as stage:
        status = await stage.until(lambda status: status.children and status.counts.get("completed") == 1)
        steps = await stage.steps()
        await stage.plans.cancel(stage.id)
        await stage.result()
    assert [wait.step for wait in status.children] == ["sub"]
    assert (steps["sub"], steps["other"]) == ("running", "completed")


async def test_wait_deep_within_is_shown_by_each_plan_around_it(playing: Playing):
    middle = 'id: middle\nsteps: [{id: deep, subplan: {steps: [{id: x, shell: {run: "true"}}]}}]\n'
    children = {"sub": child(middle), "deep": child(INNER)}
    async with playing(OUTER, {"release": asks("Release?")}, children=children) as stage:
        innermost = f"{stage.id}.sub.1.deep.1"
        shown = await details_with(stage, "Release?")
        between = await details(stage.temporal, f"{stage.id}.sub.1")
        await stage.plans.answer(innermost, "approve", question="release", by="ada")
        result = await stage.result()
    assert f"- waits in step `sub`: `{innermost} at release`: gate: Release?" in shown
    assert f"- waits in step `deep`: `{innermost} at release`: gate: Release?" in between
    assert result.outcome is PlanOutcome.COMPLETED


async def test_word_of_a_workflow_that_no_step_started_is_not_believed(playing: Playing):
    async with playing(OUTER, {"release": asks("Release?")}, children={"sub": child(INNER)}) as stage:
        await details_with(stage, "Release?")
        handle = stage.temporal.get_workflow_handle(stage.id)
        question = Question(id="q1", kind=QuestionKind.BUDGET, title="spent", options=())
        stranger_waits = ChildWait(workflow_id="stranger", question=question).model_dump(mode="json")
        stranger = {"workflow_id": "stranger", "waits": [stranger_waits]}
        await handle.signal("child_waits", stranger)
        await handle.signal("child_waits", "nonsense")
        shown = await details(stage.temporal, stage.id)
        told = await stage.told()
        await stage.plans.cancel(stage.id)
        await stage.result()
    assert "stranger" not in shown
    assert "Release?" in shown
    assert [line for line in told if line.startswith("refused child_waits: ")] != []


async def test_subplan_that_ends_while_it_waits_is_shown_no_longer(playing: Playing):
    source = OUTER.replace("on_failure: fail", "on_failure: ask", 1)
    script = {"release": asks("Release?")}
    async with playing(source, script, children={"sub": child(INNER)}) as stage:
        await details_with(stage, "Release?")
        await stage.plans.answer(f"{stage.id}.sub.1", "reject", "not now", question="release", by="ada")
        await stage.paused()
        shown = await details_without(stage, "waits in step")
        await stage.plans.cancel(stage.id)
        result = await stage.result()
    assert "not now" in shown
    assert result.outcome is PlanOutcome.CANCELLED


async def test_subplan_that_was_reset_corrects_what_its_plan_shows(playing: Playing):
    look = 'steps:\n  - {id: look, shell: {run: "true"}}\n'
    inner_plan = child(INNER.replace("steps:\n", look).replace("id: release, ", "id: release, needs: [look], "))
    slow, last = Hanging(), Hanging()
    async with playing(OUTER, {"look": slow, "release": last}, children={"sub": inner_plan}) as stage:
        inner = f"{stage.id}.sub.1"
        await slow.started.wait()
        await stage.plans.pause(inner, "lunch", by="bob")
        await details_with(stage, "operator: lunch")
        await reset_without_signals(stage.temporal, inner)
        slow.go.set()
        await last.started.wait()
        await details_without(stage, "lunch")
        last.go.set()
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED


async def test_child_that_a_discarded_run_left_behind_is_ended_before_the_same_one_starts(playing: Playing):
    source = 'id: inner\nsteps: [{id: w, shell: {run: "true"}, access: none}]\n'
    left = Hanging()
    async with playing(OUTER, {"w": [left, done()]}, children={"sub": child(source)}) as stage:
        await left.started.wait()
        await reset_without_signals(stage.temporal, stage.id)
        result = await stage.result()
    assert left.cancelled == 1
    assert result.outcome is PlanOutcome.COMPLETED


async def test_workflow_of_somebody_else_under_the_id_of_a_child_is_left_alone(playing: Playing):
    gated = OUTER.replace("steps:\n", "steps:\n  - {id: first, gate: {approval: {}}}\n").replace(
        "{id: sub,", "{id: sub, needs: [first],"
    )
    script = {"first": asks("Begin?"), "release": [asks("Release?"), asks("Release?")]}
    async with playing(gated, script, children={"sub": child(INNER)}) as stage:
        await details_with(stage, "Begin?")
        request = PlanRequest(workspace="/sample/project", source=INNER)
        theirs = await stage.plans.start(request, new_id=f"{stage.id}.sub.1")
        await stage.plans.answer(stage.id, "approve", question="first", by="ada")
        paused = await stage.paused()
        other = await stage.plans.status(theirs)
        await stage.plans.answer(theirs, "approve", question="release", by="bob")
        await stage.plans.result(theirs)
        await stage.plans.answer(stage.id, "retry", by="ada")
        await details_with(stage, "Release?")
        await stage.plans.answer(theirs, "approve", question="release", by="ada")
        result = await stage.result()
    assert f"the id {theirs} already belongs to an open workflow" in paused.questions[0].title
    assert other.title == "inner"
    assert [question.kind for question in other.questions] == [QuestionKind.GATE]
    assert result.outcome is PlanOutcome.COMPLETED


async def reset_without_signals(temporal: Client, workflow_id: str) -> None:
    """Reset a workflow to its second task, as if what it was told since had not been said."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    tasks = [
        event.event_id for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            reason="test",
            request_id=uuid4().hex,
            workflow_task_finish_event_id=tasks[1],
            reset_reapply_exclude_types=[ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL],
        )
    )
