"""Routes that start episodes and plans."""

import asyncio
from typing import Annotated

from fastapi import Body
from starlette.responses import Response

from gateway.access.scope import EPISODES, PLANS, Scope, check_id_choice, check_workspace, reach, refused_by_state
from gateway.http.requests import IdempotentRequest, InOnce, InScope, NewId, ProjectId, Replace, WorkflowId, location_of
from tightloop.client import EpisodeRequest, PlanRequest
from tightloop.errors import InvalidRequestError
from tightloop.operations import BY_NAME
from tightloop.operations.models import EpisodeBody, EpisodeOfProject, Fork, PlanBody, PlanOfProject, read_fields

EPISODE = {"goal": "Get the tests green", "workspace": "/home/me/orders", "definitionOfDone": [{"run": "pytest -q"}]}
EPISODE_OF_PROJECT = {name: value for name, value in EPISODE.items() if name != "workspace"}
SOURCE = "title: Green tests\nsteps:\n- id: test\n  shell: {run: pytest -q}\n"
PLAN = {"workspace": "/home/me/orders", "source": SOURCE}


async def start_episode(
    scope: InScope,
    once: InOnce,
    body: Annotated[EpisodeBody, Body(openapi_examples={"tests": {"value": EPISODE}})],
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    request = EpisodeRequest.model_validate(read_fields(body))
    request = request.evolve(queues=await check_workspace(scope, request.workspace))
    return await _start(scope, once, request, id, replace=replace)


async def start_episode_of_project(
    scope: InScope,
    once: InOnce,
    project_id: ProjectId,
    body: Annotated[EpisodeOfProject, Body(openapi_examples={"tests": {"value": EPISODE_OF_PROJECT}})],
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    project = await asyncio.to_thread(scope.ledger.project, project_id)
    fields = {**read_fields(body), "workspace": project.workspace, "queues": scope.queues_of(project)}
    return await _start(scope, once, EpisodeRequest.model_validate(fields), id, replace=replace)


async def start_plan(
    scope: InScope,
    once: InOnce,
    body: Annotated[PlanBody, Body(openapi_examples={"one step": {"value": PLAN}})],
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    request = PlanRequest.model_validate(read_fields(body))
    request = request.evolve(queues=await check_workspace(scope, request.workspace))
    return await _start(scope, once, request, id, replace=replace)


async def start_plan_of_project(
    scope: InScope,
    once: InOnce,
    project_id: ProjectId,
    body: Annotated[PlanOfProject, Body(openapi_examples={"one step": {"value": {"source": SOURCE}}})],  # type: ignore[valid-type]
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    project = await asyncio.to_thread(scope.ledger.project, project_id)
    fields = {**read_fields(body), "workspace": project.workspace, "queues": scope.queues_of(project)}
    return await _start(scope, once, PlanRequest.model_validate(fields), id, replace=replace)


async def fork(scope: InScope, once: InOnce, workflow_id: WorkflowId, body: Fork) -> Response:
    operation = BY_NAME["fork"]
    await check_id_choice(scope, body.id, operation.kinds)
    episode = await reach(scope, operation, workflow_id)

    async def start(chosen_id: str | None, request_id: str) -> str:
        by = scope.person.name
        work = scope.client.fork(episode.id, body.checkpoint_id, chosen_id, by=by, request_id=request_id)
        return str(await refused_by_state(scope, operation, episode, work))

    return await once.start("episode-", body.id, start, location_of("episodes"))


async def _start(
    scope: Scope, once: IdempotentRequest, request: EpisodeRequest | PlanRequest, new_id: str | None, *, replace: bool
) -> Response:
    noun, kinds = ("episode", EPISODES) if isinstance(request, EpisodeRequest) else ("plan", PLANS)
    await check_id_choice(scope, new_id, kinds, replace=replace)
    file = request.file if isinstance(request, PlanRequest) else ""
    # A token for all projects may read the whole host anyway; any other stays within its project.
    if scope.person.projects and (file.startswith("/") or ".." in file.split("/")):
        raise InvalidRequestError(
            f"the file {file[:120]!r} is outside the project. Use a path relative to the workspace"
        )

    async def start(chosen_id: str | None, request_id: str) -> str:
        return await scope.client.start(request, new_id=chosen_id, replace=replace, request_id=request_id)

    return await once.start(f"{noun}-", new_id, start, location_of(f"{noun}s"))


HANDLERS = (start_episode, start_episode_of_project, start_plan, start_plan_of_project, fork)
