"""Attempts at plan steps. Each is either an activity, chosen by capability, or a set of child workflows."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow

from activities.plan.activity import STEP_ACTIVITIES, PlanActivities
from activities.plan.requests import SettleRequest, StepRun
from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeResult
from tightloop.plan.child import REASON_CHARACTERS, StepFailure, StepResult, StepStatus, child_id
from tightloop.plan.failing import FailureClass
from tightloop.plan.guard import least
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanResult
from tightloop.plan.step import CHILDREN, Capability
from tightloop.value import abridge
from workflows.children import run_child
from workflows.plan.context import Attempt, PlanContext
from workflows.run.activities import GRACE, ActivityFailedError, ActivityRunner

PREPARE_TIMEOUT = timedelta(minutes=15)
SETTLE_TIMEOUT = timedelta(hours=2)
"""Timeout for settling the alternatives of a branch. It is long because judging them runs their checks."""
INSTANT = timedelta(seconds=10)
"""Timeout of an activity that only reads the plan. It is too short to need heartbeats."""


class MergeQueue:
    """Runs merges into the plan's tree one at a time. No other step uses the tree during a merge."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._waiting: dict[str, int] = {}
        self._is_merging = False

    @asynccontextmanager
    async def hold_tree(self, attempt: Attempt) -> AsyncIterator[None]:
        """Reserve the tree for one merge. Merges run in plan order, and no step starts during a merge."""
        context = self._context
        number = context.schedule.find(attempt.name)
        # A step that a revision removed is merged last.
        self._waiting[attempt.name] = len(context.schedule) if number is None else number
        try:
            await workflow.wait_condition(lambda: self._is_next(attempt.name))
        finally:
            del self._waiting[attempt.name]
        self._is_merging = True
        context.hold()
        # Other merges may have changed the tree while this one waited for its turn.
        attempt.request = attempt.request.evolve(expected_tree=context.progress.tree)
        try:
            yield
        finally:
            self._is_merging = False
            context.release()

    def take_over(self, result: StepResult) -> None:
        """Record the tree that a merge produced."""
        self._context.set_tree(result.tree)

    def _is_next(self, name: str) -> bool:
        if self._is_merging or self._context.is_adopting:
            return False
        # A step that works in the tree itself goes first, or its half-done files would become part of the merge.
        if any(attempt.touches_tree and not attempt.merges for attempt in self._context.running.values()):
            return False
        return self._waiting[name] == min(self._waiting.values())


async def run_attempt(attempt: Attempt, activities: ActivityRunner, merging: MergeQueue) -> StepResult:
    """Run one attempt of a step to completion.

    Raises:
        ActivityFailedError: the attempt could not run. This does not count as a failure of the step.
        asyncio.CancelledError: the attempt was cancelled.
    """
    try:
        if attempt.capability in CHILDREN:
            seconds = None if attempt.timeout is None else attempt.timeout.total_seconds()
            # `wait_for` returns only after the cancelled children have closed, so none of them uses the tree later.
            return await asyncio.wait_for(_with_children(attempt, activities, merging), seconds)
        limit = INSTANT if attempt.instant else (attempt.timeout or timedelta()) + GRACE
        call = attempt.options(attempt.summary, limit)
        if attempt.capability is Capability.NONE:
            return await activities.run(PlanActivities.pass_milestone, attempt.request, call)
        return await activities.run(STEP_ACTIVITIES[attempt.capability], attempt.request, call)
    except TimeoutError:
        return timeout_result(attempt.timeout)
    except ActivityFailedError as failure:
        if failure.timed_out:
            # Without a result it is unknown what the activity has written.
            attempt.is_lost = True
            return timeout_result(attempt.timeout)
        raise


def timeout_result(limit: timedelta | None) -> StepResult:
    """Return a transient failure for an attempt that exceeded its time limit."""
    limit_text = "" if limit is None else f" of {limit.total_seconds():g} s"
    return failed_result(FailureClass.TRANSIENT, f"the attempt exceeded its time limit{limit_text}")


def failed_result(failure_class: FailureClass, reason: str) -> StepResult:
    """Return the result of an attempt that failed."""
    failure = StepFailure(failure_class=failure_class, reason=abridge(reason, REASON_CHARACTERS))
    return StepResult(status=StepStatus.FAILED, failure=failure)


# -- children ---------------------------------------------------------------------------------------


async def _with_children(attempt: Attempt, activities: ActivityRunner, merging: MergeQueue) -> StepResult:
    prepare = attempt.options(f"{attempt.summary}: prepare", PREPARE_TIMEOUT)
    run = await activities.run(PlanActivities.prepare_children, attempt.request, prepare)
    if run.result is not None:
        return run.result
    starts = list(_children(attempt, run))
    # Before they start, because the first note of a child must find the attempt that it belongs to.
    attempt.children.extend(identity for identity, _ in starts)
    # An activity that succeeds although its cancellation was requested swallows the cancellation.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    ended = await _all([run_child(identity, start, attempt.summary) for identity, start in starts])
    # Of several alternatives one is selected later, so none of their proofs covers the final tree for certain.
    attempt.proof = ended[0].proof if len(ended) == 1 else None
    attempt.approvals = tuple(approval for end in ended for approval in end.approvals)
    settle = attempt.options(f"{attempt.summary}: collect the results", SETTLE_TIMEOUT)
    base = attempt.request.expected_tree if attempt.merges else ""
    if attempt.merges:
        async with merging.hold_tree(attempt):
            # The turn has updated `expected_tree` to the present tree; the base is still the tree at the start.
            request = _settlement(attempt, ended).evolve(base_tree=base)
            result = await activities.run(PlanActivities.settle_children, request, settle)
            merging.take_over(result)
            return result
    return await activities.run(PlanActivities.settle_children, _settlement(attempt, ended), settle)


def _settlement(attempt: Attempt, ended: Sequence[EpisodeResult | PlanResult]) -> SettleRequest:
    # A child without a tree was stopped; only this plan can have left its files on disk.
    is_stopped = len(ended) == 1 and not ended[0].tree and not attempt.merges
    run_request = attempt.request
    if is_stopped:
        run_request = run_request.evolve(scope=run_request.scope.evolve(put_back=True))
    return SettleRequest(
        run=run_request,
        children=tuple(attempt.children),
        outcomes=tuple(end.outcome.value for end in ended),
        reasons=tuple(abridge(end.reason, REASON_CHARACTERS) for end in ended),
        qualifiers=tuple(end.qualifier for end in ended),
        trees=tuple(end.tree for end in ended),
        cost_usd=sum(end.spent.cost_usd for end in ended),
        unpriced_calls=sum(end.spent.unpriced_calls for end in ended),
        tokens=sum(end.spent.tokens for end in ended),
        api_calls=sum(end.spent.api_calls if isinstance(end, PlanResult) else end.spent.calls for end in ended),
    )


def _children(attempt: Attempt, run: StepRun) -> Iterable[tuple[str, EpisodeInput | PlanInput]]:
    """Yield the ID and the input of each child workflow to start.

    Children inherit the task queues, the time limit for answers and the depth of the parent plan.
    """
    scope, parent = attempt.request.scope, attempt.plan
    if run.episode:
        inherited = {"queues": parent.queues, "pause_timeout": parent.pause_timeout, "allow": parent.allow}
        executor_choice = {} if run.names_executor or parent.executor is None else {"executor": parent.executor}
        episode = EpisodeInput.model_validate({**inherited, "within": scope.holder, **run.episode, **executor_choice})
        yield (
            child_id(scope.episode_id, attempt.name, attempt.number),
            episode.evolve(
                unattended=episode.unattended or parent.unattended,
                budget=episode.budget.evolve(until=least(episode.budget.until, parent.until)),
            ),
        )
    for index, plan in enumerate(run.plans):
        name = run.names[index] if index < len(run.names) else ""
        identity = child_id(scope.episode_id, attempt.name, attempt.number, name)
        # A plan with its own worktree claims that worktree itself.
        holder = plan.within or ("" if plan.worktree else scope.holder)
        # A branch alternative that waits for a person gives up no later than its plan.
        patience = min(plan.pause_timeout, parent.pause_timeout)
        child = PlanInput.of(
            plan,
            pause_timeout=patience,
            within=holder,
            queues=parent.queues,
            allow=parent.allow,
            depth=parent.depth + 1,
            executor=parent.executor,
            unattended=parent.unattended,
            until=parent.until,
        )
        yield identity, child


async def _all(runs: Sequence[Any]) -> list[EpisodeResult | PlanResult]:
    """Wait for all children.

    If a child fails or this task is cancelled, cancel the other children and wait until they end.
    """
    # Not `gather` alone: after a failure it would leave the other children running.
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        return [await task for task in tasks]
    except (asyncio.CancelledError, ActivityFailedError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
