"""Creation of ledger entries from activity calls in workflow histories."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from activities.alerts.activity import AlertsSent, SendAlertsRequest
from activities.alerts.channels import delivery_event
from activities.plan import port as plans
from activities.plan.activity import STEP_ACTIVITIES
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
from activities.tracking.activity import (
    Recorded,
    RecordRequest,
    TrackRequest,
    keep_record,
    moment_of,
    note_iteration,
    note_metrics,
)
from activities.tracking.learning import note_problem
from activities.workspace import port as workspace
from activities.workspace.port import (
    AdoptRequest,
    AdoptResult,
    CloseRequest,
    CloseResult,
    OpenRequest,
    OpenResult,
    ReconcileRequest,
    ReconcileResult,
    RestoredCheckpoint,
    RestoreRequest,
)
from activities.workspace.scope import Call, EpisodeScope
from tightloop.client.execution import CONTINUED, Execution
from tightloop.client.sealing import ReadingCodec, SealingCodec
from tightloop.database.ledger import Ledger, local_ledger
from tightloop.database.project import ProjectLedger
from tightloop.episode.checkpoint import CheckpointRecord, Tracked
from tightloop.errors import EpisodeNotFoundError, TightloopError
from tightloop.ledger.model import WorkflowSnapshot
from tightloop.plan.child import StepResult
from worker.connect import DATA_CONVERTER, known_workflows

STEPS = ("pass_milestone", *(method.__name__ for method in STEP_ACTIVITIES.values()))


class EntryMaker(NamedTuple):
    """The request and result types of an activity, and the function that creates its ledger entries."""

    request: type[Any]
    result: type[Any]
    enter: Callable[[ProjectLedger, Any, Any, Call], None]
    """Function that creates the entries. It gets the ledger, the request, the result and the call. A step's result is
    None unless the step succeeded."""


def _checkpoint(ledger: ProjectLedger, episode_id: str, key: str, record: CheckpointRecord) -> None:
    ledger.adopt([(episode_id, record.number, key, record.model_dump_json())])


def _enter_opening(ledger: ProjectLedger, request: OpenRequest, result: OpenResult, call: Call) -> None:
    _checkpoint(ledger, request.scope.episode_id, workspace.opened_key(request.opening), result.checkpoint)
    workspace.note_opening(ledger, request, call)


def _enter_restore(ledger: ProjectLedger, request: RestoreRequest, result: RestoredCheckpoint, call: Call) -> None:
    if request.target.episode_id not in ("", request.scope.episode_id):
        _checkpoint(ledger, request.scope.episode_id, workspace.forked_key(call.run), result.record)
    workspace.note_restoration(ledger, request, result.record, call)


def _enter_tracking(ledger: ProjectLedger, request: TrackRequest, result: Tracked, call: Call) -> None:
    moment = moment_of(request, call)
    _checkpoint(ledger, moment.episode_id, moment.key, result.checkpoint)
    note_iteration(ledger, request, result.tracking, result.checkpoint, moment)
    note_metrics(ledger, request, result, moment)
    if result.memory_problem:
        note_problem(ledger, result.memory_problem, moment)


def _enter_alerts(ledger: ProjectLedger, request: SendAlertsRequest, result: AlertsSent, call: Call) -> None:
    for delivery in result.deliveries:
        ledger.add_event(delivery_event(request.alert, delivery, call))


def _enter_record(ledger: ProjectLedger, request: RecordRequest, result: Recorded, _call: Call) -> None:
    if result.kept:
        keep_record(ledger, request)


def _enter_step(ledger: ProjectLedger, request: RunStepRequest, result: StepResult | None, call: Call) -> None:
    if result is not None and not result.record:
        return  # a plain milestone, which has no record
    plans.note_step_start(ledger, request, call)
    if result is not None:
        plans.note_step_end(ledger, request, result, call)


MAKERS: dict[str, EntryMaker] = {
    "open_workspace": EntryMaker(OpenRequest, OpenResult, _enter_opening),
    "adopt_workspace": EntryMaker(AdoptRequest, AdoptResult, workspace.note_adoption),
    "restore_checkpoint": EntryMaker(RestoreRequest, RestoredCheckpoint, _enter_restore),
    "reconcile_reset": EntryMaker(
        ReconcileRequest,
        ReconcileResult,
        lambda ledger, request, result, call: workspace.note_reset(ledger, request, len(result.discarded), call),
    ),
    "close_workspace": EntryMaker(
        CloseRequest,
        CloseResult,
        lambda ledger, request, result, call: workspace.note_closing(ledger, request, call, result),
    ),
    "track_iteration": EntryMaker(TrackRequest, Tracked, _enter_tracking),
    "send_alerts": EntryMaker(SendAlertsRequest, AlertsSent, _enter_alerts),
    "record": EntryMaker(RecordRequest, Recorded, _enter_record),
    "open_plan": EntryMaker(OpenPlanRequest, OpenedPlan, plans.note_opening),
    "revise_plan": EntryMaker(RevisePlanRequest, RevisedPlan, plans.note_revision),
    "prepare_children": EntryMaker(RunStepRequest, StepRun, plans.note_preparation),
    "settle_children": EntryMaker(
        SettleRequest,
        StepResult,
        lambda ledger, request, result, call: plans.note_step_end(ledger, request.run, result, call),
    ),
    "compensate_step": EntryMaker(RunStepRequest, CompensationResult, plans.note_compensation),
    "close_plan": EntryMaker(
        ClosePlanRequest,
        PlanClosed,
        lambda ledger, request, result, call: plans.note_closing(ledger, request, call, result),
    ),
    **{name: EntryMaker(RunStepRequest, StepResult, _enter_step) for name in STEPS},
}
"""Entry makers, by activity name."""


logger = logging.getLogger("tightloop")

LOOK = timedelta(seconds=30)
OVERLAP = timedelta(minutes=2)
"""Overlap between two queries, because visibility lags behind the end of a workflow. Recording an end twice is
harmless."""
WEEK = timedelta(days=7)


async def enter_ends(client: Client, every: timedelta = LOOK) -> None:
    """Record finished workflows in the ledger until cancelled. The first round covers the last week."""
    since = datetime.now(UTC) - WEEK
    while True:
        started = datetime.now(UTC)
        try:
            query = f"ExecutionStatus != 'Running' AND CloseTime > '{since.isoformat().replace('+00:00', 'Z')}'"
            await asyncio.to_thread(_enter_all, await known_workflows(client, query))
            since = started - OVERLAP
        except TightloopError as error:
            # `since` is unchanged, so the next round covers this period again.
            logger.debug("cannot record the finished workflows: %s", error.message)
        await asyncio.sleep(every.total_seconds())


def enter_end(ledger: Ledger, run: Execution) -> None:
    """Record the end of a run in the ledger.

    Do nothing if the ledger already contains this end or a newer run of the workflow.
    """
    if run.refused or run.status == CONTINUED:
        return
    try:
        line = ledger.workflow(run.id)
    except EpisodeNotFoundError:
        return
    if run.closed is None or line.closed is not None or line.at > run.closed:
        return
    ended = WorkflowSnapshot.of(
        line,
        status=run.status,
        at=run.closed,
        closed=run.closed,
        questions=(),
        # Usage since the last snapshot is unknown.
        cost_known=False,
        tokens=None,
        worked_s=None,
        interventions=None,
    )
    ledger.of(line.project).record(ended)


def _enter_all(ended: tuple[Execution, ...]) -> None:
    ledger = local_ledger()
    closed = sorted((run for run in ended if run.closed is not None), key=lambda run: str(run.closed))
    for newest in {run.id: run for run in closed}.values():
        enter_end(ledger, newest)


@dataclass(frozen=True)
class RecordedCall:
    """An activity call that was read from a history."""

    activity: str
    scope: EpisodeScope
    request: Any
    result: Any
    """The call's result. None if the call has not succeeded."""
    call: Call
    ended: datetime
    """Completion time, or the scheduled time if the call is unfinished."""


@dataclass
class _Open:
    scheduled: HistoryEvent
    run: str
    started: datetime | None = None


async def calls_of(
    client: Client, workflow_id: str, run_id: str, converter: DataConverter
) -> AsyncIterator[RecordedCall]:
    """Yield a run's activity calls that create ledger entries, in order of completion.

    Events that were copied by a reset are attributed to the original run.
    """
    codec = converter.payload_codec
    reader = replace(DATA_CONVERTER, payload_codec=ReadingCodec(codec if isinstance(codec, SealingCodec) else None))
    waiting: dict[int, _Open] = {}
    # Collected before anything is yielded, because a reset further on changes the run of earlier calls.
    taken_over: list[RecordedCall] = []
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events():
        failed = event.workflow_task_failed_event_attributes
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            base = failed.base_run_id
            taken_over = [
                replace(earlier, call=replace(earlier.call, run=base)) if earlier.call.run == run_id else earlier
                for earlier in taken_over
            ]
            for open_call in waiting.values():
                open_call.run = base if open_call.run == run_id else open_call.run
        entry = await _read(event, waiting, run_id, reader)
        if entry is not None:
            taken_over.append(entry)
    for entry in taken_over:
        yield entry
    for open_call in waiting.values():
        if (entry := await _make_entry(open_call, None, reader)) is not None:
            yield entry


async def _read(
    event: HistoryEvent, waiting: dict[int, _Open], run_id: str, reader: DataConverter
) -> RecordedCall | None:
    if event.HasField("activity_task_scheduled_event_attributes"):
        if event.activity_task_scheduled_event_attributes.activity_type.name in MAKERS:
            waiting[event.event_id] = _Open(event, run_id)
    elif event.HasField("activity_task_started_event_attributes"):
        open_call = waiting.get(event.activity_task_started_event_attributes.scheduled_event_id)
        if open_call is not None:
            open_call.started = _moment(event.event_time)
    elif event.HasField("activity_task_completed_event_attributes"):
        completed = event.activity_task_completed_event_attributes
        ended = waiting.pop(completed.scheduled_event_id, None)
        return None if ended is None else await _make_entry(ended, event, reader)
    else:
        for name in ("failed", "timed_out", "canceled"):
            if event.HasField(f"activity_task_{name}_event_attributes"):  # type: ignore[arg-type]
                failed = getattr(event, f"activity_task_{name}_event_attributes")
                ended = waiting.pop(failed.scheduled_event_id, None)
                return None if ended is None or ended.started is None else await _make_entry(ended, None, reader)
    return None


async def _make_entry(open_call: _Open, completed: HistoryEvent | None, reader: DataConverter) -> RecordedCall | None:
    attributes = open_call.scheduled.activity_task_scheduled_event_attributes
    name, scheduled = attributes.activity_type.name, _moment(open_call.scheduled.event_time)
    maker, result = MAKERS[name], None
    request = await _decode(attributes.input, maker.request, reader)
    if request is None:
        return None
    if completed is not None:
        # An activity that returned nothing has succeeded too, and None would mean that it has not.
        result = (
            await _decode(completed.activity_task_completed_event_attributes.result, maker.result, reader)
            or maker.result.model_construct()
        )
    ended = _moment(completed.event_time) if completed is not None else scheduled
    return RecordedCall(
        name, request.scope, request, result, Call(open_call.run, scheduled, open_call.started or scheduled), ended
    )


async def _decode(payloads: Payloads, model: type[Any], reader: DataConverter) -> Any:
    values = await reader.decode(list(payloads.payloads), [model])
    return values[0] if values else None


def _moment(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
