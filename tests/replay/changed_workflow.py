"""Workflow code that was changed without care: histories of the real one must not fit it."""

import asyncio
from typing import Any

from temporalio import workflow

from tightloop.episode.check import Verification
from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeResult
from tightloop.episode.planning import PlanningOutcome
from workflows.episode.iteration import Iteration
from workflows.episode.workflow import EpisodeWorkflow


class WaitsBeforeChecks(Iteration):
    async def _run_checks(self, *arguments: Any, **named: Any) -> Verification:
        await asyncio.sleep(1)
        return await super()._run_checks(*arguments, **named)


class ChecksOnceMore(Iteration):
    async def plan(self) -> PlanningOutcome:
        await self._run_checks("once more before the plan")
        return await super().plan()


@workflow.defn(name="EpisodeWorkflow")
class WithOneMoreTimer(EpisodeWorkflow):
    """Waits a little before every check."""

    @workflow.init
    def __init__(self, request: EpisodeInput) -> None:
        super().__init__(request)
        self._iteration = WaitsBeforeChecks(self._record, self._points, self._proof)

    @workflow.run
    async def run(self, request: EpisodeInput) -> EpisodeResult:
        return await super().run(request)


@workflow.defn(name="EpisodeWorkflow")
class WithAnotherActivity(EpisodeWorkflow):
    """Checks once more before every plan."""

    @workflow.init
    def __init__(self, request: EpisodeInput) -> None:
        super().__init__(request)
        self._iteration = ChecksOnceMore(self._record, self._points, self._proof)

    @workflow.run
    async def run(self, request: EpisodeInput) -> EpisodeResult:
        return await super().run(request)
