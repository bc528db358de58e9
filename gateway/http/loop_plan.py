"""A plan of the project loop in the words of LO-3."""

from gateway.access.scope import Scope
from tightloop.loop.gates import estimate_of
from tightloop.loop.model import GateResult, LoopStatus, LoopTask
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
