"""What is known of episodes and plans."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from starlette.responses import Response

from gateway.access.scope import EPISODES, PLANS, Found, Scope, details_of, require_all_projects, workspace_of
from gateway.http.loop_plan import loop_plan
from gateway.http.once import InScope, read_artifact, read_diff, references
from gateway.http.parameters import (
    After,
    Checkpoint,
    Cursor,
    Digest,
    Fresh,
    Limit,
    Parent,
    Part,
    ProjectFilter,
    RunId,
    Status,
    WorkflowId,
)
from tightloop.client.proof.statement import statement_of
from tightloop.client.proof.verify import find_proof
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.model import WorkflowFilter, WorkflowPage
from tightloop.loop.model import LoopStatus
from tightloop.operations.results import Asked, Plan
from tightloop.operations.wire import shown
from tightloop.plan.request import PlanStatus

TIMELINE_EVENTS = 200
BYTES = "application/octet-stream"
IN_TOTO = "application/vnd.in-toto+json"


async def _known(request: Request, scope: InScope, workflow_id: WorkflowId) -> Found:
    return await scope.find(workflow_id, _kinds(request))


async def _steered(request: Request, scope: InScope, workflow_id: WorkflowId) -> Found:
    return await scope.find(workflow_id, _kinds(request), now=True)


def _kinds(request: Request) -> tuple[str, ...]:
    return EPISODES if request.url.path.startswith("/api/episodes/") else PLANS


Known = Annotated[Found, Depends(_known)]
Steered = Annotated[Found, Depends(_steered)]


def episodes(
    scope: InScope,
    project: ProjectFilter = "",
    status: Status = "",
    text: Part = "",
    parent: Parent = None,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Any:
    wanted = WorkflowFilter(project=project, kind="episode", status=status, text=text, parent=parent)
    return _page(scope, wanted, cursor, limit)


def plans(
    scope: InScope,
    kind: Annotated[
        Literal["plan", "loop"], Query(description="Plans of steps, or plans of the project loop.")
    ] = "loop",
    project: ProjectFilter = "",
    status: Status = "",
    text: Part = "",
    parent: Parent = None,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Any:
    wanted = WorkflowFilter(project=project, kind=kind, status=status, text=text, parent=parent)
    return _page(scope, wanted, cursor, limit)


def _page(scope: Scope, wanted: WorkflowFilter, cursor: str, limit: int) -> dict[str, Any]:
    page: WorkflowPage = scope.ledger.workflows(wanted, cursor=cursor, limit=limit)
    return {"items": page.lines, "cursor": page.cursor}


async def episode(
    scope: InScope,
    workflow_id: WorkflowId,
    fresh: Fresh = False,
) -> Any:
    found = await scope.find(workflow_id, EPISODES, now=fresh)
    return await details_of(scope, found, EpisodeStatus, fresh=fresh)


async def plan(
    scope: InScope,
    workflow_id: WorkflowId,
    fresh: Fresh = False,
) -> Any:
    """One of the project loop has `kind: loop`, one of steps `kind: plan`."""
    found = await scope.find(workflow_id, PLANS, now=fresh)
    if found.kind == "loop":
        seen = await details_of(scope, found, LoopStatus, fresh=fresh)
        return loop_plan(seen["details"], found.project, scope)
    return Plan.model_validate(await details_of(scope, found, PlanStatus, fresh=fresh))


async def timeline(scope: InScope, found: Steered, after: Cursor = "", limit: Limit = TIMELINE_EVENTS) -> Any:
    events = await scope.client.timeline(found.id, after=after, limit=limit)
    return {"items": events, "cursor": events[-1].cursor if events else after}


async def trail(scope: InScope, found: Known, after: After = 0, limit: Limit = 100) -> Any:
    lines = await asyncio.to_thread(
        scope.ledger.events, after=after, limit=limit, workflow_id=found.id, project=found.project
    )
    return {"items": lines, "after": lines[-1].seq if lines else after}


async def checkpoints(scope: InScope, workflow_id: WorkflowId) -> Any:
    found = await scope.find(workflow_id, EPISODES)
    return {"items": await asyncio.to_thread(scope.ledger.checkpoints, found.id)}


async def diff(scope: InScope, workflow_id: WorkflowId, before: Checkpoint, after: Checkpoint) -> Any:
    found = await scope.find(workflow_id, EPISODES)
    records = await asyncio.to_thread(scope.ledger.checkpoints, found.id)
    workspace = await workspace_of(scope, found)
    return await asyncio.to_thread(read_diff, workspace, found.id, (before, after), records)


async def artifacts(scope: InScope, found: Known) -> Any:
    return {"items": await _artifacts(scope, found)}


async def artifact(scope: InScope, found: Known, sha256: Digest) -> Response:
    known = await _artifacts(scope, found)
    workspace = await workspace_of(scope, found)
    ref, content = await asyncio.to_thread(read_artifact, workspace, found.id, sha256, known)
    # What an agent wrote must never be a page of ours.
    headers = {
        "Content-Disposition": f'attachment; filename="{ref.sha256[:12]}"',
        "X-Artifact-Media-Type": ref.media_type if ref.media_type.isascii() else "",
    }
    return Response(content, headers=headers, media_type=BYTES)


async def asked(scope: InScope, found: Steered) -> Any:
    request = await scope.client.request(found.id)
    document = shown(type(request)).model_validate(request).model_dump(mode="json", by_alias=True)
    return Asked.model_validate({"kind": found.kind, "request": document})


async def runs(scope: InScope, found: Steered) -> Any:
    # An id may be used again: an earlier run may be of another project.
    require_all_projects(scope, "sees runs")
    return {"items": await scope.client.runs(found.id)}


async def history(scope: InScope, found: Steered, run_id: RunId) -> Response:
    require_all_projects(scope, "sees histories")
    return Response(await scope.client.history(found.id, run_id=run_id), media_type="application/json")


async def proof(scope: InScope, workflow_id: WorkflowId) -> Response:
    found = await scope.find(workflow_id, EPISODES, now=True)
    statement = statement_of(await find_proof(scope.client, found.id))
    return Response(statement.content, media_type=IN_TOTO)


async def steps(scope: InScope, workflow_id: WorkflowId) -> Any:
    found = await scope.find(workflow_id, PLANS)
    return {"items": await asyncio.to_thread(scope.ledger.steps, found.id)}


async def _artifacts(scope: Scope, found: Found) -> list[Any]:
    documents: list[Any] = [found.line.details if found.line is not None else {}]
    if found.kind == "episode":
        records = await asyncio.to_thread(scope.ledger.checkpoints, found.id)
        documents += [record.model_dump(mode="json") for record in records]
    return list(references(documents))


HANDLERS = (
    episodes, plans, episode, plan, timeline, trail, checkpoints, diff, artifacts, artifact, asked, runs, history,
    proof, steps,
)  # fmt: skip
RAW: dict[str, dict[int | str, dict[str, Any]]] = {
    "artifact": {200: {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}},
    "history": {200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
    "proof": {
        200: {
            "description": "An in-toto Statement v1, not signed.",
            "content": {IN_TOTO: {"schema": {"type": "object"}}},
        }
    },
}
"""Answers without a model, as the document of the API describes them."""
