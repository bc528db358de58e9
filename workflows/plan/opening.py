"""How a run of a plan begins: a new plan is opened, or the graph of the previous run is loaded."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.activity import PlanActivities
from activities.plan.requests import LoadPlanRequest, OpenedPlan, OpenPlanRequest
from tightloop.errors import InvalidRequestError
from tightloop.ledger.alert import AlertKind
from tightloop.plan.engine.graph import Graph
from tightloop.plan.request import PlanOutcome, PlanPhase
from tightloop.value import abridge, shorten
from tightloop.value.scrub import scrub
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.ending import REASON_CHARACTERS, PlanProof
from workflows.plan.recovery import Recovery
from workflows.plan.reporting import PlanReporting
from workflows.plan.waiting import Waiting
from workflows.shared.activities import OPEN_TIMEOUT, ActivityFailedError
from workflows.shared.messages import refuse_setup
from workflows.shared.reporting import Alerts, begins, is_first_use

OPEN_WITH_PLANNER_TIMEOUT = timedelta(minutes=60)


class Opening:
    """Gives the plan its graph."""

    def __init__(
        self,
        context: PlanContext,
        waiting: Waiting,
        recovery: Recovery,
        proof: PlanProof,
        reporting: PlanReporting,
        alerts: Alerts,
    ) -> None:
        self._context, self._waiting, self._recovery, self._proof = context, waiting, recovery, proof
        self._reporting, self._alerts = reporting, alerts

    def check(self) -> None:
        """Refuse an input that cannot work.

        Raises:
            InvalidRequestError: with a sentence for the first wrong field.
        """
        if self._context.problem:
            raise InvalidRequestError(self._context.problem)
        if self._context.is_first_run:
            refuse_setup(self._context.unknown)
            self._context.request.check()

    @property
    def _is_new(self) -> bool:
        return is_first_use() and not self._context.replaces

    def refuse(self, reason: str) -> None:
        """Show that the plan could not begin."""
        context = self._context
        context.close("failed", abridge(reason, REASON_CHARACTERS))
        context.log("closed", detail=f"{PlanOutcome.FAILED.value}: {context.reason}")
        context.set_phase(PlanPhase.CLOSED)
        self._reporting.refuse(is_new=self._is_new)

    async def open(self) -> None:
        """Open a new plan, or load the graph of the previous run.

        Raises:
            PlanEnd: the previous run was about to end the plan.
        """
        context, progress = self._context, self._context.progress
        is_new = progress.plan is None
        if is_new:
            opened = await self._open_new()
        else:
            opened = await self._waiting.run(
                PlanActivities.load_plan,
                lambda: LoadPlanRequest(scope=context.scope()),
                context.on_host(f"load revision {progress.revision}", OPEN_TIMEOUT),
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
        if progress.phase is PlanPhase.COMPENSATING:
            raise PlanEnd(progress.reason, compensate=True)
        self._reporting.enter(PlanPhase.RUNNING)

    async def _open_new(self) -> OpenedPlan:
        context = self._context
        limit = OPEN_WITH_PLANNER_TIMEOUT if context.request.goal else OPEN_TIMEOUT
        opening = workflow.info().original_execution_run_id
        request = OpenPlanRequest(
            scope=context.scope(),
            request=context.request,
            opening=opening,
            is_new=self._is_new,
            snapshot=begins("plan", context.title or context.request.goal),
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
                    await self._alerts.send_last(context.alert(AlertKind.FAILED, failure.reason))
                self.refuse(failure.reason)
                raise ApplicationError(failure.reason, type="PlanNotOpened", non_retryable=True) from failure
