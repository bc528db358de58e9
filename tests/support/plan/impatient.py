"""The real plan workflow with less patience: tests need not wait for minutes until a worker counts as absent."""

from datetime import timedelta

from temporalio import workflow

from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanResult
from workflows.plan.workflow import PlanWorkflow


@workflow.defn(name="PlanWorkflow")
class ImpatientPlan(PlanWorkflow):
    """Waits a few seconds for a worker in place of minutes."""

    notice = timedelta(seconds=2)

    @workflow.init
    def __init__(self, request: PlanInput | None = None) -> None:
        super().__init__(request)

    @workflow.run
    async def run(self, request: PlanInput | None = None) -> PlanResult:
        return await super().run(request)
