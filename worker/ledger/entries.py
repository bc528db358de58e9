"""Makes the entries of one call of an activity again, from its request and its result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activities.alerts.activity import AlertsSent, SendAlertsRequest
from activities.alerts.trail import delivery_event
from activities.plan import entries as plans
from activities.plan.requests import (
    ClosePlanRequest,
    CompensationResult,
    OpenedPlan,
    OpenPlanRequest,
    PlanClosed,
    RevisedPlan,
    RevisePlanRequest,
    RunStepRequest,
    SettleRequest,
    StepRun,
)
from activities.tracking.activity import TrackRequest, checkpoint_key, moment_of, note_iteration, note_measured
from activities.tracking.learning import note_problem
from activities.tracking.record import Recorded, RecordRequest, keep_record
from activities.workspace import entries as workspace
from activities.workspace.requests import (
    Adopted,
    AdoptRequest,
    Closed,
    CloseRequest,
    Opened,
    OpenRequest,
    Reconciled,
    ReconcileRequest,
    RestoredCheckpoint,
    RestoreRequest,
)
from activities.workspace.trail import Call
from tightloop.database.project import ProjectLedger
from tightloop.episode.checkpoint import CheckpointRecord, Tracked
from tightloop.plan.result import StepResult

STEPS = (
    "run_shell", "run_edit", "run_git", "run_http", "run_search", "run_model", "run_gate", "run_decision",
    "take_checkpoint", "pass_milestone",
)  # fmt: skip


@dataclass(frozen=True)
class Maker:
    """What one kind of activity left."""

    request: type[Any]
    result: type[Any]
    enter: Callable[[ProjectLedger, Any, Any, Call], None]
    """Takes the ledger, the request, the result (None: it did not end well), and the call."""


def _opened(ledger: ProjectLedger, request: OpenRequest, result: Opened | None, call: Call) -> None:
    if result is not None:
        _checkpoint(ledger, request.scope.episode_id, workspace.opened_key(request.opening), result.checkpoint)
        workspace.note_opened(ledger, request, call)


def _adopted(ledger: ProjectLedger, request: AdoptRequest, result: Adopted | None, call: Call) -> None:
    if result is not None:
        workspace.note_adopted(ledger, request, result, call)


def _restored(ledger: ProjectLedger, request: RestoreRequest, result: RestoredCheckpoint | None, call: Call) -> None:
    if result is None:
        return
    if request.target.episode_id not in ("", request.scope.episode_id):
        _checkpoint(ledger, request.scope.episode_id, workspace.forked_key(call.run), result.record)
    workspace.note_restored(ledger, request, result.record, call)


def _reset(ledger: ProjectLedger, request: ReconcileRequest, result: Reconciled | None, call: Call) -> None:
    if result is not None:
        workspace.note_reset(ledger, request, len(result.discarded), call)


def _closed(ledger: ProjectLedger, request: CloseRequest, result: Closed | None, call: Call) -> None:
    if result is not None:
        workspace.note_closed(ledger, request, call)


def _tracked(ledger: ProjectLedger, request: TrackRequest, result: Tracked | None, call: Call) -> None:
    if result is not None:
        _checkpoint(ledger, request.scope.episode_id, checkpoint_key(request, call.run), result.checkpoint)
        note_iteration(ledger, request, result.tracking, result.checkpoint, call)
        note_measured(ledger, request, result, call)
        if result.memory_problem:
            note_problem(ledger, result.memory_problem, moment_of(request, call))


def _alerted(ledger: ProjectLedger, request: SendAlertsRequest, result: AlertsSent | None, call: Call) -> None:
    for delivery in result.deliveries if result is not None else ():
        ledger.add_event(delivery_event(request.alert, delivery, call))


def _recorded(ledger: ProjectLedger, request: RecordRequest, result: Recorded | None, _call: Call) -> None:
    if result is not None and result.kept:
        keep_record(ledger, request)


def _plan_opened(ledger: ProjectLedger, request: OpenPlanRequest, result: OpenedPlan | None, call: Call) -> None:
    if result is not None:
        plans.note_opened(ledger, request, result, call)


def _plan_revised(ledger: ProjectLedger, request: RevisePlanRequest, result: RevisedPlan | None, call: Call) -> None:
    if result is not None:
        plans.note_revised(ledger, request, result, call)


def _stepped(ledger: ProjectLedger, request: RunStepRequest, result: StepResult | None, call: Call) -> None:
    if result is not None and not result.record:
        return  # a plain milestone, which leaves nothing
    plans.note_begun(ledger, request, call)
    if result is not None:
        plans.note_ended(ledger, request, result, call)


def _prepared(ledger: ProjectLedger, request: RunStepRequest, result: StepRun | None, call: Call) -> None:
    if result is not None:
        plans.note_prepared(ledger, request, result, call)


def _settled(ledger: ProjectLedger, request: SettleRequest, result: StepResult | None, call: Call) -> None:
    if result is not None:
        plans.note_ended(ledger, request.run, result, call)


def _compensated(ledger: ProjectLedger, request: RunStepRequest, result: CompensationResult | None, call: Call) -> None:
    if result is not None:
        plans.note_compensated(ledger, request, result, call)


def _plan_closed(ledger: ProjectLedger, request: ClosePlanRequest, result: PlanClosed | None, call: Call) -> None:
    if result is not None:
        plans.note_closed(ledger, request, call)


def _checkpoint(ledger: ProjectLedger, episode_id: str, key: str, record: CheckpointRecord) -> None:
    ledger.adopt([(episode_id, record.number, key, record.model_dump_json())], [])


MAKERS: dict[str, Maker] = {
    "open_workspace": Maker(OpenRequest, Opened, _opened),
    "adopt_workspace": Maker(AdoptRequest, Adopted, _adopted),
    "restore_checkpoint": Maker(RestoreRequest, RestoredCheckpoint, _restored),
    "reconcile_reset": Maker(ReconcileRequest, Reconciled, _reset),
    "close_workspace": Maker(CloseRequest, Closed, _closed),
    "track_iteration": Maker(TrackRequest, Tracked, _tracked),
    "send_alerts": Maker(SendAlertsRequest, AlertsSent, _alerted),
    "record": Maker(RecordRequest, Recorded, _recorded),
    "open_plan": Maker(OpenPlanRequest, OpenedPlan, _plan_opened),
    "revise_plan": Maker(RevisePlanRequest, RevisedPlan, _plan_revised),
    "prepare_children": Maker(RunStepRequest, StepRun, _prepared),
    "settle_children": Maker(SettleRequest, StepResult, _settled),
    "compensate_step": Maker(RunStepRequest, CompensationResult, _compensated),
    "close_plan": Maker(ClosePlanRequest, PlanClosed, _plan_closed),
    **{name: Maker(RunStepRequest, StepResult, _stepped) for name in STEPS},
}
"""By the name of the activity."""
