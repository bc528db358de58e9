"""What Temporal itself knows of a workflow, without asking a worker."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import temporalio.api.workflow.v1 as workflow
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.converter import DataConverter, decode_typed_search_attributes

from tightloop.errors import SettingsError

STATUS, ITERATION, PAUSE_KIND = "TightloopStatus", "TightloopIteration", "TightloopPauseKind"
SEARCH_ATTRIBUTES = {STATUS: "Keyword", ITERATION: "Int", PAUSE_KIND: "Keyword"}
OPEN_STATUSES = ("running", "paused")

# Raw numbers, because the SDK's own enum (1.35) raises ValueError on 8, a workflow paused by Temporal itself.
RUNNING, COMPLETED, PAUSED = 1, 2, 8
_CLOSED_AS = {3: "failed", 4: "cancelled", 5: "terminated", 7: "timed_out"}


@dataclass(frozen=True)
class Execution:
    """What Temporal itself knows of a workflow, without asking a worker."""

    workflow_id: str
    run_id: str
    status: str
    """One of `OPEN_STATUSES` or of the closed statuses of its kind."""
    is_open: bool
    frozen: str | None
    """Why Temporal's own pause holds the workflow; then it answers neither queries nor updates."""
    task_queue: str
    iteration: int
    pause_kind: str
    goal: str
    workspace: str
    executor: str
    started: datetime | None
    closed: datetime | None

    @property
    def unfreeze(self) -> str:
        """How Temporal's own pause is lifted."""
        return f"Lift it: temporal workflow unpause -w {self.workflow_id}"


async def read_execution(
    info: workflow.WorkflowExecutionInfo,
    converter: DataConverter,
    status_word: Callable[[int, str], str],
    pause_reason: str = "",
) -> Execution:
    """Read what Temporal tells of a run.

    Args:
        info: Temporal's answer.
        converter: decodes the memo; what it cannot decode is shown as not readable.
        status_word: the status for Temporal's number and the value of `TightloopStatus`.
        pause_reason: why Temporal's own pause holds it, where that is known.
    """
    attributes = {pair.key.name: pair.value for pair in decode_typed_search_attributes(info.search_attributes)}
    frozen = f"paused by Temporal itself{f': {pause_reason}' if pause_reason else ''}"
    return Execution(
        workflow_id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        status=status_word(info.status, str(attributes.get(STATUS, ""))),
        is_open=info.status in (RUNNING, PAUSED),
        frozen=frozen if info.status == PAUSED else None,
        task_queue=info.task_queue,
        iteration=int(attributes.get(ITERATION, 0)),
        pause_kind=str(attributes.get(PAUSE_KIND, "")),
        goal=await _memo(info, converter, "goal"),
        workspace=await _memo(info, converter, "workspace"),
        executor=await _memo(info, converter, "executor"),
        started=moment(info.start_time),
        closed=moment(info.close_time) if info.HasField("close_time") else None,
    )


async def _memo(info: workflow.WorkflowExecutionInfo, converter: DataConverter, name: str) -> str:
    payload = info.memo.fields.get(name)
    if payload is None:
        return ""
    try:
        [value] = await converter.decode([payload])
    except (RuntimeError, ValueError, KeyError, SettingsError):
        return "(not readable here: encrypted or written by another program)"
    return str(value)


def status_word(number: int, attribute: str) -> str:
    """Return the status for Temporal's number and the value of `TightloopStatus`; a completed one is `succeeded`."""
    if number == PAUSED:
        return "paused"
    if number in _CLOSED_AS:
        return _CLOSED_AS[number]
    if number == COMPLETED:
        return "succeeded"
    return attribute if attribute in OPEN_STATUSES else "running"


def moment(stamp: Timestamp) -> datetime | None:
    """Return a time of Temporal; None where it is not set."""
    return stamp.ToDatetime(UTC) if stamp.seconds else None
