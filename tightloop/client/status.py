"""Looking up, reading and following a workflow's status."""

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import temporalio.api.common.v1 as common
import temporalio.api.workflowservice.v1 as service
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowContinuedAsNewError, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.service import RPCError

from tightloop.client.calls import Calls
from tightloop.client.connection import CALL_TIMEOUT
from tightloop.client.execution import CLOSED_STATUSES, CONTINUED, OPEN_STATUSES, Execution, Kind, Summary, memo_of
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError, ServiceUnavailableError, TightloopError
from tightloop.run.core import RunResult, RunStatus
from tightloop.run.question import Question, QuestionKind
from tightloop.safety.seal import CHOSEN_CHARACTERS, is_id

if TYPE_CHECKING:
    from tightloop.episode.control import EpisodeInput
    from tightloop.episode.model import EpisodeRequest
    from tightloop.loop.model import LoopInput, LoopRequest, LoopState
    from tightloop.plan.progress import PlanInput
    from tightloop.plan.request import PlanRequest


POLL_INTERVAL = timedelta(milliseconds=500)
"""Minimum interval between two reads of a busy workflow, and between two attempts that get no response."""
PARKED = timedelta(seconds=70)
"""Timeout of a long poll. Temporal itself returns after 20 s even without events."""
# A closed run changes only if a person restores or restarts it.
_CLOSED_WAIT = timedelta(seconds=5)
# Followers must not wait forever for a poll that was interrupted without an error.
_LOOK_ANYWAY = PARKED + timedelta(seconds=10)
# Query results only change with a workflow task; the other event types start or end a run.
_MOVES = frozenset(
    number
    for name, number in EventType.items()
    if name.startswith("EVENT_TYPE_WORKFLOW_EXECUTION_") or name == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"
)

T = TypeVar("T")


class Feed:
    """Long poll for the events of one workflow. All followers share the poll and a read cache."""

    def __init__(self, calls: Calls, workflow_id: str) -> None:
        self._calls, self._id = calls, workflow_id
        self._reads: dict[Hashable, asyncio.Future[Any]] = {}
        self._moved = asyncio.Event()
        self.moves = 0
        self.followers = 0
        self.interval = POLL_INTERVAL
        self.polling: asyncio.Task[None] | None = None

    async def read(self, name: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`. All followers share it until the next change.

        Errors are not cached.
        """
        if name not in self._reads:
            self._reads[name] = asyncio.ensure_future(ask())
            # Retrieve the exception, which asyncio would log if all followers have left.
            self._reads[name].add_done_callback(lambda done: done.cancelled() or done.exception())
        future: asyncio.Future[T] = self._reads[name]
        try:
            # The first follower may be cancelled while others still wait.
            return await asyncio.shield(future)
        finally:
            # Only this future: after a change, the name may already belong to another one.
            if (
                future.done()
                and (future.cancelled() or future.exception() is not None)
                and self._reads.get(name) is future
            ):
                del self._reads[name]

    async def wait_for_change(self, since: int) -> None:
        """Wait until the workflow may have changed. `since` is an earlier value of `moves`."""
        # No `await` between comparison and wait, so that no change is lost.
        if self.moves == since:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_ANYWAY.total_seconds()):
                    await self._moved.wait()

    def move(self) -> None:
        """Invalidate the cache and wake all followers."""
        self.moves += 1
        self._reads.clear()
        self._moved.set()
        self._moved = asyncio.Event()

    async def poll(self) -> None:
        """Long-poll the newest run for events until cancelled."""
        while True:
            wait = self.interval
            # The reads of the followers report errors; here the poll is only repeated.
            with contextlib.suppress(TightloopError, RPCError):
                execution = await self._calls.describe(self._id)
                if execution.is_open:
                    await self._follow(execution.run_id)
                else:
                    wait = _CLOSED_WAIT
            # Also after an error or the end: the followers then read again and report it.
            self.move()
            await asyncio.sleep(wait.total_seconds())

    async def _follow(self, run_id: str) -> None:
        """Wake the followers at each relevant event until the run ends."""
        request = service.GetWorkflowExecutionHistoryRequest(
            namespace=self._calls.client.namespace,
            execution=common.WorkflowExecution(workflow_id=self._id, run_id=run_id),
            wait_new_event=True,
            skip_archival=True,
        )
        ask = self._calls.client.workflow_service.get_workflow_execution_history
        while True:
            answer = await ask(request, timeout=PARKED)
            request.next_page_token = answer.next_page_token
            if not answer.next_page_token:
                return
            events = answer.history.events
            if not events or any(event.event_type in _MOVES for event in events):
                self.move()
                await asyncio.sleep(self.interval.total_seconds())


class Feeds:
    """Feeds of one connection. A feed exists while its workflow is being followed."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._feeds: dict[str, Feed] = {}

    @asynccontextmanager
    async def following(self, workflow_id: str, interval: timedelta = POLL_INTERVAL) -> AsyncIterator[Feed]:
        """Share the feed of a workflow among its followers. Polling stops when the last follower leaves."""
        feed = self._feeds.setdefault(workflow_id, Feed(self._calls, workflow_id))
        feed.followers += 1
        feed.interval = min(feed.interval, interval)
        feed.polling = feed.polling or asyncio.create_task(feed.poll())
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                # Removed before the wait, so that a new follower in the meantime gets a feed of its own.
                del self._feeds[workflow_id]
                feed.polling.cancel()
                # Unlike `await`, this does not raise the cancellation of the poll.
                await asyncio.wait({feed.polling})


LAST = "last"
"""Reference to the newest run, which is accepted instead of an id."""
_RESOLVE_AMONG = 500


def choose_id(kind: Kind, new_id: str | None) -> str:
    """Return the id chosen by the caller, or generate a new id.

    Raises:
        InvalidRequestError: the id contains invalid characters, is too long, or is `last`.
    """
    if new_id is None and kind is Kind.LOOP:
        return f"plan_{uuid.uuid4()}"
    if new_id is None:
        return f"{kind}-{secrets.token_hex(4 if kind is Kind.EPISODE else 6)}"
    if new_id == LAST or not is_id(new_id, CHOSEN_CHARACTERS):
        raise InvalidRequestError(
            f"{new_id!r} is not a valid {kind} id. Use 1 to 100 characters from a-z, A-Z, 0-9, '-', '_' and '.' "
            f"(not consecutive). Start with a letter or digit, and do not use {LAST!r}. For example: nightly-1"
        )
    return new_id


async def describe_run(calls: Calls, workflow_id: str, kind: Kind | None = None) -> Execution:
    """Return Temporal's description of the newest run.

    Runs that were rejected when they started are ignored.

    Raises:
        EpisodeNotFoundError: there is no episode or plan with this id.
        InvalidRequestError: the id belongs to another kind.
    """
    execution = await calls.listing.find_newest_accepted(await calls.describe(workflow_id))
    if kind not in (None, execution.kind):
        expected = kind.noun if kind is not None else ""
        raise InvalidRequestError(
            f"{execution.id} is {execution.kind.noun}, not {expected}. To see its status, run: tightloop status "
            f"{execution.id}"
        )
    return await _with_request(calls, execution)


async def _with_request(calls: Calls, execution: Execution) -> Execution:
    """Add missing data from the run's input to its description.

    A run that was started with `temporal workflow start` does not have tightloop's memo.
    """
    if execution.workspace:
        return execution
    try:
        memo = memo_of(await calls.history.first_input(execution, input_type(execution.kind)))
    # Sealed with a missing key, or of unknown format; keep the rest.
    except (TightloopError, ValueError, IndexError):
        return execution
    return execution.evolve(goal=execution.goal or memo["goal"], workspace=memo["workspace"], executor=memo["executor"])


async def newest(calls: Calls, status: str | None, limit: int, kind: Kind | None) -> tuple[Summary, ...]:
    """Return episodes and plans, newest run first; see `TightloopClient.list`."""
    if status is not None and status not in (statuses := OPEN_STATUSES + CLOSED_STATUSES):
        raise InvalidRequestError(f"{status!r} is not a valid status. Known statuses: {', '.join(statuses)}")
    return tuple([row.summary for row in await _newest(calls, status, limit, kind)])


async def _newest(calls: Calls, status: str | None, limit: int, kind: Kind | None) -> list[Execution]:
    rows: list[Execution] = []
    async with contextlib.aclosing(
        calls.listing.executions(kind=kind, only_open=status in OPEN_STATUSES)
    ) as executions:
        async for execution in executions:
            if len(rows) >= limit:
                break
            if status is None or execution.status == status:
                rows.append(execution)
    rows.sort(key=lambda row: row.started.timestamp() if row.started else 0.0, reverse=True)
    return [await _with_request(calls, row) for row in rows]


async def resolve(calls: Calls, reference: str, kind: Kind | None) -> str:
    """Resolve a reference to an id; see `TightloopClient.resolve`."""
    if reference != LAST:
        with contextlib.suppress(EpisodeNotFoundError):
            return (await describe_run(calls, reference, kind)).id
    rows = await _newest(calls, None, _RESOLVE_AMONG, kind)
    if reference == LAST:
        fitting = [row.id for row in sorted(rows, key=lambda row: row.refused) if not row.parent][:1]
    elif any(row.id == reference for row in rows):
        # Temporal deletes runs one at a time, so an earlier run of the id may remain.
        fitting = [reference]
    else:
        fitting = [row.id for row in rows if row.id.startswith((reference, f"{row.kind}-{reference}"))]
        # Steps of a plan are named after it; a prefix of the plan's id must not match them too.
        fitting = [
            candidate for candidate in fitting if not any(candidate.startswith(f"{other}.") for other in fitting)
        ]
    if len(fitting) > 1:
        raise InvalidRequestError(f"{reference!r} matches {len(fitting)} ids: {', '.join(fitting[:5])}")
    if not fitting:
        raise await calls.listing.not_found(reference, kind)
    return fitting[0]


PATIENCE = timedelta(minutes=10)
"""Maximum time that followers wait for a response, for example while the server or a worker restarts."""

OnSilence = Callable[[ServiceUnavailableError], None]


class Models(NamedTuple):
    """The status and result models for one kind of run."""

    request: "type[EpisodeRequest | PlanRequest | LoopRequest]"
    status: type[RunStatus]
    result: type[RunResult]


@cache
def models_of(kind: Kind) -> Models:
    """Return the models for a kind of run. Models are imported on first use."""
    match kind:
        case Kind.EPISODE:
            from tightloop.episode.model import EpisodeRequest, EpisodeResult, EpisodeStatus

            return Models(EpisodeRequest, EpisodeStatus, EpisodeResult)
        case Kind.PLAN:
            from tightloop.plan.request import PlanRequest, PlanResult, PlanStatus

            return Models(PlanRequest, PlanStatus, PlanResult)
        case Kind.LOOP:
            from tightloop.loop.model import LoopRequest, LoopResult, LoopStatus

            return Models(LoopRequest, LoopStatus, LoopResult)


def input_type(kind: Kind) -> "type[EpisodeInput | PlanInput | LoopInput]":
    """Return the input model for a kind of run.

    Importing the model for plans imports everything needed to run a plan.
    """
    match kind:
        case Kind.EPISODE:
            from tightloop.episode.control import EpisodeInput

            return EpisodeInput
        case Kind.PLAN:
            from tightloop.plan.progress import PlanInput

            return PlanInput
        case Kind.LOOP:
            from tightloop.loop.model import LoopInput

            return LoopInput


def _loop_state(status: str) -> "LoopState":
    from tightloop.loop.model import LoopState

    try:
        return LoopState(status.upper())
    except ValueError:
        return {"paused": LoopState.RUNNING, "timed_out": LoopState.FAILED}.get(status, LoopState.CANCELLED)


async def status_of(calls: Calls, workflow_id: str) -> RunStatus:
    """Return a snapshot of the status. A closed workflow does not need a worker."""
    execution = await describe_run(calls, workflow_id)
    if execution.frozen:
        return _outline(execution)
    if execution.is_open:
        reported: RunStatus = await calls.query(workflow_id, "status", models_of(execution.kind).status)
        status = await _with_coder(calls, _with_work(reported, execution), execution)
        # The workflow knows the start of the wait, Temporal knows whether the step still waits.
        return status.evolve(waits_for=execution.waits_for and (status.waits_for or execution.waits_for))
    result = await result_of(calls, execution)
    try:
        # Exactly this run, because a newer one may have started since.
        answered = await calls.query(workflow_id, "status", models_of(execution.kind).status, run_id=execution.run_id)
    except ServiceUnavailableError:
        answered = _outline(execution)
    # Temporal itself ended these runs; its status is more precise than our result.
    by_temporal = execution.status in ("terminated", "timed_out") or (
        execution.kind is Kind.EPISODE and execution.status == "cancelled"
    )
    return answered.with_outcome(result, execution.status if by_temporal else result.outcome.lower())


async def stored_status(calls: Calls, workflow_id: str) -> RunStatus:
    """Return the status that Temporal stores for a workflow. No worker is queried."""
    execution = await describe_run(calls, workflow_id)
    return _outline(execution).evolve(as_of=await calls.history.last_event(workflow_id, execution.run_id))


def _with_work(answered: RunStatus, execution: Execution) -> RunStatus:
    """Replace the reported work with the latest heartbeat of the running activity, if there is one."""
    from tightloop.episode.model import EpisodeStatus

    if not isinstance(answered, EpisodeStatus) or answered.work is None or execution.work is None:
        return answered
    work, reported_work = execution.work, answered.work
    if not work.what:
        work = work.evolve(
            what=reported_work.what,
            since=reported_work.since,
            limit_s=reported_work.limit_s,
            ends_early=reported_work.ends_early,
        )
    return answered.evolve(work=work)


async def _with_coder(calls: Calls, answered: RunStatus, execution: Execution) -> RunStatus:
    """Add the status of the episode's coder to the reported work."""
    from tightloop.coder.model import CoderStatus
    from tightloop.episode.model import EpisodeStatus

    if not isinstance(answered, EpisodeStatus) or answered.work is None or not execution.coder:
        return answered
    try:
        coder = await calls.query(execution.coder, "status", CoderStatus)
    except (ServiceUnavailableError, EpisodeNotFoundError):
        return answered  # the coder or its worker has just ended
    return answered.evolve(work=answered.work.evolve(what=f"{answered.work.what}: {coder.line}"))


async def result_of(calls: Calls, execution: Execution) -> RunResult:
    """Return the result of a closed run, even if it failed or was cancelled."""
    kind: type[Any] = models_of(execution.kind).result
    handle = calls.client.get_workflow_handle(execution.id, run_id=execution.run_id, result_type=kind)
    try:
        async with calls.bound_call(execution.id, CALL_TIMEOUT):
            result: RunResult = await handle.result(follow_runs=False, rpc_timeout=CALL_TIMEOUT)
    except WorkflowFailureError as error:
        return _failed_result(error.cause, execution)
    return result


async def earlier_result(calls: Calls, workflow_id: str, run_id: str) -> RunResult:
    """Return the result of a closed run; see `TightloopClient.earlier_result`."""
    ended = {
        # A continued run has no result: the next run took over its work.
        run.run_id: run
        for run in await calls.listing.runs(workflow_id)
        if not run.is_open and run.status != CONTINUED
    }
    if run_id not in ended:
        ids = ", ".join(ended) or "none"
        raise InvalidRequestError(f"{workflow_id} has no run {run_id!r} with a result. Runs with a result: {ids}")
    return await result_of(calls, ended[run_id])


async def changes(
    calls: Calls, feed: Feed, workflow_id: str, *, patience: timedelta, on_silence: OnSilence | None
) -> AsyncGenerator[RunStatus]:
    """Yield the current status, then the status after every change; see `TightloopClient.watch`."""
    previous: dict[str, Any] | None = None

    def look() -> Awaitable[RunStatus]:
        return feed.read("status", lambda: status_of(calls, workflow_id))

    while True:
        # Taken before the read, so that a change during it is not missed.
        moves = feed.moves
        status = await patiently(look, patience, feed.interval, on_silence)
        if status.list_status in CLOSED_STATUSES:
            # A status read just before the end lacks the reason.
            await end(calls, workflow_id, patience=patience)
            status = await patiently(lambda: status_of(calls, workflow_id), patience, feed.interval, on_silence)
        # Ignore the working time, which changes with every read.
        current = status.model_dump(exclude={"spent": {"wall_time"}, "updated_at": True})
        if current != previous:
            previous = current
            yield status
        if status.list_status in CLOSED_STATUSES:
            return
        await feed.wait_for_change(moves)


async def end(calls: Calls, workflow_id: str, *, patience: timedelta) -> RunResult:
    """Wait until the workflow ends and return its result; see `TightloopClient.result`."""
    while True:
        execution = await patiently(lambda: describe_run(calls, workflow_id), patience, POLL_INTERVAL, None)
        if not execution.is_open:
            return await result_of(calls, execution)
        # Another run may follow: after a restore, a reset, or much work.
        handle = calls.client.get_workflow_handle(execution.id, run_id=execution.run_id)
        with contextlib.suppress(WorkflowFailureError, WorkflowContinuedAsNewError, RPCError):
            await handle.result(follow_runs=False)


async def patiently(
    read: Callable[[], Awaitable[T]], patience: timedelta, pause: timedelta, on_silence: OnSilence | None
) -> T:
    """Call `read` until a service responds, and return its result.

    Raises:
        ServiceUnavailableError: no service responded for longer than `patience`.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + patience.total_seconds()
    while True:
        try:
            return await read()
        except ServiceUnavailableError as error:
            if clock() >= until:
                raise
            if on_silence is not None:
                on_silence(error)
            await asyncio.sleep(pause.total_seconds())


def _outline(execution: Execution) -> RunStatus:
    """Return a status that contains only the data stored by Temporal."""
    # There are no options: only Temporal itself can end its own pause.
    evidence, kind = (execution.unfreeze,), QuestionKind.OPERATOR
    pause = Question(id="", kind=kind, title=execution.frozen, evidence=evidence, options=(), by="temporal")
    questions = (pause,) if execution.frozen else ()
    if execution.kind is Kind.LOOP:
        from tightloop.loop.model import LoopStatus

        return LoopStatus(
            plan_id=execution.id,
            workspace=execution.workspace,
            goal=execution.goal,
            status=_loop_state(execution.status),
            questions=questions,
            created_at=execution.started,
        )
    model = models_of(execution.kind).status
    if execution.kind is Kind.PLAN:
        return model.of(execution, plan_id=execution.id, title=execution.goal, questions=questions)
    return model.of(execution, episode_id=execution.id, branch=0, questions=questions)


def _failed_result(cause: BaseException, execution: Execution) -> RunResult:
    """Return the result of a workflow that failed, was cancelled or was terminated."""
    # Our workflows fail on purpose, with the result as detail, so that Temporal shows them as failed.
    if (
        isinstance(cause, ApplicationError)
        and cause.type in ("PlanFailed", "EpisodeFailed", "LoopFailed")
        and cause.details
    ):
        return models_of(execution.kind).result.model_validate(cause.details[0])
    # Cancelling and terminating are done by people. All outcome enums have these two values.
    outcome = "CANCELLED" if isinstance(cause, CancelledError | TerminatedError) else "FAILED"
    if isinstance(cause, CancelledError):
        reason = "cancelled in Temporal"
    elif isinstance(cause, TerminatedError):
        reason = f"terminated in Temporal: {cause.message}"
    elif isinstance(cause, TemporalTimeoutError):
        reason = "it exceeded a time limit set in Temporal"
    else:
        reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
    fields = {"outcome": outcome, "reason": reason, "iterations": execution.iteration}
    return models_of(execution.kind).result.model_validate(fields)
