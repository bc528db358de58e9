"""A lost host: another one goes on by itself where the settings allow that, and a stop is never lost."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.remote.activity import Copies
from activities.remote.s3 import S3Bucket
from activities.staffing import WorkerCheckActivities
from activities.workspace.scope import EpisodeScope
from tests.support.bucket import s3_server
from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import asked, eventually
from tests.support.impatient_workflow import Impatient
from tightloop.client import TightloopClient
from tightloop.episode.checkpoint import CopiesHead
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import WorkspaceElsewhereError
from tightloop.host.identity import home_queue
from tightloop.run.core import Queues
from tightloop.settings import RemoteSettings, Settings
from worker.build import Role, build_adapters, build_workers, workflow_runner
from worker.connect import connect
from worker.hosting.presence import WorkerQueries
from workflows.run.activities import ActivityFailedError, ActivityOptions, ActivityRunner, Routing

ABSENCE_S = 3.0
"""So soon a lost host is noticed here."""


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteSettings]:
    with s3_server() as settings:
        yield settings


@activity.defn(dynamic=True)
async def send_on(_arguments: Sequence[RawValue]) -> None:
    """Refuse every step, as a worker does that only runs workflows."""
    raise ApplicationError("it has no workspaces", type=WorkspaceElsewhereError.__name__, non_retryable=True)


class Stage:
    """Hosts that share a state home: what moves between them is who works, which these tests are about."""

    def __init__(self, connection: Client, settings: Settings, stack: AsyncExitStack) -> None:
        self.connection, self.settings, self._stack = connection, settings, stack
        self.client = TightloopClient(connection, settings)

    async def run_workflows(self, move_after: timedelta | None) -> None:
        """Run workflows that look after 2 s, with a worker that has no workspaces."""
        queue = self.settings.temporal.task_queue
        staff = WorkerQueries(self.connection, queue)
        # Temporal may list a worker for a while that is gone: no more patience with busy ones.
        patience = timedelta(seconds=4)
        staffing = WorkerCheckActivities(staff, patience, patience, move_after)
        worker = Worker(
            self.connection,
            task_queue=queue,
            workflows=[Impatient],
            activities=[*staffing.definitions, send_on],
            workflow_runner=workflow_runner(),
        )
        await self._stack.enter_async_context(worker)

    def home(self, host: str) -> str:
        """Return the task queue of a host."""
        return home_queue(self._settings_of(host))

    async def serve(self, host: str) -> AsyncExitStack:
        """Start a host; closing what this returns stops it."""
        settings, planner = self._settings_of(host), ScriptedPlanner()
        adapters = replace(build_adapters(self.connection, settings), planners=lambda _kind: planner)
        workers = await self._stack.enter_async_context(AsyncExitStack())
        for worker in build_workers(self.connection, settings, Role.WORKSPACE, adapters):
            await workers.enter_async_context(worker)
        await eventually(lambda: self._is_known(host))
        return workers

    def _settings_of(self, host: str) -> Settings:
        return self.settings.evolve(worker=self.settings.worker.evolve(host=host, graceful_shutdown_s=0.0))

    async def _is_known(self, host: str) -> bool:
        return self.home(host) in (await self.client.topology()).homes


@pytest.fixture
async def stage(settings: Settings, remote: RemoteSettings) -> AsyncIterator[Stage]:
    mine = settings.evolve(
        remote=remote.evolve(prefix=settings.temporal.task_queue),
        temporal=settings.temporal.evolve(absence_s=ABSENCE_S),
    )
    async with AsyncExitStack() as stack:
        yield Stage(await connect(mine), mine, stack)


@pytest.mark.parametrize("allowed", [True, False])
async def test_episode_of_a_silent_host_goes_on_elsewhere_only_if_settings_allow(
    stage: Stage, request_for: Callable[..., EpisodeRequest], allowed: bool
) -> None:
    await stage.run_workflows(timedelta(seconds=1) if allowed else None)
    first = await stage.serve("first")
    await stage.serve("second")
    episode_id = await stage.client.start(request_for(queues=Queues(home=stage.home("first"))))
    await stage.client.pause(episode_id)
    before = await asked(stage.client, episode_id)
    await first.aclose()
    await stage.client.resume(episode_id)
    if not allowed:
        status = await asked(stage.client, episode_id, since=before)
        assert f"on task queue '{stage.home('first')}'" in status.questions[0].title
        return
    result = await stage.client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    timeline = await stage.client.timeline(episode_id)
    [moved] = [line.text for line in timeline if line.kind == "moved"]
    assert moved.startswith("moved to second: the previous host did not respond (by tightloop), epoch 2")


async def test_episode_whose_copies_are_gone_goes_on_on_its_own_host_once_a_person_says_so(
    stage: Stage, request_for: Callable[..., EpisodeRequest]
) -> None:
    await stage.run_workflows(None)
    await stage.serve("first")
    await stage.serve("second")
    episode_id = await stage.client.start(request_for(queues=Queues(home=stage.home("first"))))
    await stage.client.pause(episode_id)
    before = await asked(stage.client, episode_id)
    bucket = S3Bucket(stage.settings.remote)
    bucket.remove(bucket.names(episode_id))
    await stage.client.resume(episode_id)
    status = await asked(stage.client, episode_id, since=before)
    assert "the remote store has no record of it" in status.questions[0].title
    assert "To move the episode to this host, run: tightloop move ID --to first" in status.questions[0].title
    await stage.client.move(episode_id, "first")
    result = await stage.client.result(episode_id)
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    timeline = await stage.client.timeline(episode_id)
    assert [line.text for line in timeline if line.kind == "moved"] == ["moved to first (by operator), epoch 2"]


async def test_bucket_that_is_slow_to_answer_counts_as_work_not_as_a_dead_worker(
    stage: Stage, request_for: Callable[..., EpisodeRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.run_workflows(None)
    await stage.serve("first")
    at_once, waits = Copies.check, iter([ABSENCE_S + 1.5])

    def slowly(copies: Copies, scope: EpisodeScope) -> CopiesHead:
        time.sleep(next(waits, 0.0))
        return at_once(copies, scope)

    monkeypatch.setattr(Copies, "check", slowly)
    episode_id = await stage.client.start(request_for(queues=Queues(home=stage.home("first"))))
    assert (await stage.client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
    assert not list(waits)
    handle = stage.connection.get_workflow_handle(episode_id)
    begun = [event.activity_task_started_event_attributes async for event in handle.fetch_history_events()]
    assert {each.attempt for each in begun if each.identity} == {1}


class WrongHost:
    """Refuses a step because its workspace is elsewhere, after the workflow was told to stop."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @activity.defn
    async def refuse(self, request: EpisodeScope) -> None:
        await self.client.get_workflow_handle(request.episode_id).signal("stop")
        raise ApplicationError("elsewhere", type=WorkspaceElsewhereError.__name__, non_retryable=True)


@workflow.defn
class StoppedWorkflow:
    """Runs a step that is stopped while its first host refuses it."""

    @workflow.init
    def __init__(self, home: str) -> None:
        self._runner = ActivityRunner(Routing(Queues(home=home)))

    @workflow.run
    async def run(self, home: str) -> str:
        scope = EpisodeScope(episode_id=workflow.info().workflow_id, workspace="/w", home=home)
        try:
            await self._runner.run(WrongHost.refuse, scope, ActivityOptions("", timedelta(minutes=1)))
        except ActivityFailedError as failure:
            return failure.reason
        return ""

    @workflow.signal
    def stop(self) -> None:
        self._runner.interrupt()


async def test_step_that_is_stopped_while_a_host_refuses_it_does_not_wait_for_another_one(
    temporal_client: Client,
) -> None:
    queue = f"stopped-{uuid4()}"
    async with Worker(
        temporal_client,
        task_queue=queue,
        workflows=[StoppedWorkflow],
        activities=[WrongHost(temporal_client).refuse],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        running = temporal_client.execute_workflow(StoppedWorkflow.run, "nobody", id=queue, task_queue=queue)
        assert await asyncio.wait_for(running, 10) == "elsewhere"
