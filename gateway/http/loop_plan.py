"""A plan of the project loop in the words of LO-3."""

from datetime import datetime
from typing import Literal

from gateway.access.scope import Scope
from gateway.http.bodies import Shown, shown
from tightloop.loop.gates import Estimate, estimate_of
from tightloop.loop.model import GateResult, LoopState, LoopStatus, LoopTask, TaskState
from tightloop.question import Question


class PlanTask(Shown):
    """A task, which becomes a run of its own."""

    task_id: str
    description: str
    priority: int
    dependencies: list[str]
    """Tasks that must be complete before."""
    run_id: str | None = None
    """The episode, once dispatched."""
    status: TaskState
    conflict_of: str | None = None
    """Of a task that resolves a conflict: the task whose result could not be merged."""
    message: str = ""
    """Why it is in its state."""


class GateCheckResult(Shown):
    """The result of one gate."""

    name: str
    passed: bool
    message: str
    duration: int
    """Milliseconds."""
    running: bool = False
    """It has not ended; `passed` says nothing yet."""


class GateResults(Shown):
    """The result of `gate:all`."""

    passed: bool
    checks: list[GateCheckResult]


class LoopPlan(Shown):
    """A plan of the project loop."""

    kind: Literal["loop"] = "loop"
    plan_id: str
    project_id: str
    org_id: str
    """The namespace of Temporal."""
    run_id: str | None = None
    """The episode that was inspected."""
    packet_id: str | None = None
    goal: str = ""
    status: LoopState
    tasks: list[PlanTask]
    estimate: shown(Estimate) | None = None  # type: ignore[valid-type]
    """What dispatching may take at most; null once it is dispatched."""
    verify_run_id: str | None = None
    gate_result: GateResults | None = None
    questions: list[shown(Question)] = []  # type: ignore[valid-type] # noqa: RUF012
    reason: str = ""
    possible: list[str] = []  # noqa: RUF012
    """What can be done now: `dispatch`, `verify`, `cancel`."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    executed_at: datetime | None = None
    """When it was dispatched."""
    completed_at: datetime | None = None
    """When all tasks had ended."""
    verified_at: datetime | None = None


class TaskRun(Shown):
    """The run of a task."""

    task_id: str
    run_id: str


class Dispatched(Shown):
    """What dispatching started."""

    plan_id: str
    status: LoopState
    runs: list[TaskRun]
    executed_at: datetime | None = None


class Verified(Shown):
    """How the gates ended; while they run the status is VERIFYING."""

    plan_id: str
    status: LoopState
    verify_run_id: str | None = None
    gate_result: GateResults | None = None
    verified_at: datetime | None = None


def loop_plan(status: LoopStatus, project: str, scope: Scope) -> LoopPlan:
    """Return a plan of a project as HTTP shows it."""
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


def dispatched(status: LoopStatus) -> Dispatched:
    """Return what dispatching started."""
    runs = [TaskRun(task_id=task.task_id, run_id=task.run_id) for task in status.tasks if task.run_id]
    return Dispatched(plan_id=status.plan_id, status=status.status, runs=runs, executed_at=status.executed_at)


def verified(status: LoopStatus) -> Verified:
    """Return how the gates ended."""
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
