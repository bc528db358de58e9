"""What a worker runs takes an argument, because only arguments are authenticated."""

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from activities.alerts.activity import AlertActivities
from activities.checks.activity import VerificationActivities
from activities.executor.activity import ExecutionActivities
from activities.plan.activity import PlanActivities
from activities.planner.activity import PlanningActivities
from activities.planner.reflection import ReflectionActivities
from activities.proof.activity import ProofActivities
from activities.tracking.activity import TrackingActivities
from activities.workspace.activity import WorkspaceActivities

HOLDERS = (
    AlertActivities,
    ExecutionActivities,
    PlanActivities,
    PlanningActivities,
    ProofActivities,
    ReflectionActivities,
    TrackingActivities,
    VerificationActivities,
    WorkspaceActivities,
)


def activities() -> Iterator[Any]:
    for holder in HOLDERS:
        for _, method in inspect.getmembers(holder, inspect.isfunction):
            if hasattr(method, "__temporal_activity_definition"):
                yield pytest.param(method, id=f"{holder.__name__}.{method.__name__}")


@pytest.mark.parametrize("method", list(activities()))
def test_activity_takes_one_request_that_names_its_scope(method: Any) -> None:
    [request] = [kind for name, kind in get_type_hints(method).items() if name != "return"]
    assert "scope" in request.model_fields or isinstance(getattr(request, "scope", None), property)
