"""What people see of episodes and plans is in the ledger: questions, pauses, steps and ends, beside the work."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.support.episodes import Working, eventually
from tightloop.client import TightloopClient
from tightloop.database.ledger import Ledger, local_ledger
from tightloop.episode.budget import Budget
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import EpisodeNotFoundError
from tightloop.host import state_folder
from tightloop.host.identity import host_identity
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.settings import Settings, parse_settings
from worker.ledger.entries import enter_ends

PLAN = """
id: small
title: A small plan
on_failure: fail
steps:
  - {id: note, title: Write it down, shell: {run: "echo line > before.txt"}}
  - id: make
    needs: [note]
    episode: {goal: write two lines, definition_of_done: ["test $(cat made.txt | wc -l) -ge 2"]}
  - {id: after, needs: [make], shell: {run: "true"}}
  - {id: passed, needs: [after]}
"""


@pytest.fixture
def settings(temporal: WorkflowEnvironment) -> Settings:
    address = temporal.client.service_client.config.target_host
    return parse_settings(
        f"temporal: {{address: '{address}', task_queue: 'test-{uuid4().hex[:12]}'}}\n"
        "worker: {sticky_timeout_s: 2, graceful_shutdown_s: 1}\n"
        "sandbox: {unsafe_local: true}\n"
        "executor: {argv: [sh, -c, 'cat before.txt >> made.txt']}\n",
        {},
    )


@pytest.fixture
def ledger(workspace: Path) -> Ledger:
    return local_ledger().limit_to([state_folder(workspace).name])


def kinds(ledger: Ledger, workflow_id: str) -> list[str]:
    return [line.kind for line in ledger.events(workflow_id=workflow_id)]


async def test_a_question_is_in_the_inbox_until_it_is_answered(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger, workspace: Path
) -> None:
    async def inbox_has(count: int) -> bool:
        return len(ledger.inbox()) == count

    async with working():
        key = await client.start(request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=1)))
        await eventually(lambda: inbox_has(1))
        (item,) = ledger.inbox()
        waits = ledger.workflow(key)
        await client.top_up(key, iterations=1)
        await eventually(lambda: inbox_has(0))
        await eventually(lambda: inbox_has(1))
        await client.cancel(key)
        await client.result(key)
    assert (item.workflow_id, item.kind, item.goal, item.blocks) == (key, "episode", "write three lines", 1)
    assert (item.question.id, item.question.names[-1]) == ("q1", "cancel")
    assert (waits.status, waits.iteration) == ("paused", 1)
    assert waits.waiting_since == item.since
    ended = ledger.workflow(key)
    assert (ended.status, ended.iteration) == ("cancelled", 2)
    assert ended.closed is not None
    assert ended.started is not None
    assert ended.details["status"] == "cancelled"
    assert ledger.inbox() == ()
    told = [kind for kind in kinds(ledger, key) if kind not in ("alert", "adopted", "alert_failed")]
    first = ["opened", "running", "iteration", "paused", "asked", "running", "settled"]
    assert told == [*first, "iteration", "paused", "asked", "cancelled", "settled", "closed"]
    line = ledger.project(state_folder(workspace).name)
    assert (line.name, line.workspace, line.host, line.running) == ("project", str(workspace), host_identity().name, 0)


async def test_an_episode_that_nobody_is_asked_about_has_no_event_more(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger, temporal_client: Any
) -> None:
    async with working():
        key = await client.start(request_for())
        await client.result(key)
    history = await temporal_client.get_workflow_handle(key).fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert "record" not in scheduled
    assert not any(event.HasField("marker_recorded_event_attributes") for event in history.events)
    found = ledger.workflow(key)
    assert (found.status, found.checks, found.iteration, found.kind) == ("succeeded", "1/1", 3, "episode")


async def test_steps_of_a_plan_and_the_episodes_within_are_recorded(
    client: TightloopClient, working: Working, ledger: Ledger, workspace: Path
) -> None:
    async with working():
        plan_id = await client.start(PlanRequest(workspace=str(workspace), source=PLAN))
        assert (await client.result(plan_id)).outcome is PlanOutcome.COMPLETED
    rows = ledger.steps(plan_id)
    assert [(row.step, row.status, row.attempt, row.needs) for row in rows] == [
        ("note", "completed", 1, ()),
        ("make", "completed", 1, ("note",)),
        ("after", "completed", 1, ("make",)),
        ("passed", "completed", 0, ("after",)),
    ]
    assert rows[0].title == "Write it down"
    child = ledger.workflow(rows[1].child_id)
    assert (child.parent, child.status, child.kind) == (plan_id, "succeeded", "episode")
    plan = ledger.workflow(plan_id)
    assert (plan.status, plan.kind, plan.goal, plan.parent) == ("completed", "plan", "A small plan", "")
    steps = [line.text for line in ledger.events(workflow_id=plan_id) if line.kind == "step"]
    assert steps == [
        f"{name}: {status}, attempt 1" for name in ("note", "make", "after") for status in ("running", "completed")
    ]


async def test_an_episode_that_never_began_is_not_in_the_ledger(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger, tmp_path: Path
) -> None:
    async with working():
        key = await client.start(request_for(workspace=str(tmp_path / "nowhere")))
        assert (await client.result(key)).outcome is EpisodeOutcome.FAILED
    with pytest.raises(EpisodeNotFoundError):
        local_ledger().workflow(key)


async def test_an_episode_that_was_terminated_is_not_shown_as_waiting_for_ever(
    client: TightloopClient, working: Working, request_for: Callable[..., Any], ledger: Ledger, temporal_client: Any
) -> None:
    async def waits(count: int) -> bool:
        return len(ledger.inbox()) == count

    async with working():
        key = await client.start(request_for(definition_of_done=["test -f never"], budget=Budget(max_iterations=1)))
        await eventually(lambda: waits(1))
        await temporal_client.get_workflow_handle(key).terminate("enough")
        looking = asyncio.create_task(enter_ends(temporal_client, timedelta(seconds=1)))
        await eventually(lambda: waits(0))
        looking.cancel()
    ended = ledger.workflow(key)
    assert ended.status == "terminated"
    assert ended.closed is not None
