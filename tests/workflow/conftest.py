"""What the tests of plans share."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from tests.plan_doubles import PlanStage, Script, ScriptedPlanActivities, plan_worker
from tightloop.client.plans import Plans
from tightloop.settings import Settings

Playing = Callable[..., AbstractAsyncContextManager[PlanStage]]
QUERY_TIMEOUT = timedelta(seconds=30)
"""A worker that keeps nothing in memory replays a plan for each answer."""


@pytest.fixture
def plans(temporal_client: Client, settings: Settings) -> Plans:
    return Plans(temporal_client, settings, query_timeout=QUERY_TIMEOUT)


@pytest.fixture
def playing(temporal_client: Client, settings: Settings, plans: Plans) -> Playing:
    """Start a plan with activities that follow a script, and a worker for it."""

    @asynccontextmanager
    async def play(
        source: str, script: Script | None = None, request: dict[str, Any] | None = None, **changes: Any
    ) -> AsyncIterator[PlanStage]:
        cached = changes.pop("cached", 1_000)
        stage = PlanStage(plans, ScriptedPlanActivities(script, **changes), temporal_client)
        queue = settings.temporal.task_queue
        async with plan_worker(temporal_client, queue, stage.scripted.all(), cached=cached):
            await stage.start(source, **(request or {}))
            yield stage

    return play
