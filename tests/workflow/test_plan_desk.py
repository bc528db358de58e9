"""What people say to a running plan: pause, replan, single steps, more budget, and what they can look at."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import temporalio.api.common.v1 as common
import temporalio.api.workflowservice.v1 as service
from temporalio.common import SearchAttributeKey

from tests.support.episodes import eventually
from tests.support.plan.doubles import BASE, Hanging, Playing, asks, done, fails
from tightloop.client import TightloopClient
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError
from tightloop.plan.request import PlanOutcome, PlanRequest
from worker.server import temporal_binary

LINE = """
id: line
title: A line
steps:
  - {id: a, shell: {run: "true"}}
  - {id: b, needs: [a], shell: {run: "true"}}
  - {id: c, needs: [b], shell: {run: "true"}}
"""
LONGER = LINE + '  - {id: d, needs: [c], shell: {run: "true"}}\n'
STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")
TemporalCli = Callable[..., Awaitable["subprocess.CompletedProcess[str]"]]


@pytest.fixture
def temporal_cli(temporal) -> TemporalCli:
    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(temporal_binary()), *arguments, "--address", temporal.client.service_client.config.target_host]
        # In a thread: the worker that has to answer lives in this event loop.
        return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)

    return run


async def test_bare_pause_and_resume_signals_work(playing: Playing, temporal_cli: TemporalCli):
    slow = Hanging()
    async with playing(LINE, {"a": slow}) as stage:
        await slow.started.wait()
        await temporal_cli("workflow", "signal", "--name", "pause", "-w", stage.id, "--input", json.dumps("lunch"))
        during = await stage.until(lambda status: status.status == "paused")
        slow.go.set()
        await stage.paused()
        ran = stage.scripted.names()
        found = (await stage.temporal.get_workflow_handle(stage.id).describe()).typed_search_attributes
        shown = await temporal_cli("workflow", "metadata", "-w", stage.id)
        await temporal_cli("workflow", "signal", "--name", "resume", "-w", stage.id)
        result = await stage.result()
        after = (await stage.temporal.get_workflow_handle(stage.id).describe()).typed_search_attributes
    assert (during.questions[0].title, [line.id for line in during.running]) == ("lunch", ["a"])
    assert ran == ["a"]
    assert (found.get(STATUS), found.get(KIND)) == ("paused", "operator")
    assert "waits for an answer" in shown.stdout
    assert "signal `resume`" in shown.stdout
    assert result.outcome is PlanOutcome.COMPLETED
    assert (after.get(STATUS), after.get(KIND)) == ("completed, not proven", None)


async def test_edits_made_during_a_pause_are_kept(playing: Playing):
    slow = Hanging()
    async with playing(LINE, {"a": slow}) as stage:
        await slow.started.wait()
        await stage.plans.pause(stage.id)
        slow.go.set()
        await stage.paused()
        stage.scripted.edited = f"{BASE},a,by hand"
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert result.tree == f"{BASE},a,by hand,b,c"


async def test_changed_plan_is_taken_up_at_once(playing: Playing):
    slow = Hanging()
    async with playing(LINE, {"b": slow}) as stage:
        await slow.started.wait()
        said = await stage.plans.replan(stage.id, LONGER, rationale="one more", by="ada")
        status = await stage.status()
        slow.go.set()
        result = await stage.result()
        told = await stage.told()
    assert said == "revision 2 is now active. added: d"
    assert (status.revision, status.counts) == (2, {"pending": 2, "running": 1, "completed": 1})
    assert stage.scripted.names() == ["a", "b", "c", "d"]
    assert (result.revision, result.spent.revisions) == (2, 2)
    assert "revised revision 2 (by ada): one more" in told
    request = stage.scripted.revisions[0]
    assert sorted(request.fixed) == ["a", "b"]
    assert request.statuses == {"b": "running", "a": "completed"}
    assert stage.scripted.ran[-1].scope.revision == 2


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (LINE.replace("needs: [b], shell", "needs: [b], shel"), "7:25: unknown field 'shel' in step 'c'"),
        (
            LINE.replace('id: b, needs: [a], shell: {run: "true"}', 'id: b, needs: [a], shell: {run: "false"}'),
            "is running",
        ),
        ("", "this worker has no planner"),
    ],
)
async def test_change_that_cannot_be_taken_up_is_refused_with_the_reason(playing: Playing, source, sentence):
    slow = Hanging()
    async with playing(LINE, {"b": slow}) as stage:
        await slow.started.wait()
        with pytest.raises(InvalidRequestError) as refused:
            await stage.plans.replan(stage.id, source)
        slow.go.set()
        result = await stage.result()
    assert sentence in refused.value.message
    assert (result.outcome, result.revision) == (PlanOutcome.COMPLETED, 1)


async def test_plan_is_not_changed_more_often_than_its_budget_allows(playing: Playing):
    slow = Hanging()
    async with playing(LINE + "budget: {max_revisions: 1}\n", {"b": slow}) as stage:
        await slow.started.wait()
        with pytest.raises(InvalidRequestError, match="the plan has 1 revisions, and max_revisions is 1"):
            await stage.plans.replan(stage.id, LONGER)
        await stage.plans.top_up(stage.id, revisions=1)
        await stage.plans.replan(stage.id, LONGER + "budget: {max_revisions: 1}\n")
        slow.go.set()
        await stage.result()
    assert stage.scripted.names() == ["a", "b", "c", "d"]


async def test_nothing_starts_while_a_change_is_decided_on(playing: Playing):
    slow = Hanging()
    async with playing(LINE, {"a": slow}) as stage:
        await slow.started.wait()
        deciding, decide = asyncio.Event(), asyncio.Event()
        stage.scripted.before_revision = (deciding, decide)
        sent = asyncio.create_task(stage.plans.replan(stage.id, LONGER))
        await deciding.wait()
        slow.go.set()
        await stage.until(lambda status: status.counts.get("completed") == 1)
        ran = stage.scripted.names()
        decide.set()
        await sent
        await stage.result()
    assert ran == ["a"]
    assert stage.scripted.names() == ["a", "b", "c", "d"]


async def test_failure_is_answered_with_another_plan(playing: Playing):
    fixed = LINE.replace('id: b, needs: [a], shell: {run: "true"}', 'id: b2, needs: [a], shell: {run: "true"}')
    fixed = fixed.replace("needs: [b]", "needs: [b2]")
    async with playing(LINE, {"b": fails("wrong way")}) as stage:
        await stage.paused()
        said = await stage.plans.replan(stage.id, fixed, by="ada")
        result = await stage.result()
    assert said.startswith("revision 2 is now active")
    assert result.outcome is PlanOutcome.COMPLETED
    assert stage.scripted.names() == ["a", "b", "b2", "c"]


async def test_failure_is_answered_with_a_plan_that_a_planner_writes(playing: Playing):
    source = LINE.replace('id: b, needs: [a], shell: {run: "true"}', 'id: b, needs: [a], shell: {run: "true # 2"}')
    async with playing(LINE, {"b": [fails("no"), fails("no"), fails("wrong way"), done()]}, planner=LINE) as stage:
        status = await stage.paused()
        stage.scripted.planner = source
        said = await stage.plans.answer(stage.id, "replan", "use the other tool", question="b", by="ada")
        result = await stage.result()
    assert "replan" in status.questions[0].names
    assert said.startswith("revision 4 is now active")
    assert stage.scripted.revisions[2].trouble == "wrong way; use the other tool"
    assert result.outcome is PlanOutcome.COMPLETED


async def test_planner_changes_the_plan_by_itself_where_a_step_fails(playing: Playing):
    fixed = LINE.replace('id: b, needs: [a], shell: {run: "true"}', 'id: b, needs: [a], shell: {run: "true # 2"}')
    async with playing(LINE, {"b": [fails("wrong way"), done()]}, planner=fixed) as stage:
        result = await stage.result()
        told = await stage.told()
    request = stage.scripted.revisions[0]
    assert (request.source, request.by) == ("", "tightloop")
    assert request.trouble == "step b failed (logic): wrong way"
    assert result.outcome is PlanOutcome.COMPLETED
    assert [line for line in told if line.startswith("revised")] == ["revised revision 2 (by tightloop): a step failed"]


async def test_planner_is_asked_twice_about_a_step_and_then_a_person(playing: Playing):
    async with playing(LINE, {"b": fails("wrong way")}, planner=LINE) as stage:
        status = await stage.paused()
        await stage.plans.answer(stage.id, "fail")
        await stage.result()
    assert [question.step for question in status.questions] == ["b"]
    assert len(stage.scripted.revisions) == 2
    assert status.revision == 3


async def test_single_steps_are_run_in_a_pause(playing: Playing):
    hold = Hanging()
    async with playing(LINE, {"a": hold}) as stage:
        await hold.started.wait()
        await stage.plans.pause(stage.id)
        hold.go.set()
        await stage.paused()
        said = await stage.plans.run_step(stage.id, "b")
        status = await stage.until(lambda status: status.counts.get("completed") == 2)
        ran = stage.scripted.names()
        with pytest.raises(InvalidRequestError, match="run_step: step b is completed"):
            await stage.plans.run_step(stage.id, "b")
        with pytest.raises(InvalidRequestError, match="the plan has no step 'cc'"):
            await stage.plans.run_step(stage.id, "cc")
        await stage.plans.resume(stage.id)
        result = await stage.result()
    assert said == "step b will start as soon as no other step is using the working tree"
    assert (status.status, ran) == ("paused", ["a", "b"])
    assert result.outcome is PlanOutcome.COMPLETED


async def test_failed_step_is_run_again_by_hand(playing: Playing):
    async with playing(LINE, {"b": [fails("no disk"), done()]}) as stage:
        await stage.paused()
        with pytest.raises(InvalidRequestError, match="c is blocked by a failed step"):
            await stage.plans.run_step(stage.id, "c")
        # Nothing else holds the plan, so it goes on by itself.
        await stage.plans.run_step(stage.id, "b")
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert stage.scripted.names() == ["a", "b", "b", "c"]


@pytest.mark.parametrize(
    ("update", "value", "sentence"),
    [
        ("top_up", '{"step": 5}', "top_up: unknown field 'step'. Known: "),
        ("top_up", "5", "top_up: expected an object"),
        ("answer", '"retry"', "answer: there is no question to answer"),
        ("answer", "null", "answer: the input: must be fields"),
        ("run_step", "{}", "run_step: step is missing"),
        ("replan", '{"sauce": "x"}', "replan: unknown field 'sauce'. Did you mean 'source'?"),
    ],
)
async def test_wrong_update_gets_a_sentence(playing: Playing, temporal_cli, update, value, sentence):
    slow = Hanging()
    async with playing(LINE, {"a": slow}) as stage:
        await slow.started.wait()
        sent = await temporal_cli("workflow", "update", "execute", "--name", update, "-w", stage.id, "--input", value)
        slow.go.set()
        await stage.result()
    assert sent.returncode != 0
    assert sentence in sent.stderr + sent.stdout


async def test_closed_plan_is_looked_at_and_takes_no_more_messages(playing: Playing, temporal_client, settings):
    async with playing(LINE) as stage:
        await stage.result()
        with pytest.raises(InvalidRequestError, match=f"--again {stage.id}"):
            await stage.plans.pause(stage.id)
        with pytest.raises(EpisodeNotFoundError, match="no such episode or plan: 'plan-x'"):
            await stage.plans.status("plan-x")

        async def listed() -> list[str]:
            rows = await stage.plans.list("completed", limit=500)
            return [row.goal for row in rows if row.id == stage.id]

        goals = await eventually(listed)
        assert await stage.plans.resolve(stage.id[:12]) == stage.id
        assert (await stage.plans.request(stage.id)).source == LINE
    assert goals == ["A line"]
    # No worker is there any more.
    status = await TightloopClient(temporal_client, settings, query_timeout=timedelta(seconds=1)).status(stage.id)
    assert (status.status, status.counts, status.phase) == ("completed", {"completed": 3}, "CLOSED")


async def test_same_plan_is_not_started_twice_while_it_is_open(playing: Playing):
    slow = Hanging()
    async with playing(LINE, {"a": slow}) as stage:
        await slow.started.wait()
        again = PlanRequest(workspace="/sample/project", source=LINE)
        with pytest.raises(InvalidRequestError, match=f"{stage.id} already exists: a plan, running"):
            await stage.plans.start(again, new_id=stage.id)
        slow.go.set()
        await stage.result()


async def test_status_is_watched_until_the_end(playing: Playing):
    async with playing(LINE) as stage:
        seen = [status async for status in stage.plans.watch(stage.id)]
    assert seen[-1].status == "completed"
    assert seen[-1].outcome is PlanOutcome.COMPLETED


async def test_client_of_episodes_leads_to_plans(playing: Playing, client: TightloopClient):
    async with playing(LINE) as stage:
        await stage.result()
        status = await client.status(stage.id)
    assert status.plan_id == stage.id


async def test_reset_in_temporal_is_told_and_the_plan_goes_on(playing: Playing):
    async with playing(LINE, {"c": [fails("no disk"), done()]}) as stage:
        await stage.paused()
        handle = stage.temporal.get_workflow_handle(stage.id)
        events = [event async for event in handle.fetch_history_events()]
        completed = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
        await stage.temporal.workflow_service.reset_workflow_execution(
            service.ResetWorkflowExecutionRequest(
                namespace=stage.temporal.namespace,
                workflow_execution=common.WorkflowExecution(workflow_id=stage.id),
                reason="look again",
                workflow_task_finish_event_id=completed[2],
                request_id=f"reset-{stage.id}",
            )
        )
        result = await stage.result()
        told = await stage.told()
    assert result.outcome is PlanOutcome.COMPLETED
    assert any(line.startswith("reset the run was reset in Temporal") for line in told)


async def test_gate_that_a_change_removes_waits_no_more(playing: Playing):
    source = 'id: g\nsteps:\n  - {id: ask, gate: {approval: {}}}\n  - {id: a, shell: {run: "true"}}\n'
    async with playing(source, {"ask": asks()}) as stage:
        await stage.waits()
        await stage.plans.replan(stage.id, 'id: g\nsteps:\n  - {id: a, shell: {run: "true"}}\n')
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert result.counts == {"completed": 1}
