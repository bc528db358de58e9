"""Plans of the project loop, with the bodies and names of requirement LO-3: plan, dispatch, verify."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Body
from starlette.responses import Response

from gateway.access.scope import EPISODES, Scope, perform, require_all_projects
from gateway.http.loop_plan import dispatched, loop_plan, verified
from gateway.http.once import InOnce, InScope
from gateway.http.parameters import ProjectId, Wait, WorkflowId
from tightloop.errors import InvalidRequestError
from tightloop.loop.model import LoopRequest, LoopState, LoopStatus
from tightloop.operations import BY_NAME, LOOP
from tightloop.operations.models import Dispatch, Verify
from tightloop.operations.results import Dispatched, Verified
from tightloop.operations.starts import AddProject, PlanProject
from tightloop.operations.wire import given

WAIT_SECONDS = 20
LOOK_SECONDS = 0.3
EXAMPLE = {"packetId": "pkt_0123456789abcdef", "model": "claude-sonnet-4-20250514"}
NEW_PROJECT = {"workspace": "/home/me/orders", "goal": "Add rate limits to the API"}


async def plan_project(
    scope: InScope,
    once: InOnce,
    project_id: ProjectId,
    sent: Annotated[PlanProject, Body(openapi_examples={"a packet": {"value": EXAMPLE}, "the project": {"value": {}}})],
    wait: Wait = WAIT_SECONDS,
) -> Response:
    project = await asyncio.to_thread(scope.ledger.project, project_id)
    if sent.episode and (await scope.find(sent.episode, EPISODES, now=True)).project != project_id:
        raise InvalidRequestError(f"{sent.episode} is not an episode of {project_id}. Name one of this project")
    asked = {**given(sent), "workspace": project.workspace, "queues": scope.queues_of(project)}
    request = LoopRequest.model_validate(asked)
    return await _plan(scope, once, request, wait)


async def add_project(
    scope: InScope,
    once: InOnce,
    sent: Annotated[AddProject, Body(openapi_examples={"a project": {"value": NEW_PROJECT}})],
    wait: Wait = WAIT_SECONDS,
) -> Response:
    require_all_projects(scope, "adds projects")
    request = LoopRequest.model_validate(given(sent))
    await scope.client.check_workspace(request.workspace)
    return await _plan(scope, once, request, wait)


async def _plan(scope: Scope, once: InOnce, request: LoopRequest, wait: int) -> Response:
    async def start(chosen: str | None, request_id: str) -> str:
        return await scope.client.plan_project(request, new_id=chosen, request_id=request_id)

    async def describe(made: str) -> dict[str, Any]:
        await _until(scope, made, lambda seen: bool(seen.tasks) or seen.status is not LoopState.DRAFT, wait)
        found = await scope.find(made, LOOP)
        plan = loop_plan(await _status(scope, made), found.project, scope)
        return plan.model_dump(mode="json", by_alias=True) | {"href": f"/api/plans/{made}"}

    return await once.start("plan_", None, start, describe)


async def dispatch(scope: InScope, once: InOnce, workflow_id: WorkflowId, sent: Dispatch, wait: Wait = 5) -> Response:

    async def work() -> Response:
        await perform(scope, BY_NAME["dispatch"], workflow_id, sent.arguments(), message_id=once.message_id)
        await _until(scope, workflow_id, lambda seen: seen.status is not LoopState.DISPATCHING, wait)
        return _json(dispatched(await _status(scope, workflow_id)))

    return await once.answer(work)


async def verify(
    scope: InScope, once: InOnce, workflow_id: WorkflowId, sent: Verify, wait: Wait = WAIT_SECONDS
) -> Response:

    async def work() -> Response:
        await perform(scope, BY_NAME["verify"], workflow_id, sent.arguments(), message_id=once.message_id)
        await _until(scope, workflow_id, lambda seen: seen.status is not LoopState.VERIFYING, wait)
        return _json(verified(await _status(scope, workflow_id)))

    return await once.answer(work)


async def _status(scope: Scope, plan_id: str) -> LoopStatus:
    status = await scope.client.status(plan_id)
    assert isinstance(status, LoopStatus)
    return status


async def _until(scope: Scope, plan_id: str, is_there: Callable[[LoopStatus], bool], seconds: float) -> None:
    """Wait for a state, but not for longer than a client does."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while clock() < until and not is_there(await _status(scope, plan_id)):
        await asyncio.sleep(LOOK_SECONDS)


def _json(answer: Dispatched | Verified) -> Response:
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")


HANDLERS = (plan_project, add_project, dispatch, verify)
