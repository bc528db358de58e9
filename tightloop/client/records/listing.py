"""What Temporal lists: the newest runs of all episodes and plans, and all runs of one."""

import contextlib
import difflib
from collections.abc import AsyncGenerator

import temporalio.api.workflow.v1 as workflow
import temporalio.api.workflowservice.v1 as service
from temporalio.client import Client

from tightloop.client.connection import CALL_TIMEOUT, Bounded, converter_for
from tightloop.client.execution import KINDS, Execution, Kind, read_execution
from tightloop.errors import EpisodeNotFoundError

START_HINT = 'Start one: tightloop start "make the tests pass" --done "pytest -q", or: tightloop plan run plan.yaml'
_PAGE = 200
_SUGGESTED = 50
"""Workflows whose ids are compared with a wrong one."""


class Listing:
    """Lists the workflows of a namespace."""

    def __init__(self, client: Client, bounded: Bounded) -> None:
        self._client, self._bounded = client, bounded

    async def executions(self, *, kind: Kind | None = None, only_open: bool = False) -> AsyncGenerator[Execution]:
        """Yield the newest run of each workflow: open ones first, then the last closed.

        A run that continued as new is left out, and a restored episode is listed once.
        """
        query = _of_kind(kind)
        query += " AND CloseTime IS NULL" if only_open else ""
        seen: set[str] = set()
        async with contextlib.aclosing(self._found(query)) as found:
            async for info in found:
                if info.execution.workflow_id in seen:
                    continue
                row = await self._read(info)
                seen.add(row.id)
                counts = await self.that_counts(row)
                if kind in (None, counts.kind):
                    yield counts

    async def runs(self, workflow_id: str) -> tuple[Execution, ...]:
        """Return all runs that Temporal still has of an id, oldest first."""
        quoted = workflow_id.replace("\\", "\\\\").replace('"', '\\"')
        async with contextlib.aclosing(self._found(f'WorkflowId="{quoted}"')) as found:
            infos = [info async for info in found if info.type.name in KINDS]
        infos.sort(key=lambda info: info.start_time.ToNanoseconds())
        return tuple([await self._read(info) for info in infos])

    async def that_counts(self, newest: Execution) -> Execution:
        """Return the newest run of an id that was not refused at its beginning; where all were, the newest."""
        if not newest.refused:
            return newest
        return next((run for run in reversed(await self.runs(newest.id)) if not run.refused), newest)

    async def not_found(self, workflow_id: str, kind: Kind | None = None) -> EpisodeNotFoundError:
        """Return the error that names the nearest known ids."""
        request = service.ListWorkflowExecutionsRequest(
            namespace=self._client.namespace, page_size=_SUGGESTED, query=_of_kind(kind)
        )
        page = await self._page(request)
        known = list(dict.fromkeys(info.execution.workflow_id for info in page.executions))
        nearest = difflib.get_close_matches(workflow_id, known, n=3, cutoff=0.5) or known[:3]
        what = f"no {kind}" if kind else "neither an episode nor a plan"
        hint = f". Known ids: {', '.join(nearest)}. List all: tightloop list" if nearest else f". {START_HINT}"
        return EpisodeNotFoundError(f"{what} has the id {workflow_id!r}{hint}")

    async def _read(self, info: workflow.WorkflowExecutionInfo) -> Execution:
        return await read_execution(info, converter_for(self._client, info.execution.workflow_id))

    async def _found(self, query: str) -> AsyncGenerator[workflow.WorkflowExecutionInfo]:
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
    """Return the query for the runs of a kind, or of all, without those that continued as new."""
    types = ", ".join(f'"{name}"' for name, one in KINDS.items() if kind in (None, one))
    return f'WorkflowType IN ({types}) AND ExecutionStatus!="ContinuedAsNew"'
