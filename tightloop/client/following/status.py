"""The status of one workflow, its changes and its result, with and without workers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import WorkflowContinuedAsNewError, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.service import RPCError

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.execution import CLOSED_STATUSES, CONTINUED, Execution, Kind
from tightloop.client.following.feed import POLL_INTERVAL, Feed
from tightloop.client.following.finding import described
from tightloop.coder.model import CoderStatus
from tightloop.episode.model import EpisodeOutcome, EpisodePhase, EpisodeResult, EpisodeStatus
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ServiceUnavailableError
from tightloop.loop.model import LoopResult, LoopState, LoopStatus
from tightloop.loop.states import word_of
from tightloop.plan.request import PlanOutcome, PlanPhase, PlanResult, PlanStatus
from tightloop.question import Question, QuestionKind

PATIENCE = timedelta(minutes=10)
"""How long those who follow wait while nobody answers: a restart of the server, or of the worker."""

OnSilence = Callable[[ServiceUnavailableError], None]
T = TypeVar("T")

Status = EpisodeStatus | PlanStatus | LoopStatus
Result = EpisodeResult | PlanResult | LoopResult
STATUS_TYPES: dict[Kind, type[Status]] = {
    Kind.EPISODE: EpisodeStatus,
    Kind.PLAN: PlanStatus,
    Kind.LOOP: LoopStatus,
}
RESULT_TYPES: dict[Kind, type[Result]] = {
    Kind.EPISODE: EpisodeResult,
    Kind.PLAN: PlanResult,
    Kind.LOOP: LoopResult,
}


def word_of_status(status: Status) -> str:
    """Return a status as lists show it: one of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
    return word_of(status) if isinstance(status, LoopStatus) else status.status


def _loop_state(word: str) -> LoopState:
    try:
        return LoopState(word.upper())
    except ValueError:
        return {"paused": LoopState.RUNNING, "timed_out": LoopState.FAILED}.get(word, LoopState.CANCELLED)


async def status_of(calls: Calls, workflow_id: str) -> Status:
    """Return a snapshot; for a closed workflow also when no worker is there."""
    seen = await described(calls, workflow_id)
    if seen.frozen:
        return _outline(seen)
    if seen.is_open:
        asked: Status = await calls.query(workflow_id, "status", STATUS_TYPES[seen.kind])
        status = await _with_coder(calls, _with_work(asked, seen), seen)
        # The workflow knows since when, but not whether a worker has taken the step in this moment.
        return status.evolve(waits_for=seen.waits_for and (status.waits_for or seen.waits_for))
    result = await result_of(calls, seen)
    try:
        answered = await calls.query(workflow_id, "status", STATUS_TYPES[seen.kind], run_id=seen.run_id)
    except ServiceUnavailableError:
        answered = _outline(seen)
    return _closed_status(answered, seen, result)


async def stored_status(calls: Calls, workflow_id: str) -> Status:
    """Return what Temporal itself knows of a workflow, without asking a worker."""
    seen = await described(calls, workflow_id)
    return _outline(seen).evolve(as_of=await calls.history.last_event(workflow_id, seen.run_id))


def _with_work(answered: Status, seen: Execution) -> Status:
    """Return a status in which the running activity says itself what it does, as far as it does."""
    if not isinstance(answered, EpisodeStatus) or answered.work is None or seen.work is None:
        return answered
    told, known = seen.work, answered.work
    if not told.what:
        told = told.evolve(what=known.what, since=known.since, limit_s=known.limit_s, ends_early=known.ends_early)
    return answered.evolve(work=told)


async def _with_coder(calls: Calls, answered: Status, seen: Execution) -> Status:
    """Return a status that says what the coder does which works for the episode."""
    if not isinstance(answered, EpisodeStatus) or answered.work is None or not seen.coder:
        return answered
    try:
        coder = await calls.query(seen.coder, "status", CoderStatus)
    except (ServiceUnavailableError, EpisodeNotFoundError):
        return answered  # it has just ended, or its worker has
    return answered.evolve(work=answered.work.evolve(what=f"{answered.work.what}: {coder.line}"))


async def result_of(calls: Calls, seen: Execution) -> Result:
    """Return the result of a closed run, however it ended."""
    kind: type[Any] = RESULT_TYPES[seen.kind]
    handle = calls.client.get_workflow_handle(seen.id, run_id=seen.run_id, result_type=kind)
    try:
        async with calls.bounded(seen.id, CALL_TIMEOUT):
            result: Result = await handle.result(follow_runs=False, rpc_timeout=CALL_TIMEOUT)
    except WorkflowFailureError as error:
        return _failed_result(error.cause, seen)
    return result


async def earlier_result(calls: Calls, workflow_id: str, run_id: str) -> Result:
    """Return the result of a closed run; see `TightloopClient.earlier_result`."""
    ended = {
        run.run_id: run for run in await calls.listing.runs(workflow_id) if not run.is_open and run.status != CONTINUED
    }
    if run_id not in ended:
        known = ", ".join(ended) or "none"
        raise InvalidRequestError(f"{workflow_id} has no run {run_id!r} with a result. Runs with one: {known}")
    return await result_of(calls, ended[run_id])


async def changes(
    calls: Calls, feed: Feed, workflow_id: str, *, patience: timedelta, on_silence: OnSilence | None
) -> AsyncGenerator[Status]:
    """Yield the status now and after every change, until the workflow is closed; see `TightloopClient.watch`."""
    shown: dict[str, Any] | None = None

    def look() -> Awaitable[Status]:
        return feed.look("status", lambda: status_of(calls, workflow_id))

    while True:
        moves = feed.moves
        status = await patiently(look, patience, feed.interval, on_silence)
        if word_of_status(status) in CLOSED_STATUSES:
            # A workflow that was asked just before its end does not know its reason yet.
            await end(calls, workflow_id, patience=patience)
            status = await patiently(lambda: status_of(calls, workflow_id), patience, feed.interval, on_silence)
        # Working time is left out: it changes with every look.
        seen = status.model_dump(exclude={"spent": {"wall_time"}, "updated_at": True})
        if seen != shown:
            shown = seen
            yield status
        if word_of_status(status) in CLOSED_STATUSES:
            return
        await feed.moved(moves)


async def end(calls: Calls, workflow_id: str, *, patience: timedelta) -> Result:
    """Wait for the end and return the result, however the workflow ended; see `TightloopClient.result`."""
    while True:
        seen = await patiently(lambda: described(calls, workflow_id), patience, POLL_INTERVAL, None)
        if not seen.is_open:
            return await result_of(calls, seen)
        # Another run may follow this one: after a restore, a reset, or much work.
        handle = calls.client.get_workflow_handle(seen.id, run_id=seen.run_id)
        with contextlib.suppress(WorkflowFailureError, WorkflowContinuedAsNewError, RPCError):
            await handle.result(follow_runs=False)


async def patiently(
    look: Callable[[], Awaitable[T]], patience: timedelta, pause: timedelta, on_silence: OnSilence | None
) -> T:
    """Return what a look sees; it is tried again while nobody answers.

    Raises:
        ServiceUnavailableError: nobody answered for longer than `patience`.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + patience.total_seconds()
    while True:
        try:
            return await look()
        except ServiceUnavailableError as error:
            if clock() >= until:
                raise
            if on_silence is not None:
                on_silence(error)
            await asyncio.sleep(pause.total_seconds())


def _outline(seen: Execution) -> Status:
    """Return the status as far as Temporal itself knows it."""
    # Only Temporal itself can end its own pause: a person cannot choose here.
    evidence, kind = (seen.unfreeze,), QuestionKind.OPERATOR
    pause = Question(id="", kind=kind, title=seen.frozen, evidence=evidence, options=(), by="temporal")
    questions = (pause,) if seen.frozen else ()
    if seen.kind is Kind.PLAN:
        return PlanStatus.of(seen, plan_id=seen.id, title=seen.goal, questions=questions)
    if seen.kind is Kind.LOOP:
        return LoopStatus(
            plan_id=seen.id,
            workspace=seen.workspace,
            goal=seen.goal,
            status=_loop_state(seen.status),
            questions=questions,
            created_at=seen.started,
        )
    return EpisodeStatus.of(seen, episode_id=seen.id, branch=0, questions=questions)


def _closed_status(answered: Status, seen: Execution, result: Result) -> Status:
    """Return the workflow's last status with what Temporal recorded of its end."""
    if isinstance(answered, LoopStatus) and isinstance(result, LoopResult):
        return answered.evolve(
            status=result.outcome,
            reason=result.reason,
            questions=(),
            children=(),
            tasks=result.tasks or answered.tasks,
            gate_result=result.gate_result or answered.gate_result,
            tree=result.tree or answered.tree,
        )
    assert not isinstance(result, LoopResult)
    # Temporal ended these by itself: its word is more precise than the result that we make of it.
    by_temporal = seen.status in ("terminated", "timed_out") or (
        seen.kind is Kind.EPISODE and seen.status == "cancelled"
    )
    status = seen.status if by_temporal else result.outcome.value.lower()
    if isinstance(answered, PlanStatus) and isinstance(result, PlanResult):
        return answered.evolve(
            status=status,
            phase=PlanPhase.CLOSED,
            outcome=result.outcome,
            reason=result.reason,
            running=(),
            questions=(),
            children=(),
            counts=result.counts or answered.counts,
            tree=result.tree or answered.tree,
            proof=result.proof or answered.proof,
            spent=result.spent if result.counts else answered.spent,
            revision=result.revision if result.counts else answered.revision,
        )
    assert isinstance(answered, EpisodeStatus)
    assert isinstance(result, EpisodeResult)
    return answered.evolve(
        status=status,
        phase=EpisodePhase.CLOSED,
        outcome=result.outcome,
        reason=result.reason,
        questions=(),
        iteration=max(answered.iteration, result.iterations),
        checkpoint_id=result.checkpoint_id or answered.checkpoint_id,
        tree=result.tree or answered.tree,
        checks=result.checks or answered.checks,
        spent=result.spent if result.spent.iterations else answered.spent,
    )


def _failed_result(cause: BaseException, seen: Execution) -> Result:
    """Return the result of a workflow that did not complete."""
    if (
        isinstance(cause, ApplicationError)
        and cause.type in ("PlanFailed", "EpisodeFailed", "LoopFailed")
        and cause.details
    ):
        return RESULT_TYPES[seen.kind].model_validate(cause.details[0])
    # Cancelling and terminating are done by hand. All enums have these two values.
    outcome = "CANCELLED" if isinstance(cause, CancelledError | TerminatedError) else "FAILED"
    if isinstance(cause, CancelledError):
        reason = "cancelled in Temporal"
    elif isinstance(cause, TerminatedError):
        reason = f"terminated in Temporal: {cause.message}"
    elif isinstance(cause, TemporalTimeoutError):
        reason = "it ran into a time limit that was set in Temporal"
    else:
        reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
    if seen.kind is Kind.LOOP:
        return LoopResult(outcome=LoopState(outcome), reason=reason)
    if seen.kind is Kind.PLAN:
        return PlanResult(outcome=PlanOutcome(outcome), reason=reason)
    return EpisodeResult(outcome=EpisodeOutcome(outcome), reason=reason, iterations=seen.iteration)
