"""Workflow lists and histories."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import temporalio.api.common.v1 as common
import temporalio.api.history.v1 as history
import temporalio.api.workflow.v1 as workflow
import temporalio.api.workflowservice.v1 as service
from temporalio.client import Client

from tightloop.client.connection import CALL_TIMEOUT, Bounded, converter_for
from tightloop.client.encryption import open_all
from tightloop.client.execution import KINDS, Execution, Kind, moment, read_execution
from tightloop.errors import EpisodeNotFoundError
from tightloop.run.core import TimelineLine
from tightloop.value import shorten
from tightloop.wording import START_HINT as START_HINT

_PAGE = 200
_SUGGESTED = 50
"""Number of recent workflows whose ids are compared with an unknown id."""


class Listing:
    """Lists the workflows of a Temporal namespace."""

    def __init__(self, client: Client, bounded: Bounded) -> None:
        self._client, self._bounded = client, bounded

    async def executions(self, *, kind: Kind | None = None, only_open: bool = False) -> AsyncGenerator[Execution]:
        """Yield the newest run of each workflow. Open runs come first, then the most recently closed ones.

        Runs that were continued as new are omitted. A restored episode is listed only once.
        """
        query = _of_kind(kind)
        query += " AND CloseTime IS NULL" if only_open else ""
        listed_ids: set[str] = set()
        # Closed explicitly: callers stop early, and an abandoned generator is finalized at an arbitrary time.
        async with contextlib.aclosing(self._list_infos(query)) as listing:
            async for info in listing:
                # Temporal lists open runs first, then by latest close, so the first row of an id is its newest run.
                if info.execution.workflow_id in listed_ids:
                    continue
                row = await self._read(info)
                listed_ids.add(row.id)
                counts = await self.find_newest_accepted(row)
                if kind in (None, counts.kind):
                    yield counts

    async def runs(self, workflow_id: str) -> tuple[Execution, ...]:
        """Return all runs that Temporal still stores for an id, oldest first."""
        # A person may have typed the id; unquoted it could change the query.
        quoted = workflow_id.replace("\\", "\\\\").replace('"', '\\"')
        async with contextlib.aclosing(self._list_infos(f'WorkflowId="{quoted}"')) as listing:
            infos = [info async for info in listing if info.type.name in KINDS]
        infos.sort(key=lambda info: info.start_time.ToNanoseconds())
        return tuple([await self._read(info) for info in infos])

    async def find_newest_accepted(self, newest: Execution) -> Execution:
        """Return the newest run that was not rejected when it started.

        If all runs were rejected, return the newest one.
        """
        if not newest.refused:
            return newest
        return next((run for run in reversed(await self.runs(newest.id)) if not run.refused), newest)

    async def not_found(self, workflow_id: str, kind: Kind | None = None) -> EpisodeNotFoundError:
        """Return the error for an unknown id, including the closest existing ids."""
        request = service.ListWorkflowExecutionsRequest(
            namespace=self._client.namespace, page_size=_SUGGESTED, query=_of_kind(kind)
        )
        page = await self._page(request)
        ids = list(dict.fromkeys(info.execution.workflow_id for info in page.executions))
        # Lazy import, needed for unknown ids only.
        import difflib

        nearest = difflib.get_close_matches(workflow_id, ids, n=3, cutoff=0.5)
        what = f"no such {kind}" if kind else "no such episode or plan"
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else ""
        hint += " List all with: tightloop list" if ids else f" {START_HINT}"
        return EpisodeNotFoundError(f"{what}: {workflow_id!r}.{hint}")

    async def _read(self, info: workflow.WorkflowExecutionInfo) -> Execution:
        return await read_execution(info, converter_for(self._client, info.execution.workflow_id))

    async def _list_infos(self, query: str) -> AsyncGenerator[workflow.WorkflowExecutionInfo]:
        token = b""
        while True:
            request = service.ListWorkflowExecutionsRequest(
                namespace=self._client.namespace, page_size=_PAGE, next_page_token=token, query=query
            )
            page = await self._page(request)
            for info in page.executions:
                yield info
            token = page.next_page_token
            if not token:
                return

    async def _page(self, request: service.ListWorkflowExecutionsRequest) -> service.ListWorkflowExecutionsResponse:
        async with self._bounded("", CALL_TIMEOUT):
            return await self._client.workflow_service.list_workflow_executions(
                request, retry=True, timeout=CALL_TIMEOUT
            )


def _of_kind(kind: Kind | None) -> str:
    """Return the list query for one kind or all kinds. Runs continued as new are excluded."""
    types = ", ".join(f'"{name}"' for name, type_kind in KINDS.items() if kind in (None, type_kind))
    return f'WorkflowType IN ({types}) AND ExecutionStatus!="ContinuedAsNew"'


HISTORY_TIMEOUT = timedelta(seconds=120)
_REASON_CHARACTERS = 500
_RESETTER = "history-resetter"
"""Identity that Temporal uses when it ends a run because of a reset. The following run reports the reset."""

T = TypeVar("T")


class History:
    """Reads the recorded histories of runs."""

    def __init__(self, client: Client, bounded: Bounded) -> None:
        self._client, self._bounded = client, bounded

    async def last_event(self, workflow_id: str, run_id: str) -> datetime | None:
        """Return the time of a run's last event."""
        event = await self._newest(workflow_id, run_id)
        return moment(event.event_time) if event else None

    async def forced_end(self, workflow_id: str, run_id: str) -> TimelineLine | None:
        """Return the timeout or termination that ended a run, or None if the workflow ended normally."""
        event = await self._newest(workflow_id, run_id)
        if event is None:
            return None
        at = event.event_time.ToDatetime(UTC)
        if event.HasField("workflow_execution_timed_out_event_attributes"):
            return TimelineLine(at=at, kind="timed_out", text="it exceeded a time limit set in Temporal")
        if not event.HasField("workflow_execution_terminated_event_attributes"):
            return None
        ended = event.workflow_execution_terminated_event_attributes
        if ended.identity == _RESETTER:
            return None
        text = f"{shorten(ended.reason or 'no reason given', _REASON_CHARACTERS)} (by {ended.identity or 'unknown'})"
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

    async def first_input(self, execution: Execution, kind: type[T]) -> T:
        """Return the input that a run was started with.

        Raises:
            SettingsError: the input cannot be decoded.
            ValueError: the input is missing or belongs to another kind.
        """
        request = service.GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=common.WorkflowExecution(workflow_id=execution.id, run_id=execution.run_id),
            maximum_page_size=1,
        )
        async with self._bounded(execution.id, CALL_TIMEOUT):
            ask = self._client.workflow_service.get_workflow_execution_history
            started = (await ask(request, retry=True, timeout=CALL_TIMEOUT)).history.events[0]
            payloads = started.workflow_execution_started_event_attributes.input.payloads[:1]
            inputs: list[T | None] = await converter_for(self._client, execution.id).decode(payloads, [kind])
        # `null` decodes to None for every kind.
        if not inputs or inputs[0] is None:
            raise ValueError(f"{execution.id} was started without an input")
        return inputs[0]

    async def as_json(self, workflow_id: str, run_id: str) -> str:
        """Return a run's decrypted history in the JSON format of Temporal's tools."""
        handle = self._client.get_workflow_handle(workflow_id, run_id=run_id)
        async with self._bounded(workflow_id, HISTORY_TIMEOUT):
            recorded = await handle.fetch_history(rpc_timeout=CALL_TIMEOUT)
            # The SDK does not decode the payloads of a fetched history.
            if codec := self._client.data_converter.payload_codec:
                for event in recorded.events:
                    await open_all(event, codec)
        return await asyncio.to_thread(recorded.to_json)
