"""Projects at one slot: bare activities that the product's own scheduling sends to a real server."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import Priority
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.support.episodes import eventually
from tests.support.gateway import gateway
from tightloop.client import TightloopClient
from tightloop.client.calls import Calls
from tightloop.client.staffing import backlog_of
from tightloop.episode.model import EpisodeRequest
from tightloop.run.core import Queues, Urgency, fairness_key
from tightloop.safety.seal import Role
from tightloop.settings import Settings
from tightloop.value import Value
from workflows.run.activities import ActivityOptions, ActivityRunner, Routing, priority_of

pytestmark = pytest.mark.timeout(120)


class Flood(Value):
    """How many steps a project wants at once."""

    request: EpisodeRequest
    steps: int
    urgency: Urgency = Urgency.RUNNING


class Screen:
    """Notes in which order it is used."""

    def __init__(self) -> None:
        self.used: list[str] = []

    @activity.defn
    async def use_screen(self, request: EpisodeRequest) -> None:
        self.used.append(request.project)


class Shared(Routing):
    """Gives the steps of a flood the order of its project."""

    def __init__(self, flood: Flood) -> None:
        super().__init__(Queues())
        self._flood = flood

    @property
    def priority(self) -> Priority:
        request = self._flood.request
        return priority_of(request.project_name, request.queues.weight, self._flood.urgency)


@workflow.defn
class FloodWorkflow:
    """Schedules its steps as episodes do."""

    @workflow.run
    async def run(self, flood: Flood) -> None:
        queue = flood.request.queues.executor
        runner = ActivityRunner(Shared(flood), notice=timedelta(minutes=2))
        options = ActivityOptions("", timedelta(minutes=1), queue, instant=True)
        await asyncio.gather(*(runner.run(Screen.use_screen, flood.request, options) for _ in range(flood.steps)))


async def nothing() -> None:
    """Look at nothing."""


async def order_of(client: Client, floods: Sequence[Flood], look: Callable[[], Awaitable[None]] = nothing) -> list[str]:
    """Let all of them wait, one flood after the other; look; then open the one slot."""
    queue, screen = floods[0].request.queues.executor, Screen()
    async with Worker(
        client, task_queue=f"{queue}-flows", workflows=[FloodWorkflow], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        handles = []
        for number, flood in enumerate(floods):
            name = f"{queue}-{number}"
            handles.append(await client.start_workflow(FloodWorkflow.run, flood, id=name, task_queue=f"{queue}-flows"))
            while len((await handles[-1].describe()).raw_description.pending_activities) < flood.steps:
                await asyncio.sleep(0.05)
        await look()
        async with Worker(client, task_queue=queue, activities=[screen.use_screen], max_concurrent_activities=1):
            await asyncio.gather(*(handle.result() for handle in handles))
    return screen.used


def project(name: str, settings: Settings, queue: str) -> EpisodeRequest:
    asked = EpisodeRequest(goal="g", workspace="/w", project=name, queues=Queues(executor=queue, weight=1000.0))
    return settings.with_defaults(asked)


async def test_flood_of_one_project_does_not_starve_another(temporal_client: Client, settings: Settings) -> None:
    queue = f"screen-{uuid.uuid4()}"
    floods = [Flood(request=project(name, settings, queue), steps=n) for name, n in (("big", 200), ("small", 20))]
    used = await order_of(temporal_client, floods)
    assert len(used) == 220
    assert used[:50].count("small") == 20


async def test_scarce_screen_is_shared_by_the_weights_of_the_settings(
    temporal_client: Client, settings: Settings
) -> None:
    queue = f"screen-{uuid.uuid4()}"
    mine = settings.evolve(queues=settings.queues.evolve(weights={"big": 3.0}))
    floods = [Flood(request=project(name, mine, queue), steps=120) for name in ("big", "small")]
    used = await order_of(temporal_client, floods)
    assert len(used) == 240
    assert 0.9 * 75 <= used[:100].count("big") <= 1.1 * 75


async def test_step_for_a_person_goes_before_running_ones_and_new_ones_wait_and_doctor_page_and_api_tell_so(
    temporal_client: Client, settings: Settings, tmp_path: Path
) -> None:
    queue = f"screen-{uuid.uuid4()}"
    mine = settings.evolve(queues=settings.queues.evolve(executor=queue))
    kinds = (("new", Urgency.NEW), ("running", Urgency.RUNNING), ("person", Urgency.PERSON_WAITS))
    floods = [Flood(request=project(name, settings, queue), steps=3, urgency=urgent) for name, urgent in kinds]
    told: list[str] = []
    waiting: list[dict[str, object]] = []

    async def look() -> None:
        async def counted() -> str:
            backlog = await backlog_of(Calls(temporal_client), queue)
            return str(backlog) if backlog.count == 9 else ""

        told.append(await eventually(counted))
        async with (
            gateway(tmp_path, TightloopClient(temporal_client, mine), mine) as served,
            served.http(served.token("op", Role.ADMIN)) as http,
        ):
            waiting.extend((await http.get("/api/workers")).json()["waiting"])
            told.append(unescape((await http.get("/workers")).text))

    used = await order_of(temporal_client, floods, look)
    assert used == ["person"] * 3 + ["running"] * 3 + ["new"] * 3
    assert told[0].endswith("in this order: 3 that a person waits for, 3 running, 3 new")
    [line] = [line for line in told[1].splitlines() if "data-backlog" in line and queue in line]
    assert "in this order: 3 that a person waits for, 3 running, 3 new" in line
    [found] = [one for one in waiting if one["queue"] == queue]
    assert found.pop("oldestS")
    assert found == {"queue": queue, "steps": 9, "personWaits": 3, "running": 3, "new": 3}


def test_project_is_not_named_to_temporal() -> None:
    assert fairness_key("acme-secret") == fairness_key("acme-secret")
    assert "acme" not in fairness_key("acme-secret")
