"""Reads the calls of activities from the history of a run."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter

from activities.workspace.scope import EpisodeScope
from activities.workspace.trail import Call
from tightloop.client.sealing import ReadingCodec, SealingCodec
from worker.connect import DATA_CONVERTER
from worker.ledger.entries import MAKERS


@dataclass(frozen=True)
class Made:
    """A call of an activity, as a history has it."""

    activity: str
    scope: EpisodeScope
    request: Any
    result: Any
    """None: it did not end well, or has not ended."""
    call: Call
    ended: datetime
    """When it ended; of one that has not, when it was scheduled."""


@dataclass
class _Open:
    scheduled: HistoryEvent
    run: str
    started: datetime | None = None


async def calls_of(client: Client, workflow_id: str, run_id: str, converter: DataConverter) -> AsyncIterator[Made]:
    """Yield the calls of a run that leave entries in the ledger, in the order in which they ended.

    Events that a reset took over from another run are those of that run.
    """
    codec = converter.payload_codec
    reader = replace(DATA_CONVERTER, payload_codec=ReadingCodec(codec if isinstance(codec, SealingCodec) else None))
    waiting: dict[int, _Open] = {}
    taken_over: list[Made] = []
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    async for event in handle.fetch_history_events():
        failed = event.workflow_task_failed_event_attributes
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            base = failed.base_run_id
            taken_over = [_of_run(made, base, run_id) for made in taken_over]
            for each in waiting.values():
                each.run = base if each.run == run_id else each.run
        made = await _read(event, waiting, run_id, reader)
        if made is not None:
            taken_over.append(made)
    for made in taken_over:
        yield made
    for each in waiting.values():
        if (made := await _made(each, None, reader)) is not None:
            yield made


def _of_run(made: Made, base: str, run_id: str) -> Made:
    return replace(made, call=replace(made.call, run=base)) if made.call.run == run_id else made


async def _read(event: HistoryEvent, waiting: dict[int, _Open], run_id: str, reader: DataConverter) -> Made | None:
    if event.HasField("activity_task_scheduled_event_attributes"):
        if event.activity_task_scheduled_event_attributes.activity_type.name in MAKERS:
            waiting[event.event_id] = _Open(event, run_id)
    elif event.HasField("activity_task_started_event_attributes"):
        begun = waiting.get(event.activity_task_started_event_attributes.scheduled_event_id)
        if begun is not None:
            begun.started = _moment(event.event_time)
    elif event.HasField("activity_task_completed_event_attributes"):
        completed = event.activity_task_completed_event_attributes
        ended = waiting.pop(completed.scheduled_event_id, None)
        return None if ended is None else await _made(ended, event, reader)
    else:
        for name in ("failed", "timed_out", "canceled"):
            if event.HasField(f"activity_task_{name}_event_attributes"):  # type: ignore[arg-type]
                failed = getattr(event, f"activity_task_{name}_event_attributes")
                ended = waiting.pop(failed.scheduled_event_id, None)
                return None if ended is None or ended.started is None else await _made(ended, None, reader)
    return None


async def _made(begun: _Open, completed: HistoryEvent | None, reader: DataConverter) -> Made | None:
    attributes = begun.scheduled.activity_task_scheduled_event_attributes
    name, scheduled = attributes.activity_type.name, _moment(begun.scheduled.event_time)
    maker, result = MAKERS[name], None
    request = await _decoded(attributes.input, maker.request, reader)
    if request is None:
        return None
    if completed is not None:
        result = (
            await _decoded(completed.activity_task_completed_event_attributes.result, maker.result, reader)
            or maker.result.model_construct()
        )
    ended = _moment(completed.event_time) if completed is not None else scheduled
    return Made(name, request.scope, request, result, Call(begun.run, scheduled, begun.started or scheduled), ended)


async def _decoded(payloads: Payloads, model: type[Any], reader: DataConverter) -> Any:
    found = await reader.decode(list(payloads.payloads), [model])
    return found[0] if found else None


def _moment(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
