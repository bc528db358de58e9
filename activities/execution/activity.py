"""The hand-off and execution activities: every delivery is claimed before it acts, and acts once."""

import errno
from dataclasses import dataclass
from pathlib import Path

from temporalio import activity
from temporalio.exceptions import CancelledError

from activities.artifacts.port import ArtifactStores, get_model, put_model
from activities.execution.chosen import Chosen, choose
from activities.execution.port import DeliveryState, Executors, Outboxes
from activities.execution.supervision import Supervision, way_back
from activities.scope import EpisodeScope
from activities.workspace.port import WorkingTree, Workspaces
from tightloop.artifact import ArtifactRef
from tightloop.episode import EpisodeRequest
from tightloop.errors import ArtifactMissingError, ExecutorError, StorageFullError
from tightloop.executor import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    ExecutorOutcome,
    ExecutorReport,
    ExecutorStatus,
    Grant,
    Question,
    ResumeToken,
    WorkOrder,
)
from tightloop.message import render_plan
from tightloop.planning import PlanRecord
from tightloop.value import Value, clip, shorten

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
DENIED_LINES, DENIED_CHARACTERS = 10, 120
TITLE_CHARACTERS, DETAIL_CHARACTERS = 200, 1_000


class HandOffRequest(Value):
    """A plan for the executor."""

    scope: EpisodeScope
    iteration: int
    plan: ArtifactRef
    delivery: int = 1
    """Number of the delivery within its iteration; above 1 after a limit."""
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """What a person allowed or denied in this iteration."""


class Delivery(Value):
    """A queued delivery."""

    key: str
    attempt: int = 1


class ExecuteRequest(Value):
    """A delivery to be made, from the tree that must be on disk."""

    scope: EpisodeScope
    key: str
    expected_tree: str


@dataclass(frozen=True)
class _Found:
    """What is reported besides the outcome."""

    new_tree: str
    chosen: Chosen
    drift: str | None = None


class ExecutionActivities:
    """Delivers plans to executors."""

    def __init__(
        self, workspaces: Workspaces, stores: ArtifactStores, outboxes: Outboxes, executors: Executors
    ) -> None:
        """Take the ports."""
        self._workspaces = workspaces
        self._stores = stores
        self._outboxes = outboxes
        self._executors = executors

    @activity.defn(no_thread_cancel_exception=True)
    def hand_off(self, request: HandOffRequest) -> Delivery:
        """Queue a plan in the outbox. Idempotent: the key is the run, the iteration and the delivery."""
        workspace = Path(request.scope.workspace)
        store = self._stores(workspace)
        if request.scope.request is None:
            raise ArtifactMissingError("the episode has no stored request: its workspace was never opened")
        episode = get_model(store, request.scope.request, EpisodeRequest)
        message = get_model(store, request.plan, PlanRecord).message
        if message is None:
            raise ArtifactMissingError(f"the plan of iteration {request.iteration} has no message to hand off")
        info = activity.info()
        key = f"{info.workflow_run_id}/{request.iteration}/{request.delivery}"
        order = WorkOrder(
            key=key,
            episode_id=request.scope.episode_id,
            iteration=request.iteration,
            root=str(request.scope.root),
            plan=message,
            prompt=render_plan(message),
            executor=episode.executor,
            resume=request.resume,
            grants=request.grants,
        )
        reference = put_model(store, order, name="work order")
        self._outboxes(workspace).add(key, request.scope.episode_id, request.iteration, reference)
        return Delivery(key=key, attempt=info.attempt)

    @activity.defn(no_thread_cancel_exception=True)
    def execute(self, request: ExecuteRequest) -> ExecutorReport:
        """Make a delivery and wait for its end.

        Idempotent: a delivery that was reported returns its report. One that was begun by an attempt
        that died is settled from the traces of that attempt where they tell how it ended; else it is made
        again if it left nothing in the tree; otherwise its outcome is unknown.
        """
        workspace = Path(request.scope.workspace)
        outbox = self._outboxes(workspace)
        # Holding the tree ends the processes of an attempt that died.
        with self._workspaces.hold(request.scope) as tree:
            delivery = outbox.get(request.key)
            if delivery is None:
                raise ExecutorError(
                    f"the outbox of {workspace} has no delivery {request.key}: was its state folder removed?"
                )
            if delivery.report is not None:
                return delivery.report
            order = get_model(self._stores(workspace), delivery.order, WorkOrder)
            chosen = choose(self._executors, order.executor)
            order = chosen.ordered(order)
            drift: str | None = None
            if delivery.state is DeliveryState.CLAIMED:
                settled = self._reconciled(request.scope, chosen, order)
                found = tree.snapshot()
                if settled.status is not ExecutorStatus.OUTCOME_UNKNOWN or found != delivery.base_tree:
                    return self._report(request, tree, settled, _Found(found, chosen))
                order = order.model_copy(update={"resume": settled.resume or order.resume})
            else:
                drift = tree.ensure(request.expected_tree)
            outbox.claim(request.key, request.expected_tree)
            outcome = self._run(request.scope, chosen, order, tree)
            if outcome.status is ExecutorStatus.CANCELLED and activity.is_cancelled():
                raise CancelledError("the executor was stopped and its processes are gone")
            return self._report(request, tree, outcome, _Found(tree.snapshot(), chosen, drift))

    def _reconciled(self, scope: EpisodeScope, chosen: Chosen, order: WorkOrder) -> ExecutorOutcome:
        """Return how the delivery of a died attempt ended, as far as its traces tell."""
        try:
            known = chosen.executor.reconcile(order, scope.state_folder)
        except ExecutorError:
            known = None
        if known is not None and known.status is not ExecutorStatus.OUTCOME_UNKNOWN:
            return known
        told = known.resume if known is not None else None
        return _UNKNOWN.model_copy(update={"resume": told or way_back()})

    def _run(self, scope: EpisodeScope, chosen: Chosen, order: WorkOrder, tree: WorkingTree) -> ExecutorOutcome:
        try:
            return chosen.executor.execute(order, Supervision(tree), scope.state_folder)
        except ExecutorError as error:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=error.message)
        except OSError as error:
            place = error.filename or scope.state_folder
            if error.errno in _FULL:
                raise StorageFullError(
                    f"no room at {place}: {error.strerror}. The delivery was ended. Free space there, then resume"
                ) from error
            if error.errno not in _FORBIDDEN:
                raise
            told = f"cannot use {place}: {error.strerror}. Give the user of the worker the right to"
            return ExecutorOutcome(status=ExecutorStatus.FATAL, error=told, error_kind=ErrorKind.CONFIG)

    def _report(
        self, request: ExecuteRequest, tree: WorkingTree, outcome: ExecutorOutcome, found: _Found
    ) -> ExecutorReport:
        workspace, chosen = Path(request.scope.workspace), found.chosen
        status = outcome.status
        if status is ExecutorStatus.COMPLETED and found.new_tree == request.expected_tree:
            status = ExecutorStatus.NO_CHANGE
        transcript = None
        if outcome.transcript:
            transcript = self._stores(workspace).put(outcome.transcript, name="transcript", media_type="text/plain")
        tree.keep("current", found.new_tree)
        report = ExecutorReport(
            key=request.key,
            status=status,
            summary=clip(outcome.summary, SUMMARY_CHARACTERS),
            exit_code=outcome.exit_code,
            cpu_s=outcome.cpu_s,
            transcript=transcript,
            usage=outcome.usage,
            limit=outcome.limit,
            resume=outcome.resume,
            error=clip(outcome.error, SUMMARY_CHARACTERS),
            error_kind=outcome.error_kind,
            denied=tuple(clip(line, DENIED_CHARACTERS) for line in outcome.denied[:DENIED_LINES]),
            question=_bounded(outcome.question),
            versions=outcome.versions,
            executor=chosen.name if chosen.passed_over else "",
            passed_over=chosen.passed_over,
            new_tree=found.new_tree,
            drift=found.drift,
            attempt=activity.info().attempt,
        )
        self._outboxes(workspace).report(request.key, report)
        return report


def _bounded(question: Question | None) -> Question | None:
    if question is None:
        return None
    title = " ".join(question.title.split()) or "the executor asks"
    return question.model_copy(
        update={"title": shorten(title, TITLE_CHARACTERS), "detail": shorten(question.detail, DETAIL_CHARACTERS)}
    )


_UNKNOWN = ExecutorOutcome(
    status=ExecutorStatus.OUTCOME_UNKNOWN,
    error="the worker died during the delivery and the tree moved; it was not delivered again",
)
