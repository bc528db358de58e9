"""What Temporal has recorded of a run: its input, its events, its end."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import temporalio.api.common.v1 as common
import temporalio.api.history.v1 as history
import temporalio.api.workflowservice.v1 as service
from temporalio.client import Client

from tightloop.client.connection import CALL_TIMEOUT, Bounded, converter_for
from tightloop.client.encryption import open_all
from tightloop.client.execution import Execution, moment
from tightloop.episode.timeline import TimelineLine
from tightloop.value import shorten

HISTORY_TIMEOUT = timedelta(seconds=120)
_REASON_CHARACTERS = 500
_RESETTER = "history-resetter"
"""Temporal ends a run that is reset; the one that follows tells of the reset."""

T = TypeVar("T")


class History:
    """Reads histories."""

    def __init__(self, client: Client, bounded: Bounded) -> None:
        self._client, self._bounded = client, bounded

    async def last_event(self, workflow_id: str, run_id: str) -> datetime | None:
        """Return when Temporal recorded the last event of a run."""
        event = await self._newest(workflow_id, run_id)
        return moment(event.event_time) if event else None

    async def forced_end(self, workflow_id: str, run_id: str) -> TimelineLine | None:
        """Return how Temporal ended a run without the workflow's knowledge; None where the workflow ended itself."""
        event = await self._newest(workflow_id, run_id)
        if event is None:
            return None
        at = event.event_time.ToDatetime(UTC)
        if event.HasField("workflow_execution_timed_out_event_attributes"):
            return TimelineLine(at=at, kind="timed_out", text="it ran into a time limit that was set in Temporal")
        if not event.HasField("workflow_execution_terminated_event_attributes"):
            return None
        ended = event.workflow_execution_terminated_event_attributes
        if ended.identity == _RESETTER:
            return None
        text = f"{shorten(ended.reason or 'without a reason', _REASON_CHARACTERS)} (by {ended.identity or 'unknown'})"
        return TimelineLine(at=at, kind="terminated", text=text)

    async def _newest(self, workflow_id: str, run_id: str) -> history.HistoryEvent | None:
        request = service.GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=common.WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            maximum_page_size=1,
        )
        async with self._bounded(workflow_id, CALL_TIMEOUT):
            answer = await self._client.workflow_service.get_workflow_execution_history_reverse(
                request, timeout=CALL_TIMEOUT
            )
        return next(iter(answer.history.events), None)

    async def first_input(self, seen: Execution, kind: type[T]) -> T:
        """Return the input of a run.

        Raises:
            SettingsError: it cannot be decoded here.
            ValueError: there is none, or another than one of this kind.
        """
        request = service.GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=common.WorkflowExecution(workflow_id=seen.id, run_id=seen.run_id),
            maximum_page_size=1,
        )
        async with self._bounded(seen.id, CALL_TIMEOUT):
            ask = self._client.workflow_service.get_workflow_execution_history
            started = (await ask(request, retry=True, timeout=CALL_TIMEOUT)).history.events[0]
            given = started.workflow_execution_started_event_attributes.input.payloads[:1]
            found: list[T | None] = await converter_for(self._client, seen.id).decode(given, [kind])
        # `null` is decoded to None, whatever the kind.
        if not found or found[0] is None:
            raise ValueError(f"{seen.id} was started without an input")
        return found[0]

    async def as_json(self, workflow_id: str, run_id: str) -> str:
        """Return the history of a run as JSON, as Temporal's own tools write it, decrypted."""
        handle = self._client.get_workflow_handle(workflow_id, run_id=run_id)
        async with self._bounded(workflow_id, HISTORY_TIMEOUT):
            recorded = await handle.fetch_history(rpc_timeout=CALL_TIMEOUT)
            # The SDK leaves the payloads of a fetched history as the server has them.
            if codec := self._client.data_converter.payload_codec:
                for event in recorded.events:
                    await open_all(event, codec)
        return await asyncio.to_thread(recorded.to_json)
