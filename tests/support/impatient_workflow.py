"""The real workflow with less patience: tests need not wait for minutes until a worker counts as absent."""

from datetime import timedelta

from temporalio import workflow

from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeResult
from workflows.episode.workflow import EpisodeWorkflow


@workflow.defn(name="EpisodeWorkflow")
class Impatient(EpisodeWorkflow):
    """Waits a few seconds for a worker in place of minutes."""

    notice = timedelta(seconds=2)

    @workflow.init
    def __init__(self, request: EpisodeInput | None = None) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: EpisodeInput | None = None) -> EpisodeResult:
        return await super().run(request)
