"""Episodes: start, list, status, checkpoints, differences, and the messages that only they take."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from gateway.access.scope import EPISODES, Scope, check_id_choice, check_workspace, details_of, told, workspace_of
from gateway.http.once import InOnce, InScope, at, read_diff
from gateway.http.parameters import Cursor, Limit, ProjectFilter, ProjectId, WorkflowId
from gateway.http.routes.steering import Parent, Part, Status, done, list_page
from tightloop.client import Check, EpisodeRequest
from tightloop.episode.control import ExecutorAmendment
from tightloop.episode.model import EpisodeStatus
from tightloop.ledger.model import WorkflowFilter
from tightloop.operations.models import Amend, Fork, Respond, Restore
from tightloop.operations.results import Checkpoints, Diff, Done, Episode, Lines, Started
from tightloop.operations.starts import EpisodeBody, EpisodeOfProject
from tightloop.operations.wire import given

EXAMPLE = {"goal": "Get the tests green", "workspace": "/home/me/orders", "definitionOfDone": [{"run": "pytest -q"}]}
OF_PROJECT = {name: value for name, value in EXAMPLE.items() if name != "workspace"}
NewId = Annotated[
    str | None,
    Query(max_length=100, description="Id of the new one; only with a token for all projects.", examples=["nightly-1"]),
]
Replace = Annotated[bool, Query(description="Take the `id` of a closed one; its checkpoints and its timeline stay.")]
Checkpoint = Annotated[str, Query(max_length=20, pattern=r"^(ckpt-)?[0-9]{1,7}$", examples=["ckpt-1"])]


router = APIRouter(tags=["episodes"])


@router.post("/episodes", status_code=201, response_model=Started)
async def start_episode(
    scope: InScope,
    once: InOnce,
    sent: Annotated[EpisodeBody, Body(openapi_examples={"tests": {"value": EXAMPLE}})],
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    """Start an episode in a workspace. What is left out is as the settings say."""
    request = EpisodeRequest.model_validate(given(sent))
    request = request.evolve(queues=await check_workspace(scope, request.workspace))
    return await _start(scope, once, request, id, replace=replace)


@router.post("/projects/{projectId}/episodes", status_code=201, response_model=Started)
async def start_episode_of_project(
    scope: InScope,
    once: InOnce,
    project_id: ProjectId,
    sent: Annotated[EpisodeOfProject, Body(openapi_examples={"tests": {"value": OF_PROJECT}})],
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    """Start an episode in the workspace of a project."""
    project = await asyncio.to_thread(scope.ledger.project, project_id)
    asked = {**given(sent), "workspace": project.workspace, "queues": scope.queues_of(project)}
    request = EpisodeRequest.model_validate(asked)
    return await _start(scope, once, request, id, replace=replace)


async def _start(scope: Scope, once: InOnce, request: EpisodeRequest, new_id: str | None, *, replace: bool) -> Response:
    await check_id_choice(scope, new_id, EPISODES, replace=replace)

    async def start(chosen: str | None, request_id: str) -> str:
        return await scope.client.start(request, new_id=chosen, replace=replace, request_id=request_id)

    return await once.start("episode-", new_id, start, at("episodes"))


@router.get("/episodes", response_model=Lines)
def episodes(
    scope: InScope,
    project: ProjectFilter = "",
    status: Status = "",
    text: Part = "",
    parent: Parent = None,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Any:
    """List episodes, the newest start first."""
    wanted = WorkflowFilter(project=project, kind="episode", status=status, text=text, parent=parent)
    return list_page(scope, wanted, cursor, limit)


@router.get("/episodes/{workflowId}", response_model=Episode)
async def episode(
    scope: InScope,
    workflow_id: WorkflowId,
    fresh: Annotated[bool, Query(description="Ask the workflow itself, which needs a worker.")] = False,
) -> Any:
    """Return an episode as it last was."""
    found = await scope.find(workflow_id, EPISODES, now=fresh)
    return await details_of(scope, found, EpisodeStatus, fresh=fresh)


@router.get("/episodes/{workflowId}/checkpoints", response_model=Checkpoints)
async def checkpoints(scope: InScope, workflow_id: WorkflowId) -> Any:
    """Return the checkpoints, oldest first."""
    found = await scope.find(workflow_id, EPISODES)
    return {"items": await asyncio.to_thread(scope.ledger.checkpoints, found.id)}


@router.get("/episodes/{workflowId}/diff", response_model=Diff)
async def diff(scope: InScope, workflow_id: WorkflowId, before: Checkpoint, after: Checkpoint) -> Any:
    """Return what changed between two checkpoints; only where the workspace is on the host of the gateway."""
    found = await scope.find(workflow_id, EPISODES)
    records = await asyncio.to_thread(scope.ledger.checkpoints, found.id)
    workspace = await workspace_of(scope, found)
    return await asyncio.to_thread(read_diff, workspace, found.id, (before, after), records)


@router.post("/episodes/{workflowId}/respond", response_model=Done)
async def respond(scope: InScope, workflow_id: WorkflowId, sent: Respond) -> Any:
    """Tell the planner something. It grants nothing: that is what `answer` is for."""
    found = await scope.find(workflow_id, EPISODES, now=True)
    work = scope.client.respond(found.id, sent.text, by=scope.person.name)
    return done(found, await told(scope, found, "respond", work))


@router.post("/episodes/{workflowId}/amend", response_model=Done)
async def amend(scope: InScope, workflow_id: WorkflowId, sent: Amend) -> Any:
    """Change the goal, the definition of done, the executor or the planner."""
    found = await scope.find(workflow_id, EPISODES, now=True)
    word = given(sent)
    checks = tuple(Check.model_validate(one) for one in word.pop("definition_of_done", ()))
    executor = ExecutorAmendment.model_validate(word.pop("executor", None) or {})
    changed = None if executor == ExecutorAmendment() else executor
    work = scope.client.amend(found.id, **word, definition_of_done=checks, executor=changed, by=scope.person.name)
    return done(found, await told(scope, found, "amend", work))


@router.post("/episodes/{workflowId}/restore", response_model=Done)
async def restore(scope: InScope, workflow_id: WorkflowId, sent: Restore) -> Any:
    """Go back to a checkpoint, state and files; a closed episode is opened again."""
    found = await scope.find(workflow_id, EPISODES, now=True)
    work = scope.client.restore(found.id, sent.checkpoint_id, reason=sent.reason, by=scope.person.name)
    return done(found, await told(scope, found, "restore", work))


@router.post("/episodes/{workflowId}/fork", status_code=201, response_model=Started)
async def fork(scope: InScope, once: InOnce, workflow_id: WorkflowId, sent: Fork) -> Response:
    """Start a new episode from a checkpoint, in a git worktree of its own."""
    await check_id_choice(scope, sent.id, EPISODES)
    found = await scope.find(workflow_id, EPISODES, now=True)

    async def start(chosen: str | None, request_id: str) -> str:
        by = scope.person.name
        work = scope.client.fork(found.id, sent.checkpoint_id, chosen, by=by, request_id=request_id)
        return str(await told(scope, found, "fork", work))

    return await once.start("episode-", sent.id, start, at("episodes"))
