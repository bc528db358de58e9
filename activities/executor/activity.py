"""Hand-off and execution activities. Each delivery is claimed before it acts, and acts only once."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from pydantic import ValidationError
from temporalio import activity
from temporalio.exceptions import CancelledError

from activities.artifacts.port import FULL, ArtifactStores, get_model, put_model
from activities.attempt import should_stop
from activities.executor.port import (
    Control,
    DelegatingExecutor,
    DeliveryState,
    Executors,
    ExecutorSelection,
    OutboxEntry,
    Outboxes,
    choose,
)
from activities.model.observed import ModelAnswer, operation
from activities.workspace.folders import root_of, state_folder_of
from activities.workspace.scope import EpisodeScope
from tightloop import telemetry
from tightloop.coder.model import CODER, CoderResult
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.planning import PlanRecord
from tightloop.errors import ArtifactMissingError, ExecutorError, StorageFullError, TightloopError
from tightloop.executor.asking import (
    ENDING_FILE,
    ENDING_HINT,
    WORKER_DIED,
    Crash,
    after_crash,
    crash_question,
    explain_crash,
    folder_hint,
    impossible_question,
    read_ending,
)
from tightloop.executor.limit import failed_at_once, refine_failure
from tightloop.executor.message import render_plan
from tightloop.executor.model import (
    DENIED_CHARACTERS,
    DENIED_LINES,
    SUMMARY_CHARACTERS,
    ErrorKind,
    ExecutorOutcome,
    ExecutorReport,
    ExecutorStatus,
    Grant,
    OnCrash,
    Progress,
    ResumeToken,
    Usage,
    WorkOrder,
)
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, Value, clip, last_lines
from tightloop.value.scrub import scrub

if TYPE_CHECKING:
    from activities.executor.outbox import Outbox
    from activities.workspace.working_tree import WorkingTree, Workspaces

# A full disk can be fixed without a restart, so `FULL` is retried; a missing permission needs a new setup.
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class HandOffRequest(Value):
    """A request to queue a plan for the executor."""

    scope: EpisodeScope
    iteration: int
    plan: ArtifactRef
    delivery: int = 1
    """Number of the delivery within its iteration, which is above 1 if an earlier one was stopped by a limit."""
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """Permissions that a person has granted or denied in this iteration."""


class Delivery(Value):
    """A queued delivery."""

    key: str
    attempt: int = 1


class ExecuteRequest(Value):
    """A request to run a delivery. The files on disk must match the given tree."""

    scope: EpisodeScope
    key: str
    expected_tree: str


class ConcludeRequest(Value):
    """A request to report a delivery that a workflow carried out."""

    scope: EpisodeScope
    begun: ExecutorReport
    """The report from `execute`."""
    result: CoderResult


def last_resume_token() -> ResumeToken | None:
    """Return the resume token that the previous attempt sent in its last heartbeat."""
    for detail in activity.info().heartbeat_details:
        try:
            return Progress.model_validate(detail).resume
        except ValidationError:
            continue
    return None


ENDING_BYTES = 4_096


def take_ending(tree: "WorkingTree", before: str) -> str:
    """Delete the ending file from a working tree and return the reason in it.

    The executor uses this file to state that the work cannot be done. The text of a report is not searched
    for such statements, because it often contains "cannot" or "impossible" in passing.

    Returns "" if there is no such file. A file that was already in the tree `before` the delivery was not
    written by the executor. It is kept.
    """
    path, text = tree.root / ENDING_FILE, b""
    if not os.path.lexists(path) or ENDING_FILE.encode() in tree.entries(before):
        return ""
    # Without following a link, because the file comes from the agent.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            text = stream.read(ENDING_BYTES)
    with contextlib.suppress(OSError):
        path.unlink()
    return read_ending(text.decode("utf-8", "replace"))


_MAY_END = frozenset(
    {ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE, ExecutorStatus.FAILED, ExecutorStatus.REFUSED}
)
"""Statuses that a file stating that the work cannot be done overrides. Limits, questions and setup errors take
precedence over the file."""


class ExecutionActivities:
    """Activities that deliver plans to executors and report the results."""

    def __init__(
        self, workspaces: "Workspaces", stores: ArtifactStores, outboxes: Outboxes, executors: Executors
    ) -> None:
        self._workspaces = workspaces
        self._stores = stores
        self._outboxes = outboxes
        self._executors = executors
        self._claimed = set[str]()
        """Deliveries that this process has claimed but not yet reported."""

    @activity.defn(no_thread_cancel_exception=True)
    def hand_off(self, request: HandOffRequest) -> Delivery:
        """Queue a plan in the outbox. Idempotent for the same run, iteration and delivery."""
        workspace = Path(request.scope.workspace)
        store = self._stores(workspace)
        episode = get_model(store, request.scope.stored_request, EpisodeRequest)
        message = get_model(store, request.plan, PlanRecord).message
        if message is None:
            raise ArtifactMissingError(f"the plan for iteration {request.iteration} contains no message to hand off")
        info = activity.info()
        # Keyed by run rather than workflow, so that a rerun after a reset is delivered again.
        key = f"{info.workflow_run_id}/{request.iteration}/{request.delivery}"
        order = WorkOrder(
            key=key,
            episode_id=request.scope.episode_id,
            iteration=request.iteration,
            root=str(root_of(request.scope)),
            folder=episode.folder,
            plan=message,
            prompt=render_plan(message) + folder_hint(episode.folder) + ENDING_HINT,
            executor=episode.executor,
            resume=request.resume,
            grants=request.grants,
        )
        reference = put_model(store, order, name="work order")
        self._outboxes(workspace).add(key, request.scope.episode_id, request.iteration, reference)
        return Delivery(key=key, attempt=info.attempt)

    # Otherwise the SDK raises a cancellation anywhere in the thread, such as between two writes that belong together.
    # The executors poll for it instead, and kill their processes first.
    @activity.defn(no_thread_cancel_exception=True)
    def execute(self, request: ExecuteRequest) -> ExecutorReport:
        """Run a delivery and wait until it has finished.

        Idempotent: if the delivery has already been reported, its report is returned. If an earlier attempt
        crashed, the outcome is read from the files that it left behind. If they do not show the outcome, the
        order's `on_crash` decides: repeat the delivery, ask a person, or report the outcome as unknown.
        """
        workspace = Path(request.scope.workspace)
        outbox = self._outboxes(workspace)
        # Taking the lock kills the processes of a dead attempt.
        with self._workspaces.hold(request.scope) as tree:
            delivery = self._find_delivery(outbox, request)
            if delivery is None:
                raise ExecutorError(
                    f"delivery {request.key} not found in the outbox of {workspace}. Check whether the state "
                    "folder was removed"
                )
            if delivery.report is not None:
                return delivery.report
            # After a reset the delivery has this run's key; claim and report must use it too.
            request = request.evolve(key=delivery.key)
            order = get_model(self._stores(workspace), delivery.order, WorkOrder).evolve(key=delivery.key)
            selection = choose(self._executors, order.executor)
            order = selection.adapt_order(order)
            drift: Drift | None = None
            if delivery.state is DeliveryState.CLAIMED:
                ending, new_tree = take_ending(tree, request.expected_tree), tree.snapshot()
                # A claim in the memory of this process shows that the worker survived and only the attempt failed.
                cause = "the delivery was interrupted" if delivery.key in self._claimed else WORKER_DIED
                if delivery.broke_off:
                    cause = f"the delivery was interrupted ({delivery.broke_off.removesuffix('.')})"
                crash = Crash(
                    cause=cause,
                    moved=new_tree != delivery.base_tree,
                    processes_ended=tree.processes_ended,
                    claims=delivery.claims,
                )
                settled = self._settle(request.scope, selection, order, crash)
                if isinstance(settled, ExecutorOutcome):
                    return self._report(request, tree, settled, selection, new_tree=new_tree, ending=ending)
                order = settled
            else:
                # Only here: after a crash the tree may differ because of the delivery itself.
                drift = tree.expect(request.expected_tree)
            # Before it acts: an attempt after a crash must see that the work may already be done.
            outbox.claim(request.key, request.expected_tree)
            with self._record_break_off(outbox, request.key):
                begun = time.monotonic()
                outcome = self._run(request.scope, selection, order, tree)
                took_s = time.monotonic() - begun
                # Temporal counts an activity as cancelled only if it ends with this error, not with a result.
                if outcome.status is ExecutorStatus.CANCELLED and should_stop():
                    raise CancelledError("the executor was stopped and its processes have ended")
                ending = take_ending(tree, request.expected_tree)
                # The workflow that does the work has not started yet, so a snapshot would cost time and show nothing.
                new_tree = request.expected_tree if outcome.status is ExecutorStatus.DELEGATED else tree.snapshot()
                at_once = failed_at_once(outcome, took_s, moved=new_tree != request.expected_tree)
                if at_once:
                    # Times of day in an agent's words are in the host's zone.
                    outcome = refine_failure(outcome, datetime.now(UTC).astimezone())
                return self._report(
                    request, tree, outcome, selection, new_tree=new_tree, drift=drift, ending=ending, at_once=at_once
                )

    @activity.defn(no_thread_cancel_exception=True)
    def conclude(self, request: ConcludeRequest) -> ExecutorReport:
        """Report a delivery that a workflow carried out. Idempotent: the first report is kept."""
        workspace, report = Path(request.scope.workspace), request.begun
        with self._workspaces.hold(request.scope) as tree:
            delivery = self._outboxes(workspace).get(report.key)
            if delivery is not None and delivery.report is not None:
                return delivery.report
            name = report.executor or CODER
            executor = self._executors(name)
            if not isinstance(executor, DelegatingExecutor):
                raise ExecutorError(
                    f"executor {name!r} on this worker does not support delegating work to a workflow. Restart the "
                    "worker"
                )
            outcome = executor.conclude(request.result, self._stores(workspace), state_folder_of(request.scope))
            ending = take_ending(tree, report.new_tree)
            execution = ExecuteRequest(scope=request.scope, key=report.key, expected_tree=report.new_tree)
            selection = ExecutorSelection(name, executor, report.passed_over)
            return self._report(
                execution, tree, outcome, selection, new_tree=tree.snapshot(), drift=report.drift, ending=ending
            )

    @contextlib.contextmanager
    def _record_break_off(self, outbox: "Outbox", key: str) -> Iterator[None]:
        """Mark a delivery as claimed. If the block raises an error, record the reason in the outbox.

        If a claimed delivery has neither a report nor a reason, its worker was killed.
        """
        self._claimed.add(key)
        try:
            yield
        except BaseException as error:
            reason = error.message if isinstance(error, TightloopError) else f"{type(error).__name__}: {error}"
            stopped = (
                "stopped on request" if isinstance(error, CancelledError) else clip(scrub(reason), SUMMARY_CHARACTERS)
            )
            # The original error is more important; a full disk, for example, also prevents the record.
            with contextlib.suppress(Exception):
                outbox.break_off(key, stopped)
            raise
        # Not in `finally`: after an error the next attempt must know that this process was not killed.
        self._claimed.discard(key)

    @staticmethod
    def _find_delivery(outbox: "Outbox", request: ExecuteRequest) -> OutboxEntry | None:
        """Find a queued delivery.

        A delivery that was queued before a workflow reset is queued again under the key of this run.
        """
        delivery, run_id = outbox.get(request.key), activity.info().workflow_run_id
        queued_by, _, suffix = request.key.partition("/")
        if delivery is None or queued_by == run_id:
            return delivery
        # The row of the run before the reset stays: its report belongs to that history.
        key = f"{run_id}/{suffix}"
        outbox.add(key, delivery.episode_id, delivery.iteration, delivery.order)
        return outbox.get(key)

    def _settle(
        self, scope: EpisodeScope, selection: ExecutorSelection, order: WorkOrder, crash: Crash
    ) -> ExecutorOutcome | WorkOrder:
        """Return the outcome of an interrupted delivery, or the order for delivering it again."""
        try:
            outcome = selection.executor.reconcile(order, state_folder_of(scope))
            if outcome is None and selection.executor.continues(order, state_folder_of(scope)):
                return order
            effects = selection.executor.effects_outside(order)
        except ExecutorError as error:
            # Unknown effects count as possible effects, so nothing is repeated without asking.
            outcome, effects = None, f"unknown ({error.message})"
        if outcome is not None and outcome.status is not ExecutorStatus.OUTCOME_UNKNOWN:
            return outcome
        resume = (outcome.resume if outcome is not None else None) or last_resume_token()
        crash = crash.evolve(
            effects_outside=effects, session=resume.session_id if resume else "", can_tell=outcome is not None
        )
        unknown = ExecutorOutcome(
            status=ExecutorStatus.OUTCOME_UNKNOWN,
            resume=resume,
            error=explain_crash(crash),
            error_kind=ErrorKind.CRASHED,
        )
        match after_crash(order.executor.on_crash, crash):
            case OnCrash.RETRY:
                return order.evolve(resume=resume or order.resume)
            case OnCrash.VERIFY:
                return unknown
            case OnCrash.ASK:
                question = crash_question(crash, order.plan.steps[0].title if order.plan.steps else order.plan.goal)
                return unknown.evolve(status=ExecutorStatus.NEEDS_PERSON, question=question)
            case wanted:
                assert_never(wanted)

    def _run(
        self, scope: EpisodeScope, selection: ExecutorSelection, order: WorkOrder, tree: "WorkingTree"
    ) -> ExecutorOutcome:
        try:
            if isinstance(selection.executor, DelegatingExecutor):
                return selection.executor.execute(order, Control(tree), state_folder_of(scope))
            # A delegating executor gets no span: it only claims, and the workflow's activities record the calls.
            with operation(telemetry.INVOKE_AGENT, selection.name, {telemetry.AGENT: selection.name}) as span:
                outcome = selection.executor.execute(order, Control(tree), state_folder_of(scope))
                span.record_answer(ModelAnswer(usage=outcome.usage or Usage()))
                failed = outcome.status is not ExecutorStatus.COMPLETED
                session = outcome.resume.session_id if outcome.resume else None
                span.note({telemetry.ERROR: outcome.status.value if failed else None, telemetry.CONVERSATION: session})
            return outcome
        except ExecutorError as error:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error.message)
        except OSError as error:
            location = error.filename or state_folder_of(scope)
            if error.errno in FULL:
                raise StorageFullError.of(location, error.strerror, "an agent was running") from error
            # Other errors may pass by themselves: Temporal retries the activity.
            if error.errno not in _FORBIDDEN:
                raise
            problem = f"cannot use {location}: {error.strerror}. Grant the worker's user access to this path"
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=problem, error_kind=ErrorKind.CONFIG)

    def _report(
        self,
        request: ExecuteRequest,
        tree: "WorkingTree",
        outcome: ExecutorOutcome,
        selection: ExecutorSelection,
        *,
        new_tree: str,
        drift: Drift | None = None,
        ending: str = "",
        at_once: bool = False,
    ) -> ExecutorReport:
        workspace, status, transcript = Path(request.scope.workspace), outcome.status, None
        if ending and status in _MAY_END:
            status = ExecutorStatus.NEEDS_PERSON
            outcome = outcome.evolve(question=impossible_question(scrub(ending)))
        # The tree decides, not the agent: models report changes that they have not made.
        if status is ExecutorStatus.COMPLETED and new_tree == request.expected_tree:
            status = ExecutorStatus.NO_CHANGE
        if outcome.transcript:
            transcript = self._stores(workspace).put(outcome.transcript, name="transcript", media_type="text/plain")
        # Before the report: a report must not name a tree that git could prune.
        tree.keep("current", new_tree)
        # Adapters may be third-party code, so everything that enters the history is bounded here.
        bounded = outcome.evolve(
            status=status,
            summary=clip(outcome.summary, SUMMARY_CHARACTERS),
            error=last_lines(outcome.error, SUMMARY_CHARACTERS),
            denied=tuple(clip(line, DENIED_CHARACTERS) for line in outcome.denied[:DENIED_LINES]),
            question=outcome.question and outcome.question.bounded,
        )
        report = ExecutorReport(
            **{**dict(bounded), "transcript": transcript},
            key=request.key,
            executor=selection.name if selection.passed_over else "",
            passed_over=selection.passed_over,
            new_tree=new_tree,
            drift=drift,
            attempt=activity.info().attempt,
            failed_at_once=at_once and status in (ExecutorStatus.FAILED, ExecutorStatus.LIMIT_HIT),
        )
        # `conclude` reports it after the work: a report now would count as the final one.
        if status is not ExecutorStatus.DELEGATED:
            self._outboxes(workspace).report(request.key, report)
        return report
