"""Paths, bodies, fields and values of the specification of the autonomous loop."""

import pytest
from pydantic import BaseModel

from tightloop.loop.model import PLAN_GENERATION, LoopState, TaskState
from tightloop.loop.plan import ProjectFacts
from tightloop.loop.projection import event_name
from tightloop.operations import OPERATIONS
from tightloop.operations.models import Dispatch, PlanProject, Verify
from tightloop.operations.results import (
    Dispatched,
    GateCheckResult,
    GateResults,
    LoopPlan,
    PlanTask,
    TaskRun,
    Verified,
)

PATHS = (
    ("POST", "/projects/{projectId}/plan"),
    ("POST", "/plans/{planId}/dispatch"),
    ("POST", "/plans/{planId}/verify"),
    ("GET", "/plans/{planId}"),
)
"""Below `/api`."""
PLAN = (
    "planId", "projectId", "orgId", "runId", "packetId", "status", "tasks", "verifyRunId", "gateResult", "createdAt",
    "updatedAt", "executedAt", "completedAt", "verifiedAt",
)  # fmt: skip
FIELDS: dict[type[BaseModel], tuple[str, ...]] = {
    PlanProject: ("packetId", "model"),
    Dispatch: ("parallel",),
    Verify: (),
    LoopPlan: PLAN,
    PlanTask: ("taskId", "description", "priority", "dependencies", "runId", "status"),
    Dispatched: ("planId", "status", "runs", "executedAt"),
    TaskRun: ("taskId", "runId"),
    Verified: ("planId", "status", "verifyRunId", "gateResult", "verifiedAt"),
    GateResults: ("passed", "checks"),
    GateCheckResult: ("name", "passed", "message", "duration"),
}


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_path_of_the_specification_is_there(method: str, path: str) -> None:
    known = {(http.method, http.path) for operation in OPERATIONS for http in operation.http}
    assert (method, path.replace("{planId}", "{workflowId}")) in known


@pytest.mark.parametrize("model", FIELDS)
def test_each_body_has_the_fields_of_the_specification(model: type[BaseModel]) -> None:
    assert set(FIELDS[model]) <= set(model.model_json_schema(by_alias=True).get("properties", ()))


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
