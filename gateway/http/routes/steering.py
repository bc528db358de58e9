"""Paths that episodes and plans have alike: list, status, timeline, artifacts, and the messages to them."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from gateway.access.scope import EPISODES, PLANS, Found, Scope, answered, told, workspace_of
from gateway.http.once import InScope, read_artifact, references
from gateway.http.parameters import Cursor, Limit, WorkflowId
from tightloop.ledger.model import WorkflowFilter, WorkflowPage
from tightloop.operations.models import Answer, Cancel, EpisodeTopUp, Pause, PlanTopUpBody, Resume
from tightloop.operations.results import Artifacts, Done, Timeline, Trail
from tightloop.operations.wire import given

TIMELINE_EVENTS = 200
BYTES = "application/octet-stream"
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the bytes.")]
After = Annotated[int, Query(ge=0, le=2**62, description="Only what follows this line.")]
Status = Annotated[str, Query(max_length=40, pattern=r"^[A-Za-z_]*$", examples=["paused"])]
Part = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Part of the id or the goal.")]
Parent = Annotated[
    str | None,
    Query(max_length=200, pattern=r"^[^\x00]*$", description="Id of the plan that started them; empty: without one."),
]


def list_page(scope: Scope, wanted: WorkflowFilter, cursor: str, limit: int) -> dict[str, Any]:
    """Return a page of the ledger."""
    page: WorkflowPage = scope.ledger.workflows(wanted, cursor=cursor, limit=limit)
    return {"items": page.lines, "cursor": page.cursor}


async def _known(request: Request, scope: InScope, workflow_id: WorkflowId) -> Found:
    return await scope.find(workflow_id, _kinds(request))


async def _steered(request: Request, scope: InScope, workflow_id: WorkflowId) -> Found:
    return await scope.find(workflow_id, _kinds(request), now=True)


def _kinds(request: Request) -> tuple[str, ...]:
    return EPISODES if request.url.path.startswith("/api/episodes/") else PLANS


Known = Annotated[Found, Depends(_known)]
Steered = Annotated[Found, Depends(_steered)]


async def timeline(scope: InScope, found: Steered, after: Cursor = "", limit: Limit = TIMELINE_EVENTS) -> Any:
    """Return the events of all runs, oldest first: those after a cursor, else the last ones. Asks the worker."""
    events = await scope.client.timeline(found.id, after=after, limit=limit)
    return {"items": events, "cursor": events[-1].cursor if events else after}


async def trail(scope: InScope, found: Known, after: After = 0, limit: Limit = 100) -> Any:
    """Return lines of the evidence trail from the ledger, oldest first."""
    lines = await asyncio.to_thread(
        scope.ledger.events, after=after, limit=limit, workflow_id=found.id, project=found.project
    )
    return {"items": lines, "after": lines[-1].seq if lines else after}


async def artifacts(scope: InScope, found: Known) -> Any:
    """Return the references to what is stored: plans, reports, checks, proofs, the states of checkpoints."""
    return {"items": await _artifacts(scope, found)}


async def artifact(scope: InScope, found: Known, sha256: Digest) -> Response:
    """Return stored bytes, as a download; only where the workspace is on the host of the gateway."""
    known = await _artifacts(scope, found)
    workspace = await workspace_of(scope, found)
    ref, content = await asyncio.to_thread(read_artifact, workspace, found.id, sha256, known)
    # What an agent wrote must never be a page of ours.
    headers = {
        "Content-Disposition": f'attachment; filename="{ref.sha256[:12]}"',
        "X-Artifact-Media-Type": ref.media_type if ref.media_type.isascii() else "",
    }
    return Response(content, headers=headers, media_type=BYTES)


async def pause(scope: InScope, found: Steered, sent: Pause) -> Any:
    """Pause at the next safe point. Idempotent."""
    await told(scope, found, "pause", scope.client.pause(found.id, sent.reason, by=scope.person.name))
    return done(found, "the pause begins at the next safe point")


async def resume(scope: InScope, found: Steered, sent: Resume) -> Any:
    """End a pause that needs no decision; an episode may go on from a checkpoint."""
    work = scope.client.resume(found.id, note=sent.note, checkpoint_id=sent.checkpoint_id, by=scope.person.name)
    await told(scope, found, "resume", work)
    return done(found, "it goes on, unless a question needs a decision")


async def cancel(scope: InScope, found: Steered, sent: Cancel) -> Any:
    """End it for good."""
    await told(scope, found, "cancel", scope.client.cancel(found.id, sent.reason, by=scope.person.name))
    return done(found, "it ends")


async def answer(scope: InScope, found: Steered, sent: Answer) -> Any:
    """Answer a question with one of its options. What asks for an approval needs the role `approver`."""
    return done(found, await answered(scope, found, sent.option, sent.text, sent.question))


async def top_up_episode(scope: InScope, found: Steered, sent: EpisodeTopUp) -> Any:
    """Raise the budget of an episode by these amounts."""
    return done(found, await told(scope, found, "top-up", scope.client.top_up(found.id, **given(sent))))


async def top_up_plan(scope: InScope, found: Steered, sent: PlanTopUpBody) -> Any:
    """Raise the budget of a plan by these amounts."""
    return done(found, await told(scope, found, "top-up", scope.client.top_up(found.id, **given(sent))))


def steering(noun: str) -> APIRouter:
    """Return the paths below `/episodes` or `/plans`."""
    router = APIRouter(prefix=f"/{noun}/{{workflowId}}", tags=[noun])
    binary: dict[int | str, dict[str, Any]] = {
        200: {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
    }
    for path, read, shape in (("timeline", timeline, Timeline), ("trail", trail, Trail)):
        router.add_api_route(f"/{path}", read, response_model=shape)
    router.add_api_route("/artifacts", artifacts, response_model=Artifacts)
    router.add_api_route("/artifacts/{sha256}", artifact, response_class=Response, responses=binary)
    for name, tell, status in (
        ("pause", pause, 202),
        ("resume", resume, 202),
        ("cancel", cancel, 202),
        ("answer", answer, 200),
        ("top-up", top_up_episode if noun == "episodes" else top_up_plan, 200),
    ):
        router.add_api_route(f"/{name}", tell, methods=["POST"], status_code=status, response_model=Done)
    return router


def done(found: Found, message: str) -> dict[str, str]:
    """Return the answer to a message."""
    return {"id": found.id, "message": message}


async def _artifacts(scope: Scope, found: Found) -> list[Any]:
    documents: list[Any] = [found.line.details if found.line is not None else {}]
    if found.kind == "episode":
        records = await asyncio.to_thread(scope.ledger.checkpoints, found.id)
        documents += [record.model_dump(mode="json") for record in records]
    return list(references(documents))
