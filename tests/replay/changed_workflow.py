"""Workflow code that was changed without care: histories of the real one must not fit it."""

import asyncio

from temporalio import workflow

from tightloop.check import Verification
from tightloop.episode import EpisodeInput, EpisodeResult
from tightloop.planning import PlanOutcome
from workflows.episode import EpisodeWorkflow


@workflow.defn(name="EpisodeWorkflow")
class WithOneMoreTimer(EpisodeWorkflow):
    """Waits a little before every check."""

    @workflow.init
    def __init__(self, request: EpisodeInput) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: EpisodeInput) -> EpisodeResult:
        return await super().run(request)

    async def _verify(self, summary: str, *, previous: bool = True) -> Verification:
        await asyncio.sleep(1)
        return await super()._verify(summary, previous=previous)


@workflow.defn(name="EpisodeWorkflow")
class WithAnotherActivity(EpisodeWorkflow):
    """Checks once more before every plan."""

    @workflow.init
    def __init__(self, request: EpisodeInput) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: EpisodeInput) -> EpisodeResult:
        return await super().run(request)

    async def _plan(self) -> PlanOutcome:
        await self._verify("once more before the plan")
        return await super()._plan()
