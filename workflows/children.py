"""Starts child workflows and waits for their results."""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import Priority, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

from activities.staffing import ChildRequest, WorkerCheckActivities
from activities.workspace.scope import EpisodeScope
from tightloop.coder.model import CoderInput, CoderResult
from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeOutcome, EpisodeResult
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanOutcome, PlanResult
from tightloop.run.core import CODER_WORKFLOW_TYPE, TASK_TIMEOUT, Urgency, fairness_key, project_of
from tightloop.safety.seal import RefusedPayload
from tightloop.value import shorten
from tightloop.value.scrub import scrub
from workflows.run.activities import LOOK_TIMEOUT, RETRIES, ActivityFailedError, new_activity_id, priority_of

R = TypeVar("R")

# Two minutes in all, enough for a cancelled child to stop its activities, release its workspace and close.
ORPHAN_WAIT = timedelta(seconds=2)
ORPHAN_TRIES = 60
"""Maximum number of attempts to start a child while a child of a discarded run still uses its id."""
# Tools run within workflow tasks, so this is how fast a worker that dies during a tool call is noticed.
CODER_TASK_TIMEOUT = timedelta(seconds=3)
CODER_GRACE = timedelta(hours=2)
"""Time added to the coder's own time limit, so that it can run the checks once more at the end."""
RESULT_IN_DETAILS = frozenset({"PlanFailed", "EpisodeFailed"})
"""Error types of child workflows whose first detail is the result."""
# Set at the start, so that lists show the workflow before a worker has taken its first task.
_FIRST_ATTRIBUTES = TypedSearchAttributes(
    [SearchAttributePair(SearchAttributeKey.for_keyword("TightloopStatus"), "running")]
)


async def run_child(identity: str, start: EpisodeInput | PlanInput, summary: str) -> EpisodeResult | PlanResult:
    """Run an episode or a plan as a child workflow. Return the result even if the child failed."""
    is_plan = isinstance(start, PlanInput)
    result_type: type[PlanResult] | type[EpisodeResult] = PlanResult if is_plan else EpisodeResult
    try:
        return await _run(identity, start, start.workflow_type, result_type, summary)
    except ApplicationError as error:
        # A failed workflow has no result in Temporal. Its details are the only way to learn what it spent and left.
        if error.details and error.type in RESULT_IN_DETAILS:
            return result_type.model_validate(error.details[0])
        if is_plan:
            return PlanResult(outcome=PlanOutcome.FAILED, reason=error.message)
        return EpisodeResult(outcome=EpisodeOutcome.FAILED, reason=error.message)


async def run_coder(identity: str, start: CoderInput, summary: str) -> CoderResult:
    """Run a coder on its workspace's host and return its result.

    Raises:
        ActivityFailedError: the coder failed.
    """
    try:
        return await _run(
            identity,
            start,
            CODER_WORKFLOW_TYPE,
            CoderResult,
            summary,
            queue=start.home,
            task_timeout=CODER_TASK_TIMEOUT,
            # The coder enforces its limit itself; this bound holds when no worker runs it.
            execution_timeout=timedelta(seconds=start.wall_limit_s) + CODER_GRACE,
        )
    except ApplicationError as error:
        raise ActivityFailedError(f"the coder failed: {error.message}") from error


def _priority(start: EpisodeInput | PlanInput | CoderInput) -> Priority:
    """Return the task queue priority for a child. A coder's project is derived from its workspace path."""
    if isinstance(start, CoderInput):
        key = fairness_key(project_of(start.workspace)) or None
        return Priority(priority_key=int(Urgency.RUNNING), fairness_key=key)
    project = start.project_name if isinstance(start, EpisodeInput) else project_of(start.workspace)
    return priority_of(project, start.queues.weight, Urgency.RUNNING)


async def _run(
    identity: str,
    start: EpisodeInput | PlanInput | CoderInput,
    workflow_type: str,
    result_type: type[R],
    summary: str,
    *,
    queue: str = "",
    task_timeout: timedelta = TASK_TIMEOUT,
    execution_timeout: timedelta | None = None,
) -> R:
    """Start a child workflow and wait for its result.

    Raises:
        ApplicationError: the child failed, or closed without a result.
        ActivityFailedError: the result is not authentic, another workflow has the ID, or the child of a
            discarded run does not end.
        asyncio.CancelledError: this workflow or the awaiting task is being cancelled.
    """
    for _ in range(ORPHAN_TRIES):
        try:
            goal = start.title if isinstance(start, PlanInput) else start.goal
            handle: workflow.ChildWorkflowHandle[Any, R] = await workflow.start_child_workflow(
                workflow_type,
                start,
                id=identity,
                task_queue=queue or None,
                result_type=result_type,
                # Return only after the child has closed: the next step works on the same files.
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                # The default, TERMINATE, would leave the child no time to release its workspace and to record its end.
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                search_attributes=_FIRST_ATTRIBUTES,
                task_timeout=task_timeout,
                priority=_priority(start),
                execution_timeout=execution_timeout,
                memo={"goal": scrub(goal)[:200], "workspace": start.workspace},
                static_summary=shorten(summary, 150),
            )
            result: R | RefusedPayload = await handle
            # The codec does not raise, because an error while decoding would fail the workflow task again and again.
            if isinstance(result, RefusedPayload):
                raise ActivityFailedError(f"the result of {identity} is not authentic: {result.reason}")
            return result
        except WorkflowAlreadyStartedError:
            # The id is predictable, so anyone may have started a workflow under it: never cancel that one.
            if not await _is_own_child(identity, start.workspace):
                raise ActivityFailedError(
                    f"the id {identity} already belongs to an open workflow that this workflow did not start. Wait "
                    "for the open workflow to end or cancel it, then retry"
                ) from None
            # A reset does not apply the parent close policy: a child of the discarded run still has this id.
            await workflow.get_external_workflow_handle(identity).cancel()
            await workflow.sleep(
                ORPHAN_WAIT, summary=f"wait for {identity} to end, which was started by a discarded run"
            )
        except ChildWorkflowError as error:
            task = asyncio.current_task()
            # Only if this task is being cancelled: a child that was cancelled on its own has failed.
            if is_cancelled_exception(error) and task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            cause = error.cause
            raise cause if isinstance(cause, ApplicationError) else ApplicationError(str(cause or error)) from error
    raise ActivityFailedError(
        f"a discarded run started the workflow {identity}, which is still open. Terminate the workflow, then resume: "
        f"temporal workflow terminate --workflow-id {identity}"
    )


async def _is_own_child(identity: str, workspace: str) -> bool:
    """Return whether an earlier run of this workflow started the child workflow with this ID."""
    scope = EpisodeScope(episode_id=workflow.info().workflow_id, workspace=workspace)
    # A local activity, so that this short look does not wait behind long activities for a slot.
    return await workflow.execute_local_activity_method(
        WorkerCheckActivities.is_child,
        ChildRequest(scope=scope, workflow_id=identity),
        activity_id=new_activity_id(),
        schedule_to_close_timeout=LOOK_TIMEOUT,
        retry_policy=RETRIES,
    )
