"""How a plan ends: what runs is stopped, what was done is taken back where the plan says so, the account is stored."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.plan.activity import PlanActivities
from activities.plan.requests import ClosePlanRequest, LoadPlanRequest
from tightloop.ledger.alert import AlertKind
from tightloop.plan.document.plan import OnPlanFailure
from tightloop.plan.engine.graph import Graph
from tightloop.plan.request import PlanOutcome, PlanPhase, PlanResult
from tightloop.plan.result import StepStatus
from tightloop.value import abridge
from workflows.plan.compensation import Compensation
from workflows.plan.context import PlanContext, PlanEnd
from workflows.plan.dispatch import Dispatch
from workflows.plan.reporting import PlanReporting
from workflows.plan.waiting import NAMES_SHOWN
from workflows.shared.activities import CLOSE_TIMEOUT, OPEN_TIMEOUT, ActivityFailedError, ActivityRunner
from workflows.shared.alerts import Alerts

STATUSES_LIMIT = 2_000
REASON_CHARACTERS = 1_000


class Ending:
    """Closes a plan."""

    def __init__(
        self,
        context: PlanContext,
        dispatch: Dispatch,
        compensation: Compensation,
        reporting: PlanReporting,
        alerts: Alerts,
        activities: ActivityRunner,
    ) -> None:
        self._context, self._dispatch, self._compensation = context, dispatch, compensation
        self._reporting, self._alerts, self._activities = reporting, alerts, activities

    async def end(self, end: PlanEnd) -> PlanResult:
        """End a plan whose steps are not all done.

        Raises:
            ApplicationError: the plan failed; its details hold the result.
        """
        context, progress = self._context, self._context.progress
        await self._dispatch.stop()
        if not context.is_open and progress.plan is not None:
            await self._load()
        is_cancelled = progress.cancel is not None
        progress.reason = reason = end.reason
        compensate = end.compensate
        if context.is_open and is_cancelled:
            compensate = context.failure_policy is OnPlanFailure.COMPENSATE
        outcome = PlanOutcome.CANCELLED if is_cancelled else PlanOutcome.FAILED
        if compensate:
            problems = await self._compensation.take_all_back()
            if problems:
                reason += ". Not taken back: " + "; ".join(problems[:NAMES_SHOWN])
            elif not is_cancelled:
                outcome = PlanOutcome.COMPENSATED
        # The plan around this one decides what its failure means.
        if not is_cancelled and context.request.depth == 1:
            await self._alerts.send_last(context.alert(AlertKind.FAILED, reason))
        return await self.close(outcome, reason)

    async def close(self, outcome: PlanOutcome, reason: str) -> PlanResult:
        """Close the plan.

        Raises:
            ApplicationError: the plan failed; its details hold the result.
        """
        context = self._context
        context.close(outcome.value.lower(), abridge(reason, REASON_CHARACTERS))
        self._dispatch.count_time()
        result = PlanResult(outcome=outcome, reason=context.reason)
        if context.is_open:
            context.schedule.close()
            context.log("closed", detail=f"{outcome.value}: {context.reason}")
            result = await self._account(outcome)
        context.set_phase(PlanPhase.CLOSED)
        self._reporting.close()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if outcome in (PlanOutcome.FAILED, PlanOutcome.COMPENSATED):
            raise ApplicationError(context.reason, result, type="PlanFailed", non_retryable=True)
        return result

    async def _load(self) -> None:
        """Load the graph of a plan that a previous run opened, to take back what was done and free the workspace."""
        context = self._context
        options = context.on_host(f"load revision {context.progress.revision}", OPEN_TIMEOUT)
        try:
            request = LoadPlanRequest(scope=context.scope())
            opened = await self._activities.run(PlanActivities.load_plan, request, options)
        except ActivityFailedError as failure:
            context.log("closed", detail=f"the workspace could not be given back: {failure.reason}")
            return
        context.open(Graph.unpack(opened.graph), has_planner=opened.planner)

    async def _account(self, outcome: PlanOutcome) -> PlanResult:
        """Store the account of the plan, give the workspace back, and return the result."""
        context, progress, schedule = self._context, self._context.progress, self._context.schedule
        counts, record = schedule.counts(), None
        left = [number for number in range(len(schedule)) if schedule.status(number) is not StepStatus.COMPLETED]
        # Before the last word is taken: a record that is sent meanwhile would be newer than it.
        await self._reporting.settle()
        request = ClosePlanRequest(
            scope=context.scope(),
            outcome=outcome,
            reason=context.reason,
            expected_tree="" if context.request.dry_run else progress.tree,
            statuses={schedule.name(number): schedule.status(number).value for number in left[:STATUSES_LIMIT]},
            counts=counts,
            snapshot=self._reporting.last,
        )
        try:
            options = context.on_host(f"close: {outcome.value}", CLOSE_TIMEOUT)
            closed = await self._activities.run(PlanActivities.close_plan, request, options)
            record = closed.archive
            context.log_drift(closed.drift)
        except ActivityFailedError as failure:
            context.log("closed", detail=f"the workspace could not be given back: {failure.reason}")
        return PlanResult(
            outcome=outcome,
            reason=context.reason,
            counts=counts,
            tree=progress.tree,
            revision=progress.revision,
            spent=progress.spent,
            proof=progress.proof if outcome is PlanOutcome.COMPLETED else None,
            record=record,
        )
