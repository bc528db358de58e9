"""Plans of steps: start, list, status, steps, and the messages that only they take."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Path, Query
from starlette.responses import Response

from gateway.access.scope import PLANS, Scope, answered, check_id_choice, check_workspace, details_of, told
from gateway.http.loop_plan import loop_plan
from gateway.http.once import InOnce, InScope, at
from gateway.http.parameters import Cursor, Limit, ProjectFilter, ProjectId, Wait, WorkflowId
from gateway.http.routes.episodes import NewId, Replace
from gateway.http.routes.steering import Parent, Part, Status, done, list_page
from tightloop.client import PlanRequest
from tightloop.client.plan_checking import check_aside
from tightloop.errors import InvalidRequestError
from tightloop.ledger.model import WorkflowFilter
from tightloop.loop.model import LoopStatus
from tightloop.operations.models import Approval, PlanText, Rejection, Replan
from tightloop.operations.results import Done, Examined, Lines, LoopPlan, Plan, Started, Steps, TextProblem
from tightloop.operations.starts import PlanBody, PlanOfProject
from tightloop.operations.wire import given
from tightloop.plan.request import PlanStatus
from tightloop.plan.validation.validate import check_text
from tightloop.safety.seal import Role

REPLAN_WAIT_SECONDS = 20
SOURCE = "title: Green tests\nsteps:\n- id: test\n  shell: {run: pytest -q}\n"
EXAMPLE = {"workspace": "/home/me/orders", "source": SOURCE}
_STEP = {"max_length": 200, "pattern": r"^[^\x00]*$", "description": "Id of a step, or of its question."}
TaskId = Annotated[str, Path(alias="taskId", **_STEP)]
GateId = Annotated[str, Path(alias="gateId", **_STEP)]


router = APIRouter(tags=["plans"])


@router.post("/plans", status_code=201, response_model=Started)
async def start_plan(
    scope: InScope,
    once: InOnce,
    sent: Annotated[PlanBody, Body(openapi_examples={"one step": {"value": EXAMPLE}})],
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    """Start a plan of steps in a workspace: from its text, a file of the workspace, or a goal."""
    request = PlanRequest.model_validate(given(sent))
    request = request.evolve(queues=await check_workspace(scope, request.workspace))
    return await _start(scope, once, request, id, replace=replace)


@router.post("/projects/{projectId}/plans", status_code=201, response_model=Started)
async def start_plan_of_project(
    scope: InScope,
    once: InOnce,
    project_id: ProjectId,
    sent: Annotated[PlanOfProject, Body(openapi_examples={"one step": {"value": {"source": SOURCE}}})],  # type: ignore[valid-type]
    id: NewId = None,
    replace: Replace = False,
) -> Response:
    """Start a plan of steps in the workspace of a project."""
    project = await asyncio.to_thread(scope.ledger.project, project_id)
    asked = {**given(sent), "workspace": project.workspace, "queues": scope.queues_of(project)}
    request = PlanRequest.model_validate(asked)
    return await _start(scope, once, request, id, replace=replace)


async def _start(scope: Scope, once: InOnce, request: PlanRequest, new_id: str | None, *, replace: bool) -> Response:
    await check_id_choice(scope, new_id, PLANS, replace=replace)
    if scope.person.projects and (request.file.startswith("/") or ".." in request.file.split("/")):
        raise InvalidRequestError(
            f"the file {request.file[:120]!r} is outside the project. Name it relative to the workspace"
        )

    async def start(chosen: str | None, request_id: str) -> str:
        return await scope.client.start(request, new_id=chosen, replace=replace, request_id=request_id)

    return await once.start("plan-", new_id, start, at("plans"))


@router.post("/plans/validate", response_model=Examined)
async def validate(
    sent: Annotated[PlanText, Body(openapi_examples={"one step": {"value": {"source": SOURCE}}})],
) -> Any:
    """Report every problem of the text of a plan; nothing is started."""
    _, problems = await check_aside(check_text, sent.source)
    found = [
        TextProblem(
            severity=one.severity.value,
            message=one.message,
            suggestion=one.suggestion,
            code=one.code,
            line=one.position.line,
            column=one.position.column,
        )
        for one in problems
    ]
    return Examined(ok=not any(one.is_error for one in problems), problems=found)


@router.get("/plans", response_model=Lines)
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
    """List plans, the newest start first."""
    wanted = WorkflowFilter(project=project, kind=kind, status=status, text=text, parent=parent)
    return list_page(scope, wanted, cursor, limit)


@router.get("/plans/{workflowId}", response_model=LoopPlan | Plan)
async def plan(
    scope: InScope,
    workflow_id: WorkflowId,
    fresh: Annotated[bool, Query(description="Ask the workflow itself, which needs a worker.")] = False,
) -> Any:
    """Return a plan as it last was: one of the project loop (`kind: loop`), or one of steps (`kind: plan`)."""
    found = await scope.find(workflow_id, PLANS, now=fresh)
    if found.kind == "loop":
        seen = await details_of(scope, found, LoopStatus, fresh=fresh)
        return loop_plan(seen["details"], found.project, scope)
    return Plan.model_validate(await details_of(scope, found, PlanStatus, fresh=fresh))


@router.get("/plans/{workflowId}/steps", response_model=Steps)
async def steps(scope: InScope, workflow_id: WorkflowId) -> Any:
    """Return the steps as last recorded, in the order of the plan."""
    found = await scope.find(workflow_id, PLANS)
    return {"items": await asyncio.to_thread(scope.ledger.steps, found.id)}


@router.post("/plans/{workflowId}/tasks/{taskId}/run", response_model=Done)
async def run_task(scope: InScope, workflow_id: WorkflowId, task_id: TaskId) -> Any:
    """Start a ready step now, even during a pause, or a failed one again."""
    found = await scope.find(workflow_id, ("plan",), now=True)
    return done(found, await told(scope, found, "run", scope.client.run_step(found.id, task_id, by=scope.person.name)))


@router.post("/plans/{workflowId}/gates/{gateId}/approve", response_model=Done)
async def approve(scope: InScope, workflow_id: WorkflowId, gate_id: GateId, sent: Approval) -> Any:
    """Approve a gate, in the name of the token. Where several people have to agree, each sends it."""
    scope.require(Role.APPROVER)
    found = await scope.find(workflow_id, PLANS, now=True)
    return done(found, await answered(scope, found, sent.option, sent.text, gate_id))


@router.post("/plans/{workflowId}/gates/{gateId}/reject", response_model=Done)
async def reject(scope: InScope, workflow_id: WorkflowId, gate_id: GateId, sent: Rejection) -> Any:
    """Reject a gate; its step then fails with class `policy`."""
    scope.require(Role.APPROVER)
    found = await scope.find(workflow_id, PLANS, now=True)
    return done(found, await answered(scope, found, "reject", sent.text, gate_id))


@router.post("/plans/{workflowId}/replan", response_model=Done)
async def replan(scope: InScope, workflow_id: WorkflowId, sent: Replan, wait: Wait = REPLAN_WAIT_SECONDS) -> Any:
    """Replace the text of a running plan; what is done or runs stays. Without a text a planner writes it."""
    found = await scope.find(workflow_id, ("plan",), now=True)
    work = scope.client.replan(found.id, sent.source, rationale=sent.rationale, by=scope.person.name)
    try:
        async with asyncio.timeout(max(wait, 1)):
            return done(found, await told(scope, found, "replan", work))
    except TimeoutError:
        # Whether a worker has taken it is not known either.
        return done(found, "not answered yet; the plan's `revision` rises when the new text is in force")
