"""Calls to Temporal about plans: what is different from those about episodes."""

import difflib
from dataclasses import replace
from typing import ClassVar, cast

import temporalio.api.workflow.v1 as workflow
from temporalio.client import WorkflowFailureError
from temporalio.converter import decode_typed_search_attributes
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from tightloop.client.answers import COMPLETED, STATUS, Execution
from tightloop.client.calls import CALL_TIMEOUT, Calls
from tightloop.errors import EpisodeNotFoundError
from tightloop.plan.request import PLAN_WORKFLOW_TYPE, PlanOutcome, PlanResult

PLAN_CLOSED_STATUSES = ("completed", "failed", "compensated", "cancelled", "terminated", "timed_out")
_NEAR = 200


class PlanCalls(Calls):
    """The calls of one connection, about plans."""

    workflow_type: ClassVar[str] = PLAN_WORKFLOW_TYPE
    noun: ClassVar[str] = "plan"
    show: ClassVar[str] = "tightloop plan status"

    async def plan_outcome(self, seen: Execution) -> PlanResult:
        """Return what a closed run left behind, however it ended."""
        handle = self.client.get_workflow_handle(seen.episode_id, run_id=seen.run_id, result_type=PlanResult)
        try:
            async with self._bounded(seen.episode_id, CALL_TIMEOUT):
                return cast(PlanResult, await handle.result(follow_runs=False, rpc_timeout=CALL_TIMEOUT))
        except WorkflowFailureError as error:
            return result_of_failure(error.cause)

    async def not_found(self, episode_id: str) -> EpisodeNotFoundError:
        """Return the error that names the nearest known ids."""
        known: list[str] = []
        async for row in self.executions():
            known.append(row.episode_id)
            if len(known) >= _NEAR:
                break
        nearest = difflib.get_close_matches(episode_id, known, n=3, cutoff=0.5) or known[:3]
        hint = (
            f"Known are {', '.join(nearest)}; see all with: tightloop plan list"
            if nearest
            else "There is none yet. Start one: tightloop plan run plan.yaml"
        )
        return EpisodeNotFoundError(f"there is no plan {episode_id!r}. {hint}")

    def closed(self, episode_id: str) -> str:
        """Return the sentence for a message to a plan that has ended."""
        return (
            f"the plan {episode_id} is closed and takes no more messages. Run it again, with what is done taken over: "
            f"tightloop plan run --again {episode_id}"
        )

    async def _execution(self, info: workflow.WorkflowExecutionInfo, pause_reason: str = "") -> Execution:
        seen = await super()._execution(info, pause_reason)
        pairs = decode_typed_search_attributes(info.search_attributes)
        told = next((str(pair.value) for pair in pairs if pair.key.name == STATUS), "")
        if info.status == COMPLETED:
            return replace(seen, status="cancelled" if told == "cancelled" else "completed")
        if seen.status == "failed" and told == "compensated":
            return replace(seen, status=told)
        return seen


def result_of_failure(cause: BaseException) -> PlanResult:
    """Return the result of a plan that did not complete."""
    if isinstance(cause, ApplicationError):
        if cause.type == "PlanFailed" and cause.details:
            return PlanResult.model_validate(cause.details[0])
        return PlanResult(outcome=PlanOutcome.FAILED, reason=cause.message)
    if isinstance(cause, CancelledError):
        return PlanResult(outcome=PlanOutcome.CANCELLED, reason="cancelled in Temporal")
    if isinstance(cause, TerminatedError):
        return PlanResult(outcome=PlanOutcome.CANCELLED, reason=f"terminated in Temporal: {cause.message}")
    if isinstance(cause, TemporalTimeoutError):
        return PlanResult(outcome=PlanOutcome.FAILED, reason="it ran into a time limit that was set in Temporal")
    return PlanResult(outcome=PlanOutcome.FAILED, reason=str(cause))
