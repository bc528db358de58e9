"""Busy and missing workers: real ones, on task queues of their own, with few slots."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import APPEND, eventually, scripted
from tests.support.impatient_workflow import Impatient
from tests.support.plan.doubles import impatient_staffing
from tests.support.plan.impatient import ImpatientPlan
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.host.identity import home_queue
from tightloop.plan.request import PlanOutcome, PlanRequest
from tightloop.run.core import Queues
from tightloop.settings import Settings
from worker.build import Role, build_adapters, build_workers, workflow_runner
from worker.connect import connect

HOLDS = timedelta(seconds=14)
"""Longer than a step waits where nobody works."""


class Stage:
    """Workers of a test, started one by one."""

    def __init__(self, connection: Client, settings: Settings, stack: AsyncExitStack) -> None:
        self.connection, self.settings, self._stack = connection, settings, stack
        self.client = TightloopClient(connection, settings)
        self.home = home_queue(settings)

    async def run_workflows(self) -> None:
        """Run workflows that look after 2 s, with a worker that does nothing else."""
        worker = Worker(
            self.connection,
            task_queue=self.settings.temporal.task_queue,
            workflows=[Impatient, ImpatientPlan],
            activities=impatient_staffing(self.connection, self.settings.temporal.task_queue),
            workflow_runner=workflow_runner(),
        )
        await self._stack.enter_async_context(worker)

    async def serve(self, role: Role) -> None:
        """Start the workers of a role, with one slot each."""
        planner = ScriptedPlanner()
        adapters = replace(build_adapters(self.connection, self.settings), planners=lambda _kind: planner)
        for worker in build_workers(self.connection, self.settings, role, adapters):
            await self._stack.enter_async_context(worker)


@pytest.fixture
async def stage(settings: Settings) -> AsyncIterator[Stage]:
    # Sealed, as in production: what a workflow is told of workers is authentic too.
    mine = settings.evolve(
        temporal=settings.temporal.evolve(authenticate=True),
        worker=settings.worker.evolve(max_concurrent_activities=1),
    )
    async with AsyncExitStack() as stack:
        yield Stage(await connect(mine), mine, stack)


async def test_new_episode_waits_for_a_busy_worker_and_says_so(
    stage: Stage, request_for: Callable[..., EpisodeRequest], tmp_path: Path, git: Any
) -> None:
    git(tmp_path, "clone", "--quiet", "project", "second")
    queues = Queues(workspace=stage.home, llm=stage.home, executor=stage.home)
    await stage.run_workflows()
    await stage.serve(Role.WORKSPACE)
    long = await stage.client.start(request_for(definition_of_done=["sleep 120; false"], queues=queues))
    await eventually(lambda: verifies(stage.client, long))
    short = await stage.client.start(request_for(workspace=str(tmp_path / "second"), queues=queues))
    await asyncio.sleep(HOLDS.total_seconds())
    status = await stage.client.status(short)
    assert (status.status, status.questions) == ("running", ())
    assert status.waits_for.startswith(f"a worker with a free slot on task queue '{stage.home}' since ")
    await stage.client.cancel(long)
    assert (await stage.client.result(short)).outcome is EpisodeOutcome.SUCCEEDED


async def test_opening_that_finds_nobody_pauses_and_resume_continues(
    stage: Stage, request_for: Callable[..., EpisodeRequest]
) -> None:
    queues = Queues(workspace=stage.home, llm=stage.home, executor=stage.home)
    await stage.run_workflows()
    episode_id = await stage.client.start(request_for(queues=queues))
    await eventually(lambda: paused(stage.client, episode_id), seconds=40)
    status = await stage.client.status(episode_id)
    assert status.questions[0].title.startswith(
        f"no worker on task queue '{stage.home}' accepted open_workspace within"
    )
    await stage.serve(Role.WORKSPACE)
    await stage.client.resume(episode_id)
    assert (await stage.client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED


async def test_plan_that_finds_nobody_to_open_it_pauses_and_resume_continues(stage: Stage, workspace: Path) -> None:
    await stage.run_workflows()
    request = PlanRequest(
        source="id: p\nsteps: [{id: a, run: 'echo a > a.txt'}]\n",
        workspace=str(workspace),
        queues=Queues(workspace=stage.home),
    )
    plan_id = await stage.client.start(request)
    await eventually(lambda: paused(stage.client, plan_id), seconds=40)
    status = await stage.client.status(plan_id)
    assert status.questions[0].title.startswith(f"no worker on task queue '{stage.home}' accepted open_plan within")
    await stage.serve(Role.WORKSPACE)
    await stage.client.resume(plan_id)
    assert (await stage.client.result(plan_id)).outcome is PlanOutcome.COMPLETED


async def test_delivery_waits_for_the_one_slot_of_an_executor(
    stage: Stage, request_for: Callable[..., EpisodeRequest], tmp_path: Path, git: Any
) -> None:
    git(tmp_path, "clone", "--quiet", "project", "second")
    await stage.run_workflows()
    screen = f"{stage.home}-screen"
    stage.settings = stage.settings.evolve(queues=stage.settings.queues.evolve(executor=screen))
    await stage.serve(Role.GUI)
    stage.settings = stage.settings.evolve(worker=stage.settings.worker.evolve(max_concurrent_activities=5))
    await stage.serve(Role.WORKSPACE)
    queues = Queues(workspace=stage.home, llm=stage.home, executor=screen)
    slow = scripted({**APPEND, "sleep": HOLDS.total_seconds()}).evolve(wall_limit_s=30.0)
    done = ["test -s log.txt"]
    started = [
        await stage.client.start(request_for(queues=queues, executor=slow, definition_of_done=done, **changes))
        for changes in ({}, {"workspace": str(tmp_path / "second")})
    ]
    results = [await stage.client.result(episode_id) for episode_id in started]
    assert [result.outcome for result in results] == [EpisodeOutcome.SUCCEEDED] * 2


async def verifies(client: TightloopClient, workflow_id: str) -> bool:
    return (await client.status(workflow_id)).phase == "VERIFYING"


async def paused(client: TightloopClient, workflow_id: str) -> bool:
    return (await client.status(workflow_id)).status == "paused"
