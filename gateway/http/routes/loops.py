"""Routes for the project loop's plans, with the bodies and names from requirement LO-3: plan, dispatch and verify."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Body
from starlette.responses import Response

from gateway.access.scope import EPISODES, Scope, perform, require_all_projects
from gateway.http.requests import InOnce, InScope, ProjectId, Wait, WorkflowId
from tightloop.errors import InvalidRequestError
from tightloop.loop.gates import estimate_of
from tightloop.loop.model import GateResult, LoopRequest, LoopState, LoopStatus, LoopTask
from tightloop.operations import BY_NAME, LOOP
from tightloop.operations.models import AddProject, Dispatch, PlanProject, Verify, read_fields
from tightloop.operations.results import (
    Dispatched,
    GateCheckResult,
    GateResults,
    LoopPlan,
    PlanTask,
    TaskRun,
    Verified,
)


def loop_plan(status: LoopStatus, project: str, scope: Scope) -> LoopPlan:
    """Return the API representation of a project's plan."""
    return LoopPlan(
        plan_id=status.plan_id,
        project_id=project,
        org_id=scope.services.settings.temporal.namespace,
        run_id=status.run_id or None,
        packet_id=status.packet_id or None,
        goal=status.goal,
        status=status.status,
        tasks=[_task(task) for task in status.tasks],
        estimate=estimate_of(status) if "dispatch" in status.possible else None,
        verify_run_id=status.verify_run_id or None,
        gate_result=_gates(status.gate_result),
        questions=list(status.questions),
        reason=status.reason,
        possible=list(status.possible),
        created_at=status.created_at,
        updated_at=status.updated_at,
        executed_at=status.executed_at,
        completed_at=status.completed_at,
        verified_at=status.verified_at,
    )


def dispatch_result(status: LoopStatus) -> Dispatched:
    """Return the response to a dispatch."""
    runs = [TaskRun(task_id=task.task_id, run_id=task.run_id) for task in status.tasks if task.run_id]
    return Dispatched(plan_id=status.plan_id, status=status.status, runs=runs, executed_at=status.executed_at)


def verification_result(status: LoopStatus) -> Verified:
    """Return the response to a verification."""
    return Verified(
        plan_id=status.plan_id,
        status=status.status,
        verify_run_id=status.verify_run_id or None,
        gate_result=_gates(status.gate_result),
        verified_at=status.verified_at,
    )


def _task(task: LoopTask) -> PlanTask:
    return PlanTask(
        task_id=task.task_id,
        description=task.description,
        priority=task.priority,
        dependencies=list(task.dependencies),
        run_id=task.run_id or None,
        status=task.state,
        conflict_of=task.conflict_of or None,
        message=task.message,
    )


def _gates(result: GateResult | None) -> GateResults | None:
    if result is None:
        return None
    checks = [
        GateCheckResult(
            name=check.name,
            passed=check.passed,
            message=check.message,
            duration=check.duration_ms,
            running=check.running,
        )
        for check in result.checks
    ]
    return GateResults(passed=result.passed, checks=checks)


WAIT_SECONDS = 20
LOOK_SECONDS = 0.3
EXAMPLE = {"packetId": "pkt_0123456789abcdef", "model": "claude-sonnet-4-20250514"}
NEW_PROJECT = {"workspace": "/home/me/orders", "goal": "Add rate limits to the API"}


async def plan_project(
    scope: InScope,
    once: InOnce,
    project_id: ProjectId,
    body: Annotated[PlanProject, Body(openapi_examples={"a packet": {"value": EXAMPLE}, "the project": {"value": {}}})],
    wait: Wait = WAIT_SECONDS,
) -> Response:
    project = await asyncio.to_thread(scope.ledger.project, project_id)
    # A person may see both projects, but the files of the episode are in the workspace of its own.
    if body.episode and (await scope.find(body.episode, EPISODES, now=True)).project != project_id:
        raise InvalidRequestError(f"project {project_id} has no episode {body.episode}. Choose one of its episodes")
    fields = {**read_fields(body), "workspace": project.workspace, "queues": scope.queues_of(project)}
    request = LoopRequest.model_validate(fields)
    return await _plan(scope, once, request, wait)


async def add_project(
    scope: InScope,
    once: InOnce,
    body: Annotated[AddProject, Body(openapi_examples={"a project": {"value": NEW_PROJECT}})],
    wait: Wait = WAIT_SECONDS,
) -> Response:
    require_all_projects(scope, "adding a project")
    request = LoopRequest.model_validate(read_fields(body))
    # Refused with the request, not later by a workflow that nobody looks at.
    await scope.client.check_workspace(request.workspace)
    return await _plan(scope, once, request, wait)


async def _plan(scope: Scope, once: InOnce, request: LoopRequest, wait: int) -> Response:
    async def start(chosen_id: str | None, request_id: str) -> str:
        return await scope.client.plan_project(request, new_id=chosen_id, request_id=request_id)

    async def describe(plan_id: str) -> dict[str, Any]:
        await _until(scope, plan_id, lambda seen: bool(seen.tasks) or seen.status is not LoopState.DRAFT, wait)
        workflow = await scope.find(plan_id, LOOP)
        plan = loop_plan(await _status(scope, plan_id), workflow.project, scope)
        return plan.model_dump(mode="json", by_alias=True) | {"href": f"/api/plans/{plan_id}"}

    return await once.start("plan_", None, start, describe)


async def dispatch(scope: InScope, once: InOnce, workflow_id: WorkflowId, body: Dispatch, wait: Wait = 5) -> Response:

    async def work() -> Response:
        await perform(scope, BY_NAME["dispatch"], workflow_id, body.arguments(), message_id=once.message_id)
        # The ids of the runs are known only once they have been started.
        await _until(scope, workflow_id, lambda seen: seen.status is not LoopState.DISPATCHING, wait)
        return _json(dispatch_result(await _status(scope, workflow_id)))

    return await once.answer(work)


async def verify(
    scope: InScope, once: InOnce, workflow_id: WorkflowId, body: Verify, wait: Wait = WAIT_SECONDS
) -> Response:

    async def work() -> Response:
        await perform(scope, BY_NAME["verify"], workflow_id, body.arguments(), message_id=once.message_id)
        await _until(scope, workflow_id, lambda seen: seen.status is not LoopState.VERIFYING, wait)
        return _json(verification_result(await _status(scope, workflow_id)))

    return await once.answer(work)


async def _status(scope: Scope, plan_id: str) -> LoopStatus:
    status = await scope.client.status(plan_id)
    assert isinstance(status, LoopStatus)
    return status


async def _until(scope: Scope, plan_id: str, is_there: Callable[[LoopStatus], bool], seconds: float) -> None:
    """Poll until a condition is true or the time limit is reached."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while clock() < until and not is_there(await _status(scope, plan_id)):
        await asyncio.sleep(LOOK_SECONDS)


def _json(answer: Dispatched | Verified) -> Response:
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json")


HANDLERS = (plan_project, add_project, dispatch, verify)
