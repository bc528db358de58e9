"""Paths, bodies, fields and values of the specification of the autonomous loop."""

from typing import Any

import pytest
from fastapi.routing import APIRoute
from gateway.http.bodies import Shown
from pydantic import BaseModel

from gateway.http.loop_plan import Dispatched, GateCheckResult, GateResults, LoopPlan, PlanTask, TaskRun, Verified
from gateway.http.routes import loops, plans
from tightloop.loop.model import PLAN_GENERATION, LoopState, TaskState
from tightloop.loop.plan import ProjectFacts
from tightloop.loop.projection import event_name

PATHS = {
    ("POST", "/projects/{projectId}/plan"): ("packetId", "model"),
    ("POST", "/plans/{planId}/dispatch"): ("parallel",),
    ("POST", "/plans/{planId}/verify"): (),
}
"""The fields of a request that the specification knows, by method and path below `/api`."""
PLAN = (
    "planId", "projectId", "orgId", "runId", "packetId", "status", "tasks", "verifyRunId", "gateResult", "createdAt",
    "updatedAt", "executedAt", "completedAt", "verifiedAt",
)  # fmt: skip
FIELDS: dict[type[Shown], tuple[str, ...]] = {
    LoopPlan: PLAN,
    PlanTask: ("taskId", "description", "priority", "dependencies", "runId", "status"),
    Dispatched: ("planId", "status", "runs", "executedAt"),
    TaskRun: ("taskId", "runId"),
    Verified: ("planId", "status", "verifyRunId", "gateResult", "verifiedAt"),
    GateResults: ("passed", "checks"),
    GateCheckResult: ("name", "passed", "message", "duration"),
}


def _routes() -> dict[tuple[str, str], APIRoute]:
    found = [route for route in (*loops.router.routes, *plans.router.routes) if isinstance(route, APIRoute)]
    return {(method, route.path): route for route in found for method in route.methods}


def _names(model: type[BaseModel]) -> set[str]:
    return set(model.model_json_schema(by_alias=True)["properties"] if model.model_fields else ())


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_path_takes_the_fields_of_the_specification(method: str, path: str) -> None:
    route = _routes()[method, path.replace("{planId}", "{workflowId}")]
    body: Any = next(one for one in route.dependant.body_params if one.name == "sent")
    assert set(PATHS[method, path]) <= _names(body.field_info.annotation)


def test_a_plan_is_read_at_the_path_of_the_specification() -> None:
    assert ("GET", "/plans/{workflowId}") in _routes()


@pytest.mark.parametrize("model", FIELDS)
def test_each_answer_has_the_fields_of_the_specification(model: type[Shown]) -> None:
    assert set(FIELDS[model]) <= _names(model)


def test_states_have_the_values_of_the_specification() -> None:
    assert [state.value for state in LoopState] == [
        "DRAFT", "DISPATCHING", "RUNNING", "VERIFYING", "VERIFIED", "FAILED", "CANCELLED",
    ]  # fmt: skip
    assert {"CREATED", "RUNNING", "AWAITING_RESPONSE", "COMPLETE", "ERROR"} <= {state.value for state in TaskState}
    assert PLAN_GENERATION == "plan_generation"


def test_trail_has_the_events_of_the_specification() -> None:
    facts = ProjectFacts()
    moments = [
        ("completed", "decompose", ""), ("completed", "dispatch", ""), ("waits", "verify", ""),
        ("closed", "", "COMPLETED: all steps are done"), ("closed", "", "FAILED: 1 step failed"),
    ]  # fmt: skip
    assert [event_name(*moment, facts) for moment in moments] == [
        "plan_created", "plan_dispatched", "plan_completed", "plan_verified", "plan_failed",
    ]  # fmt: skip
