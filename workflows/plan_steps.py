"""How one attempt of a step is run: the activity of its capability, or the child workflows that it starts."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from activities.plan.activity import PlanActivities
from activities.plan.requests import RunStepRequest, SettleRequest, StepRun
from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TimeoutType,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from tightloop.episode import WORKFLOW_TYPE, EpisodeInput, EpisodeOutcome, EpisodeRequest, EpisodeResult
from tightloop.plan.child import ambiguous_child_id, child_id
from tightloop.plan.input import PlanInput
from tightloop.plan.model import Capability, FailureClass
from tightloop.plan.request import PLAN_WORKFLOW_TYPE, PlanOutcome, PlanRequest, PlanResult
from tightloop.plan.result import REASON_CHARACTERS, StepFailure, StepResult, StepStatus
from tightloop.scrub import scrub
from tightloop.value import shorten

from workflows.steps import (
    GRACE,
    HEARTBEAT_TIMEOUT,
    NO_WORKER_TIMEOUT,
    RETRIES,
    Call,
    StepFailedError,
    found_no_worker,
    reason_of,
)

ACTIVITIES: dict[Capability, Callable[[Any, RunStepRequest], StepResult]] = {
    Capability.SHELL: PlanActivities.run_shell,
    Capability.EDIT: PlanActivities.run_edit,
    Capability.GIT: PlanActivities.run_git,
    Capability.HTTP: PlanActivities.run_http,
    Capability.FETCH: PlanActivities.run_fetch,
    Capability.SEARCH: PlanActivities.run_search,
    Capability.MODEL: PlanActivities.run_model,
    Capability.GATE: PlanActivities.run_gate,
    Capability.DECISION: PlanActivities.run_decision,
    Capability.CHECKPOINT: PlanActivities.take_checkpoint,
}
"""Capability -> activity; a milestone is passed, the others start child workflows."""
CHILDREN = frozenset({Capability.EPISODE, Capability.SUBPLAN, Capability.BRANCH})
PREPARE_TIMEOUT = timedelta(minutes=15)
SETTLE_TIMEOUT = timedelta(hours=2)
"""Judging the alternatives of a branch runs their checks."""
ORPHAN_WAIT = timedelta(seconds=2)
ORPHAN_TRIES = 60
"""How often a child is started again while one of a discarded run still ends."""
INSTANT = timedelta(seconds=10)
"""Limit of what only looks at the plan; so short that it needs no heartbeats."""
STEP_RETRIES = RetryPolicy(
    initial_interval=RETRIES.initial_interval,
    backoff_coefficient=RETRIES.backoff_coefficient,
    maximum_interval=RETRIES.maximum_interval,
    maximum_attempts=RETRIES.maximum_attempts,
    non_retryable_error_types=["TemporalTimeout:StartToClose"],
)
"""A dead worker is tried again; a step that used up its time has failed."""
_FIRST_ATTRIBUTES = TypedSearchAttributes(
    [SearchAttributePair(SearchAttributeKey.for_keyword("TightloopStatus"), "running")]
)

DISTINCT_IDS = "distinct-child-ids"
"""Patch: steps `a.b` and `a_b` start workflows with different ids."""

A = TypeVar("A")
R = TypeVar("R")


class OutOfTimeError(StepFailedError):
    """An activity used up its time."""


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
    patience: timedelta = NO_WORKER_TIMEOUT
    """How long it may wait for a worker."""
    task: asyncio.Task[None] | None = None
    watchdog: asyncio.Task[None] | None = None
    ended_by: str = ""
    """Why it was cancelled, where the plan goes on without it."""
    children: list[str] = field(default_factory=list)
    """Ids of the workflows that it started."""
    asked: PlanRequest = field(default_factory=PlanRequest)
    """What the plan itself was asked for; children take over where they run, and are one deeper."""

    @property
    def queue(self) -> str:
        """Task queue of the workspace's host."""
        return self.plan.queues.workspace

    @property
    def number(self) -> int:
        """Of the attempt, from 1."""
        return self.request.attempt


@dataclass(frozen=True)
class Ended:
    """What became of a child workflow."""

    outcome: str
    reason: str = ""
    tree: str = ""
    cost_usd: float = 0.0
    tokens: int = 0
    api_calls: int = 0


@overload
async def run_activity(
    method: Callable[[Any, A], Coroutine[Any, Any, R]], request: A, call: Call, patience: timedelta = NO_WORKER_TIMEOUT
) -> R: ...
@overload
async def run_activity(
    method: Callable[[Any, A], R], request: A, call: Call, patience: timedelta = NO_WORKER_TIMEOUT
) -> R: ...
async def run_activity(
    method: Callable[[Any, Any], Any], request: Any, call: Call, patience: timedelta = NO_WORKER_TIMEOUT
) -> Any:
    """Run one activity to its end, beside others.

    Raises:
        StepFailedError: it failed for good, or no worker took it.
        OutOfTimeError: it used up its time.
        asyncio.CancelledError: it was cancelled.
    """
    try:
        return await workflow.execute_activity_method(
            method,
            request,
            task_queue=call.queue or None,
            start_to_close_timeout=call.timeout,
            schedule_to_start_timeout=patience if call.queue else None,
            heartbeat_timeout=None if call.instant else HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES if call.instant else STEP_RETRIES,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=call.summary or None,
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        if _took_too_long(error):
            said = f"{error.activity_type} did not end within {call.timeout.total_seconds():g} s"
            raise OutOfTimeError(said) from error
        if found_no_worker(error):
            raise StepFailedError(
                f"no worker on task queue {call.queue!r} took {error.activity_type} within "
                f"{patience.total_seconds():g} s. Start one for this queue, then resume",
                no_worker=True,
            ) from error
        raise StepFailedError(reason_of(error)) from error


async def run_attempt(attempt: Attempt) -> StepResult:
    """Run an attempt to its end.

    Raises:
        StepFailedError: it could not be run at all; that is not the step's failure.
        asyncio.CancelledError: it was cancelled.
    """
    try:
        if attempt.capability in CHILDREN:
            seconds = None if attempt.timeout is None else attempt.timeout.total_seconds()
            return await asyncio.wait_for(_with_children(attempt), seconds)
        limit = INSTANT if attempt.instant else (attempt.timeout or timedelta()) + GRACE
        call = Call(attempt.summary, limit, attempt.queue, instant=attempt.instant)
        if attempt.capability is Capability.NONE:
            return await run_activity(PlanActivities.pass_milestone, attempt.request, call, attempt.patience)
        return await run_activity(ACTIVITIES[attempt.capability], attempt.request, call, attempt.patience)
    except (TimeoutError, OutOfTimeError):
        return out_of_time(attempt.timeout)


def out_of_time(limit: timedelta | None) -> StepResult:
    """Return the failure of an attempt that did not end in time."""
    shown = "its time limit" if limit is None else f"{limit.total_seconds():g} s"
    return failed(FailureClass.TRANSIENT, f"it did not end within {shown}")


def failed(failure_class: FailureClass, reason: str) -> StepResult:
    """Return the result of an attempt that failed."""
    failure = StepFailure(failure_class=failure_class, reason=shorten(reason, REASON_CHARACTERS))
    return StepResult(status=StepStatus.FAILED, failure=failure)


# -- children ---------------------------------------------------------------------------------------


async def _with_children(attempt: Attempt) -> StepResult:
    prepare = Call(f"{attempt.summary}: prepare", PREPARE_TIMEOUT, attempt.queue)
    run = await run_activity(PlanActivities.prepare_children, attempt.request, prepare, attempt.patience)
    if run.result is not None:
        return run.result
    starts = list(_children(attempt, run))
    attempt.children.extend(identity for identity, _ in starts)
    ended = await _all([_child(identity, start, attempt.summary) for identity, start in starts])
    settle = Call(f"{attempt.summary}: take over", SETTLE_TIMEOUT, attempt.queue)
    request = SettleRequest(
        run=attempt.request,
        children=tuple(attempt.children),
        outcomes=tuple(end.outcome for end in ended),
        reasons=tuple(shorten(end.reason, REASON_CHARACTERS) for end in ended),
        trees=tuple(end.tree for end in ended),
        cost_usd=sum(end.cost_usd for end in ended),
        tokens=sum(end.tokens for end in ended),
        api_calls=sum(end.api_calls for end in ended),
    )
    return await run_activity(PlanActivities.settle_children, request, settle, attempt.patience)


def _children(attempt: Attempt, run: StepRun) -> Iterable[tuple[str, EpisodeInput | PlanInput]]:
    """Return what is started, with its id. Queues, patience and depth come from the plan around it."""
    scope, around = attempt.request.scope, attempt.plan
    inherited: dict[str, Any] = {"queues": around.queues, "pause_timeout": around.pause_timeout}
    if run.episode:
        identity = _identity(attempt)
        yield identity, EpisodeInput.model_validate({**inherited, "within": scope.holder, **run.episode})
    for index, plan in enumerate(run.plans):
        name = run.names[index] if index < len(run.names) else ""
        identity = _identity(attempt, name)
        fields: dict[str, Any] = {field: getattr(plan, field) for field in PlanRequest.model_fields}
        # A worktree of its own has a claim of its own.
        within = plan.within or ("" if plan.worktree else scope.holder)
        # An alternative that waits for a person is out sooner than a plan.
        patience = min(plan.pause_timeout, around.pause_timeout)
        own = {"within": within, "depth": around.depth + 1, "pause_timeout": patience}
        yield identity, PlanInput(**{**fields, **inherited, **own})


def _identity(attempt: Attempt, alternative: str = "") -> str:
    place = (attempt.request.scope.episode_id, attempt.name, attempt.number, alternative)
    identity, before = child_id(*place), ambiguous_child_id(*place)
    return identity if identity == before or workflow.patched(DISTINCT_IDS) else before


async def _all(runs: Sequence[Any]) -> list[Ended]:
    """Wait for all; when this is cancelled, all of them are, and they are waited for."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        return [await task for task in tasks]
    except (asyncio.CancelledError, StepFailedError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _child(identity: str, start: EpisodeInput | PlanInput, summary: str) -> Ended:
    """Start a child workflow and wait for its end, however it ends."""
    is_plan = isinstance(start, PlanInput)
    for _ in range(ORPHAN_TRIES):
        try:
            handle: workflow.ChildWorkflowHandle[Any, Any] = await workflow.start_child_workflow(
                PLAN_WORKFLOW_TYPE if is_plan else WORKFLOW_TYPE,
                start,
                id=identity,
                result_type=PlanResult if is_plan else EpisodeResult,
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                search_attributes=_FIRST_ATTRIBUTES,
                memo=_memo(start),
                static_summary=shorten(summary, 150),
            )
            return _ended(await handle)
        except WorkflowAlreadyStartedError:
            # A run that a reset discarded left it behind.
            await workflow.get_external_workflow_handle(identity).cancel()
            await workflow.sleep(ORPHAN_WAIT, summary=f"{identity} of a discarded run is ending")
        except ChildWorkflowError as error:
            task = asyncio.current_task()
            if is_cancelled_exception(error) and task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            return _broken(error)
    raise StepFailedError(f"{identity} of a discarded run does not end. End it in Temporal, then resume")


def _memo(start: EpisodeInput | PlanInput) -> dict[str, str]:
    goal = start.goal if isinstance(start, EpisodeRequest) else start.title
    return {"goal": scrub(goal)[:200], "workspace": start.workspace}


def _ended(result: EpisodeResult | PlanResult) -> Ended:
    return Ended(
        outcome=result.outcome.value,
        reason=result.reason,
        tree=result.tree,
        cost_usd=result.spent.cost_usd,
        tokens=result.spent.tokens,
        api_calls=result.spent.api_calls if isinstance(result, PlanResult) else result.spent.calls,
    )


def _broken(error: ChildWorkflowError) -> Ended:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.details:
        if cause.type == "PlanFailed":
            return _ended(PlanResult.model_validate(cause.details[0]))
        if cause.type == "EpisodeFailed":
            return _ended(EpisodeResult.model_validate(cause.details[0]))
    reason = cause.message if isinstance(cause, ApplicationError) else str(cause or error)
    outcome = PlanOutcome.FAILED if error.workflow_type == PLAN_WORKFLOW_TYPE else EpisodeOutcome.FAILED
    return Ended(outcome=outcome.value, reason=reason)


def _took_too_long(error: ActivityError) -> bool:
    cause = error.cause
    return isinstance(cause, TemporalTimeoutError) and cause.type is TimeoutType.START_TO_CLOSE
