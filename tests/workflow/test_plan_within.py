"""What a plan says of the workflows that its steps started: what they wait for, and what they spent."""

import asyncio
import json
from pathlib import Path

from activities.plan.requests import StepRun
from tests.support.episodes import Working
from tests.support.plan.doubles import Playing, asks, done
from tightloop.cli.views import todo_lines
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeRequest
from tightloop.executor.model import ExecutorChoice
from tightloop.plan.request import PlanOutcome, PlanRequest, PlanStatus

BOUND_S = 60.0
INNER = """
id: inner
on_failure: fail
steps:
  - {id: look, shell: {run: "true"}}
  - {id: release, needs: [look], gate: {approval: {}}}
"""
OUTER = """
id: outer
on_failure: fail
steps:
  - {id: sub, subplan: {steps: [{id: x, shell: {run: "true"}}]}}
  - {id: after, needs: [sub], shell: {run: "true"}}
"""


async def test_status_tells_what_a_subplan_waits_for_and_how_to_answer(playing: Playing):
    inner_plan = StepRun(plans=(PlanRequest(workspace="/sample/project", source=INNER),))
    async with playing(OUTER, {"release": asks("Release?")}, children={"sub": inner_plan}) as stage:
        inner = f"{stage.id}.sub.1"
        status = await stage.until(lambda status: status.children)
        await stage.plans.answer(inner, "approve", question="release", by="ada")
        result = await stage.result()
        after = await stage.status()
    wait = status.children[0]
    assert [line.id for line in status.running] == ["sub"]
    assert (wait.step, wait.workflow_id, wait.question.step, wait.question.kind.value) == (
        "sub",
        inner,
        "release",
        "gate",
    )
    assert todo_lines(status) == [
        f"sub: {inner} at release is waiting for a person: gate: Release?",
        f"  tightloop status {inner}",
    ]
    assert result.outcome is PlanOutcome.COMPLETED
    assert after.children == ()


async def test_status_tells_that_an_episode_waits_and_goes_on(
    client: TightloopClient, working: Working, workspace: Path
):
    episode = {"goal": "make it", "definition_of_done": ["test -e made.txt"], "executor": "person"}
    source = json.dumps({"id": "p", "on_failure": "fail", "steps": [{"id": "make", "episode": episode}]})

    async def until(holds) -> PlanStatus:
        async with asyncio.timeout(BOUND_S):
            while not holds(status := await client.status(plan_id)):
                await asyncio.sleep(0.05)
        return status

    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=source))
        agent = f"{plan_id}.make.1"
        status = await until(lambda status: status.children)
        (workspace / "made.txt").write_text("by hand\n")
        await client.answer(agent, "done", by="ada")
        result = await asyncio.wait_for(client.result(plan_id), BOUND_S)
        told = [f"{event.kind} {event.text}" for event in await client.timeline(plan_id)]
    wait = status.children[0]
    assert (wait.step, wait.workflow_id, wait.question.kind.value) == ("make", agent, "work")
    assert wait.question.evidence[0].startswith("Work in")
    assert todo_lines(status)[-1] == f"  tightloop status {agent}"
    assert f"continues make: {agent}" in told
    assert result.outcome is PlanOutcome.COMPLETED, result.reason


async def test_episode_that_no_plan_started_tells_nobody(
    client: TightloopClient, working: Working, workspace: Path, temporal_client
):
    request = EpisodeRequest(
        goal="make it",
        workspace=str(workspace),
        definition_of_done=["test -e made.txt"],  # type: ignore[arg-type]
        executor=ExecutorChoice(name="person"),
    )
    async with working():
        episode_id = await client.start(request)
        async with asyncio.timeout(BOUND_S):
            while not (await client.status(episode_id)).questions:
                await asyncio.sleep(0.05)
        await client.cancel(episode_id)
        await client.result(episode_id)
        history = await temporal_client.get_workflow_handle(episode_id).fetch_history()
    kinds = {event.WhichOneof("attributes") for event in history.events}
    assert "signal_external_workflow_execution_initiated_event_attributes" not in kinds


async def test_calls_of_models_in_a_subplan_count_for_its_plan(playing: Playing):
    inner_plan = StepRun(plans=(PlanRequest(workspace="/sample/project", source=INNER),))
    script = {"look": done(api_calls=3), "release": done(api_calls=4)}
    async with playing(OUTER, script, children={"sub": inner_plan}) as stage:
        result = await stage.result()
    assert result.outcome is PlanOutcome.COMPLETED
    assert [settled.api_calls for settled in stage.scripted.settled] == [7]
