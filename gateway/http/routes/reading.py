"""Routes that read episodes and plans."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from starlette.responses import Response

from gateway.access.scope import (
    EPISODES,
    PLANS,
    Scope,
    WorkflowRef,
    details_of,
    fresh_page,
    require_all_projects,
    workspace_of,
)
from gateway.http.requests import (
    After,
    Checkpoint,
    Cursor,
    Digest,
    Fresh,
    FreshList,
    InScope,
    Limit,
    Parent,
    Part,
    Position,
    ProjectFilter,
    RunId,
    Status,
    WorkflowId,
)
from gateway.http.routes.loops import loop_plan
from tightloop.client.proof.statement import statement_of
from tightloop.client.proof.verify import find_proof
from tightloop.client.store import Store, TreeChange, plan_change, read_number
from tightloop.episode.checkpoint import CheckpointRecord
from tightloop.episode.model import EpisodeStatus
from tightloop.errors import ArtifactMissingError, InvalidRequestError
from tightloop.ledger.model import WorkflowFilter
from tightloop.loop.model import LoopStatus
from tightloop.operations.models import make_output_model
from tightloop.operations.results import Asked, ChangedFile, Diff, Plan
from tightloop.plan.request import PlanStatus
from tightloop.value import ArtifactRef

TIMELINE_EVENTS = 200
BYTES = "application/octet-stream"
IN_TOTO = "application/vnd.in-toto+json"
PATCH_CHARACTERS = 2_000_000
DIGEST = re.compile(r"[0-9a-f]{64}")


async def _find_workflow(request: Request, scope: InScope, workflow_id: WorkflowId) -> WorkflowRef:
    return await scope.find(workflow_id, _kinds(request))


async def _find_current_workflow(request: Request, scope: InScope, workflow_id: WorkflowId) -> WorkflowRef:
    return await scope.find(workflow_id, _kinds(request), now=True)


def _kinds(request: Request) -> tuple[str, ...]:
    return EPISODES if request.url.path.startswith("/api/episodes/") else PLANS


Known = Annotated[WorkflowRef, Depends(_find_workflow)]
# For routes that ask Temporal: its newest run under this id may belong to another project.
Steered = Annotated[WorkflowRef, Depends(_find_current_workflow)]


async def episodes(
    scope: InScope,
    project: ProjectFilter = "",
    status: Status = "",
    text: Part = "",
    parent: Parent = None,
    cursor: Cursor = "",
    limit: Limit = 50,
    fresh: FreshList = False,
) -> Any:
    workflow_filter = WorkflowFilter(project=project, kind="episode", status=status, text=text, parent=parent)
    return await _page(scope, workflow_filter, cursor, limit, is_fresh=fresh)


async def plans(
    scope: InScope,
    kind: Annotated[
        Literal["plan", "loop"],
        Query(description="`plan` for plans made of steps, or `loop` for project loop plans."),
    ] = "loop",
    project: ProjectFilter = "",
    status: Status = "",
    text: Part = "",
    parent: Parent = None,
    cursor: Cursor = "",
    limit: Limit = 50,
    fresh: FreshList = False,
) -> Any:
    workflow_filter = WorkflowFilter(project=project, kind=kind, status=status, text=text, parent=parent)
    return await _page(scope, workflow_filter, cursor, limit, is_fresh=fresh)


async def _page(
    scope: Scope, workflow_filter: WorkflowFilter, cursor: str, limit: int, *, is_fresh: bool
) -> dict[str, Any]:
    # A cursor is a position in the ledger, which Temporal's list does not know.
    if is_fresh and cursor:
        raise InvalidRequestError("a fresh list has only one page. Omit either cursor or fresh")
    if is_fresh:
        page = await fresh_page(scope, workflow_filter, limit)
    else:
        page = await asyncio.to_thread(scope.ledger.workflows, workflow_filter, cursor=cursor, limit=limit)
    return {"items": page.lines, "cursor": page.cursor}


async def episode(
    scope: InScope,
    workflow_id: WorkflowId,
    fresh: Fresh = False,
) -> Any:
    workflow = await scope.find(workflow_id, EPISODES, now=fresh)
    return await details_of(scope, workflow, EpisodeStatus, is_fresh=fresh)


async def plan(
    scope: InScope,
    workflow_id: WorkflowId,
    fresh: Fresh = False,
) -> Any:
    """A project's plan has `kind: loop`, and a plan of steps has `kind: plan`."""
    workflow = await scope.find(workflow_id, PLANS, now=fresh)
    if workflow.kind == "loop":
        row = await details_of(scope, workflow, LoopStatus, is_fresh=fresh)
        return loop_plan(row["details"], workflow.project, scope)
    return Plan.model_validate(await details_of(scope, workflow, PlanStatus, is_fresh=fresh))


async def timeline(scope: InScope, workflow: Steered, after: Position = "", limit: Limit = TIMELINE_EVENTS) -> Any:
    events = await scope.client.timeline(workflow.id, after=after, limit=limit)
    return {"items": events, "cursor": events[-1].cursor if events else after}


async def trail(scope: InScope, workflow: Known, after: After = 0, limit: Limit = 100) -> Any:
    lines = await asyncio.to_thread(
        scope.ledger.events, after=after, limit=limit, workflow_id=workflow.id, project=workflow.project
    )
    return {"items": lines, "after": lines[-1].seq if lines else after}


async def checkpoints(scope: InScope, workflow_id: WorkflowId) -> Any:
    workflow = await scope.find(workflow_id, EPISODES)
    return {"items": await asyncio.to_thread(scope.ledger.checkpoints, workflow.id)}


async def diff(scope: InScope, workflow_id: WorkflowId, before: Checkpoint, after: Checkpoint) -> Any:
    workflow = await scope.find(workflow_id, EPISODES)
    records = await asyncio.to_thread(scope.ledger.checkpoints, workflow.id)
    workspace = await workspace_of(scope, workflow)
    return await asyncio.to_thread(_read_diff, workspace, workflow.id, (before, after), records)


async def artifacts(scope: InScope, workflow: Known) -> Any:
    return {"items": await _artifacts(scope, workflow)}


async def artifact(scope: InScope, workflow: Known, sha256: Digest) -> Response:
    refs = await _artifacts(scope, workflow)
    workspace = await workspace_of(scope, workflow)
    ref, content = await asyncio.to_thread(_read_artifact, workspace, workflow.id, sha256, refs)
    # Sent as a download: content written by an agent must never be displayed as a page of this origin.
    headers = {
        "Content-Disposition": f'attachment; filename="{ref.sha256[:12]}"',
        # An agent chooses the media type, and headers are Latin-1.
        "X-Artifact-Media-Type": ref.media_type if ref.media_type.isascii() else "",
    }
    return Response(content, headers=headers, media_type=BYTES)


async def asked(scope: InScope, workflow: Steered) -> Any:
    request = await scope.client.request(workflow.id)
    document = make_output_model(type(request)).model_validate(request).model_dump(mode="json", by_alias=True)
    return Asked.model_validate({"kind": workflow.kind, "request": document})


async def runs(scope: InScope, workflow: Steered) -> Any:
    # An id may be reused, so an earlier run may belong to another project.
    require_all_projects(scope, "listing the runs of a workflow")
    return {"items": await scope.client.runs(workflow.id)}


async def history(scope: InScope, workflow: Steered, run_id: RunId) -> Response:
    require_all_projects(scope, "reading a history")
    return Response(await scope.client.history(workflow.id, run_id=run_id), media_type="application/json")


async def proof(scope: InScope, workflow_id: WorkflowId) -> Response:
    workflow = await scope.find(workflow_id, EPISODES, now=True)
    statement = statement_of(await find_proof(scope.client, workflow.id))
    return Response(statement.content, media_type=IN_TOTO)


async def steps(scope: InScope, workflow_id: WorkflowId) -> Any:
    workflow = await scope.find(workflow_id, PLANS)
    return {"items": await asyncio.to_thread(scope.ledger.steps, workflow.id)}


async def _artifacts(scope: Scope, workflow: WorkflowRef) -> list[Any]:
    documents: list[Any] = [workflow.line.details if workflow.line is not None else {}]
    if workflow.kind == "episode":
        records = await asyncio.to_thread(scope.ledger.checkpoints, workflow.id)
        documents += [record.model_dump(mode="json") for record in records]
    return list(_references(documents))


def _references(document: Any) -> Iterator[ArtifactRef]:
    """Yield the artifact references in a document, without duplicates."""
    digests: set[str] = set()
    for ref in _walk(document):
        if ref.sha256 not in digests:
            digests.add(ref.sha256)
            yield ref


def _walk(document: Any) -> Iterator[ArtifactRef]:
    if isinstance(document, dict):
        digest = document.get("sha256")
        # Statuses, checkpoints and outputs all hold references, so they are recognised by their shape.
        if isinstance(digest, str) and DIGEST.fullmatch(digest) and "size_bytes" in document:
            yield ArtifactRef.model_validate(document)
        for value in document.values():
            yield from _walk(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _walk(value)


def _read_artifact(
    workspace: str, workflow_id: str, sha256: str, refs: Sequence[ArtifactRef]
) -> tuple[ArtifactRef, bytes]:
    """Return a stored artifact that a workflow refers to.

    Raises:
        ArtifactMissingError: the workflow has no such reference, or the artifact is not on this host.
        ArtifactCorruptError: the artifact is damaged.
    """
    ref = next((entry for entry in refs if entry.sha256 == sha256), None)
    if ref is None:
        raise ArtifactMissingError(
            f"{workflow_id} has no artifact {sha256[:12]!r}. List all artifacts with: GET .../{workflow_id}/artifacts"
        )
    return ref, Store(Path(workspace), workflow_id).artifact(ref)


def _read_diff(workspace: str, episode_id: str, names: tuple[str, str], records: Sequence[CheckpointRecord]) -> Diff:
    """Return the changes between two checkpoints.

    Raises:
        InvalidRequestError: a checkpoint does not exist.
        WorkspaceError: the snapshots are not on this host.
    """
    numbers = [read_number(episode_id, name) for name in names]
    change = TreeChange(Path(workspace), episode_id, numbers, records)
    patch = change.text()
    try:
        plan = plan_change(Store(Path(workspace), episode_id), numbers, records)
    except ArtifactMissingError:
        # Snapshots may outlive artifacts, so the diff of the files is still available.
        plan = ""
    return Diff(
        before=f"ckpt-{numbers[0]}",
        after=f"ckpt-{numbers[1]}",
        files=[ChangedFile(path=file.path, added=file.added, removed=file.removed) for file in change.files()],
        patch=patch[:PATCH_CHARACTERS],
        cut=len(patch) > PATCH_CHARACTERS,
        plan_change=plan,
    )


HANDLERS = (
    episodes, plans, episode, plan, timeline, trail, checkpoints, diff, artifacts, artifact, asked, runs, history,
    proof, steps,
)  # fmt: skip
RAW: dict[str, dict[int | str, dict[str, Any]]] = {
    "artifact": {200: {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}},
    "history": {200: {"content": {"application/json": {"schema": {"type": "object"}}}}},
    "proof": {
        200: {
            "description": "An unsigned in-toto Statement v1.",
            "content": {IN_TOTO: {"schema": {"type": "object"}}},
        }
    },
}
"""Descriptions of the responses without a model, for the OpenAPI document."""
