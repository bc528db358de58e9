"""How a run of a plan begins: a new plan is opened, or the graph of the previous run is loaded."""

from datetime import timedelta

from temporalio import workflow

from activities.plan.activity import PlanActivities
from activities.plan.requests import LoadPlanRequest, OpenedPlan, OpenPlanRequest
from tightloop.ledger.alert import AlertKind
from tightloop.plan.engine.graph import Graph
from tightloop.plan.request import PlanPhase
from tightloop.value import shorten
from tightloop.value.scrub import scrub
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.ending import PlanProof
from workflows.plan.recovery import Recovery
from workflows.plan.reporting import PlanReporting
from workflows.plan.waiting import Waiting
from workflows.run.activities import OPEN_TIMEOUT, ActivityFailedError
from workflows.run.kernel import NotOpenedError
from workflows.run.reporting import begins

OPEN_WITH_PLANNER_TIMEOUT = timedelta(minutes=60)


class Opening:
    """Gives the plan its graph."""

    def __init__(
        self, context: PlanContext, waiting: Waiting, recovery: Recovery, proof: PlanProof, reporting: PlanReporting
    ) -> None:
        self._context, self._waiting, self._recovery, self._proof = context, waiting, recovery, proof
        self._reporting = reporting

    async def open(self) -> None:
        """Open a new plan, or load the graph of the previous run.

        Raises:
            PlanEnd: the previous run was about to end the plan.
            NotOpenedError: a new plan cannot be opened; people were told.
        """
        context = self._context
        is_new = context.progress.plan is None
        if is_new:
            opened = await self._open_new()
        else:
            opened = await self._waiting.run(
                PlanActivities.load_plan,
                lambda: LoadPlanRequest(scope=context.scope),
                context.on_host(f"load revision {context.progress.revision}", OPEN_TIMEOUT),
            )
        graph = Graph.unpack(opened.graph)
        context.open(graph, has_planner=opened.planner)
        if is_new:
            context.begin(opened, graph)
            workflow.upsert_memo({"goal": shorten(scrub(context.title), 200)})
            if self._proof.is_needed:
                self._reporting.enter(PlanPhase.VERIFYING)
                await self._proof.begin()
        self._recovery.restore()
        if context.progress.phase is PlanPhase.COMPENSATING:
            raise PlanEnd(context.progress.reason, compensate=True)
        self._reporting.enter(PlanPhase.RUNNING)

    async def _open_new(self) -> OpenedPlan:
        context = self._context
        limit = OPEN_WITH_PLANNER_TIMEOUT if context.request.goal else OPEN_TIMEOUT
        opening = workflow.info().original_execution_run_id
        request = OpenPlanRequest(
            scope=context.scope,
            request=context.request,
            opening=opening,
            is_new=context.is_first,
            snapshot=begins(context.kind, context.title or context.request.goal),
        )
        options = context.on_host("check the plan and claim the workspace", limit)
        while True:
            try:
                return await self._waiting.run_once(PlanActivities.open_plan, request, options)
            except ActivityFailedError as failure:
                if failure.no_worker:
                    await self._waiting.ask_about(failure)
                    continue
                if context.request.depth == 1:
                    await context.alerts.send_last(context.alert(AlertKind.FAILED, failure.reason))
                raise NotOpenedError(failure.reason, "PlanNotOpened") from failure
