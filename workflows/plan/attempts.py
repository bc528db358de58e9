"""How one attempt of a step is run: the activity of its capability, or the child workflows that it starts."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

from activities.plan.activity import PlanActivities
from activities.plan.requests import RunStepRequest, SettleRequest, StepRun
from tightloop.artifact import ArtifactRef
from tightloop.episode.model import (
    TASK_TIMEOUT,
    WORKFLOW_TYPE,
    EpisodeInput,
    EpisodeOutcome,
    EpisodeRequest,
    EpisodeResult,
)
from tightloop.plan.child import child_id
from tightloop.plan.document.step import Capability, FailureClass
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PLAN_WORKFLOW_TYPE, PlanOutcome, PlanRequest, PlanResult
from tightloop.plan.result import REASON_CHARACTERS, StepFailure, StepResult, StepStatus
from tightloop.safety.seal import RefusedPayload
from tightloop.value import shorten
from tightloop.value.scrub import scrub
from workflows.shared.activities import GRACE, ActivityFailedError, ActivityOptions, ActivityRunner

ACTIVITIES: dict[Capability, Callable[[Any, RunStepRequest], StepResult]] = {
    Capability.SHELL: PlanActivities.run_shell,
    Capability.EDIT: PlanActivities.run_edit,
    Capability.GIT: PlanActivities.run_git,
    Capability.HTTP: PlanActivities.run_http,
    Capability.SEARCH: PlanActivities.run_search,
    Capability.MODEL: PlanActivities.run_model,
    Capability.GATE: PlanActivities.run_gate,
    Capability.DECISION: PlanActivities.run_decision,
    Capability.CHECKPOINT: PlanActivities.take_checkpoint,
}
"""A milestone is passed, and the others start child workflows."""
CHILDREN = frozenset({Capability.EPISODE, Capability.SUBPLAN, Capability.BRANCH})
PREPARE_TIMEOUT = timedelta(minutes=15)
SETTLE_TIMEOUT = timedelta(hours=2)
"""Judging the alternatives of a branch runs their checks."""
ORPHAN_WAIT = timedelta(seconds=2)
ORPHAN_TRIES = 60
"""How often a child is started again while one of a discarded run still ends."""
RESULT_IN_DETAILS = frozenset({"PlanFailed", "EpisodeFailed"})
"""Failures of child workflows that have their result as a detail."""
INSTANT = timedelta(seconds=10)
"""Limit of what only looks at the plan; so short that it needs no heartbeats."""
# From the start, so that lists show the workflow before a worker has taken its first task.
_FIRST_ATTRIBUTES = TypedSearchAttributes(
    [SearchAttributePair(SearchAttributeKey.for_keyword("TightloopStatus"), "running")]
)


@dataclass(eq=False)
class Attempt:
    """One attempt of one step while it runs."""

    name: str
    capability: Capability
    request: RunStepRequest
    summary: str
    instant: bool
    """It does nothing that takes time."""
    timeout: timedelta | None
    """None: it starts workflows that have bounds of their own, and may wait for people."""
    plan: PlanRequest
    """What was asked for; children inherit from it."""
    since: datetime
    touches_tree: bool = False
    writes: bool = False
    task: asyncio.Task[None] | None = None
    watchdog: asyncio.Task[None] | None = None
    ended_by: str = ""
    """Why it was cancelled, where the plan goes on without it."""
    children: list[str] = field(default_factory=list)
    """Ids of the workflows that it started."""
    proof: ArtifactRef | None = None
    """Of the tree that its only child left."""

    @property
    def number(self) -> int:
        """Of the attempt, from 1."""
        return self.request.attempt

    def options(self, summary: str, timeout: timedelta) -> ActivityOptions:
        """Return how an activity of the attempt is run: on the host of the workspace."""
        return ActivityOptions(summary, timeout, self.plan.queues.workspace, instant=self.instant)


async def run_attempt(attempt: Attempt, activities: ActivityRunner) -> StepResult:
    """Run an attempt to its end.

    Raises:
        ActivityFailedError: it could not be run at all; that is not the step's failure.
        asyncio.CancelledError: it was cancelled.
    """
    try:
        if attempt.capability in CHILDREN:
            seconds = None if attempt.timeout is None else attempt.timeout.total_seconds()
            return await asyncio.wait_for(_with_children(attempt, activities), seconds)
        limit = INSTANT if attempt.instant else (attempt.timeout or timedelta()) + GRACE
        call = attempt.options(attempt.summary, limit)
        if attempt.capability is Capability.NONE:
            return await activities.run(PlanActivities.pass_milestone, attempt.request, call)
        return await activities.run(ACTIVITIES[attempt.capability], attempt.request, call)
    except TimeoutError:
        return out_of_time(attempt.timeout)
    except ActivityFailedError as failure:
        if failure.timed_out:
            return out_of_time(attempt.timeout)
        raise


def out_of_time(limit: timedelta | None) -> StepResult:
    """Return the failure of an attempt that did not end in time."""
    shown = "its time limit" if limit is None else f"{limit.total_seconds():g} s"
    return failed(FailureClass.TRANSIENT, f"it did not end within {shown}")


def failed(failure_class: FailureClass, reason: str) -> StepResult:
    """Return the result of an attempt that failed."""
    failure = StepFailure(failure_class=failure_class, reason=shorten(reason, REASON_CHARACTERS))
    return StepResult(status=StepStatus.FAILED, failure=failure)


# -- children ---------------------------------------------------------------------------------------


async def _with_children(attempt: Attempt, activities: ActivityRunner) -> StepResult:
    prepare = attempt.options(f"{attempt.summary}: prepare", PREPARE_TIMEOUT)
    run = await activities.run(PlanActivities.prepare_children, attempt.request, prepare)
    if run.result is not None:
        return run.result
    starts = list(_children(attempt, run))
    attempt.children.extend(identity for identity, _ in starts)
    ended = await _all([_child(identity, start, attempt.summary) for identity, start in starts])
    attempt.proof = ended[0].proof if len(ended) == 1 else None
    settle = attempt.options(f"{attempt.summary}: take over", SETTLE_TIMEOUT)
    # A child that ended without a tree was stopped: what it left on disk is nobody else's.
    is_stopped = len(ended) == 1 and not ended[0].tree
    run_request = attempt.request
    if is_stopped:
        run_request = run_request.evolve(scope=run_request.scope.evolve(put_back=True))
    request = SettleRequest(
        run=run_request,
        children=tuple(attempt.children),
        outcomes=tuple(end.outcome.value for end in ended),
        reasons=tuple(shorten(end.reason, REASON_CHARACTERS) for end in ended),
        trees=tuple(end.tree for end in ended),
        cost_usd=sum(end.spent.cost_usd for end in ended),
        tokens=sum(end.spent.tokens for end in ended),
        api_calls=sum(end.spent.api_calls if isinstance(end, PlanResult) else end.spent.calls for end in ended),
    )
    return await activities.run(PlanActivities.settle_children, request, settle)


def _children(attempt: Attempt, run: StepRun) -> Iterable[tuple[str, EpisodeInput | PlanInput]]:
    """Return what is started, with its id. Queues, patience and depth come from the plan around it."""
    scope, around = attempt.request.scope, attempt.plan
    if run.episode:
        inherited = {"queues": around.queues, "pause_timeout": around.pause_timeout, "allow": around.allow}
        yield (
            child_id(scope.episode_id, attempt.name, attempt.number),
            EpisodeInput.model_validate({**inherited, "within": scope.holder, **run.episode}),
        )
    for index, plan in enumerate(run.plans):
        name = run.names[index] if index < len(run.names) else ""
        identity = child_id(scope.episode_id, attempt.name, attempt.number, name)
        # A worktree of its own has a claim of its own.
        within = plan.within or ("" if plan.worktree else scope.holder)
        # An alternative that waits for a person is out sooner than a plan.
        patience = min(plan.pause_timeout, around.pause_timeout)
        inherited = {"queues": around.queues, "allow": around.allow, "depth": around.depth + 1}
        yield identity, PlanInput.of(plan, pause_timeout=patience, within=within, **inherited)


async def _all(runs: Sequence[Any]) -> list[EpisodeResult | PlanResult]:
    """Wait for all; when this is cancelled, all of them are, and they are waited for."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        return [await task for task in tasks]
    except (asyncio.CancelledError, ActivityFailedError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _child(identity: str, start: EpisodeInput | PlanInput, summary: str) -> EpisodeResult | PlanResult:
    """Start a child workflow and wait for its end, however it ends."""
    is_plan = isinstance(start, PlanInput)
    result_type: type[PlanResult] | type[EpisodeResult] = PlanResult if is_plan else EpisodeResult
    for _ in range(ORPHAN_TRIES):
        try:
            goal = start.goal if isinstance(start, EpisodeRequest) else start.title
            handle: workflow.ChildWorkflowHandle[Any, EpisodeResult | PlanResult] = await workflow.start_child_workflow(
                PLAN_WORKFLOW_TYPE if is_plan else WORKFLOW_TYPE,
                start,
                id=identity,
                result_type=result_type,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                search_attributes=_FIRST_ATTRIBUTES,
                task_timeout=TASK_TIMEOUT,
                memo={"goal": scrub(goal)[:200], "workspace": start.workspace},
                static_summary=shorten(summary, 150),
            )
            result: EpisodeResult | PlanResult | RefusedPayload = await handle
            if isinstance(result, RefusedPayload):
                raise ActivityFailedError(f"the result of {identity} is not authentic: {result.reason}")
            return result
        except WorkflowAlreadyStartedError:
            # A reset does not apply the parent close policy: a child of the discarded run still has this id.
            await workflow.get_external_workflow_handle(identity).cancel()
            await workflow.sleep(ORPHAN_WAIT, summary=f"{identity} of a discarded run is ending")
        except ChildWorkflowError as error:
            task = asyncio.current_task()
            if is_cancelled_exception(error) and task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.details and cause.type in RESULT_IN_DETAILS:
                return result_type.model_validate(cause.details[0])
            reason = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
            if is_plan:
                return PlanResult(outcome=PlanOutcome.FAILED, reason=reason)
            return EpisodeResult(outcome=EpisodeOutcome.FAILED, reason=reason)
    raise ActivityFailedError(f"{identity} of a discarded run does not end. End it in Temporal, then resume")
