"""The activities of a project's plan: inspection, tasks and gates as the script says."""

from typing import Any

from temporalio import activity

from activities.loop.gates import (
    FindGatesRequest,
    FoundGates,
    GateActivities,
    GateRun,
    LeaveProjectRequest,
    RunGateRequest,
)
from activities.loop.inspection import Inspected, InspectionActivities, InspectRequest
from activities.loop.tasks import PlannedTasks, PlanTasksRequest, ReadResultsRequest, TaskResults
from tests.support.differential.product.plans import PlanFolder
from tests.support.differential.product.world import Step, World, reference
from tightloop.errors import WorkspaceError
from tightloop.loop.model import Conflict, GateCheck, LoopTask
from tightloop.loop.tasks import TaskResult
from tightloop.plan.child import child_id

__all__ = ["ScriptedProjects", "gate_checks"]
_USED = (GateActivities, InspectionActivities)


def gate_checks(names: list[str]) -> list[dict[str, Any]]:
    """Return the gates of a request."""
    return [{"run": name, "name": name} for name in names]


class ScriptedProjects:
    """What a worker registers for project plans."""

    world: World
    tree: PlanFolder

    def __init__(self) -> None:
        self.results: dict[tuple[str, str], TaskResult] = {}

    def all(self) -> list[Any]:
        """Return the definitions."""
        return [
            self.inspect_project, self.plan_tasks, self.read_results, self.find_gates, self.run_project_gate,
            self.leave_project,
        ]  # fmt: skip

    def note_settled(self, plan_id: str, step: str, attempt: int, *, reason: str, conflict: bool) -> None:
        """Keep what a task came to, as the records of its plan would."""
        self.results[plan_id, step] = TaskResult(
            task_id=step,
            completed=not reason and not conflict,
            run_id=child_id(plan_id, step, attempt),
            reason=reason or ("conflict" if conflict else ""),
            conflict=Conflict(base="1" * 40, tree="2" * 40, paths=("log.txt",)) if conflict else None,
        )

    @activity.defn
    async def inspect_project(self, request: InspectRequest) -> Inspected:
        def effect(step: Step, _attempt: int) -> Inspected:
            if step.get("s") == "fail":
                raise WorkspaceError("the project cannot be inspected")
            return Inspected(
                packet_id="pkt_0123456789abcdef", packet=reference("packet"), project="p", goal=request.goal
            )

        return await self.world.call("inspect", effect)

    @activity.defn
    async def plan_tasks(self, request: PlanTasksRequest) -> PlannedTasks:
        del request
        return await self.world.call("tasks", lambda step, _attempt: self._tasks(step))

    def _tasks(self, step: Step) -> PlannedTasks:
        if step.get("s") == "fail":
            return PlannedTasks(problem="it cannot be divided")
        tasks = tuple(
            LoopTask(
                task_id=f"ptask_{task['id']}",
                description=f"task {task['id']}",
                priority=task["priority"],
                dependencies=tuple(f"ptask_{need}" for need in task["needs"]),
                definition_of_done=tuple({"run": check} for check in task["checks"]),  # type: ignore[misc]
            )
            for task in self.world.schedule.request["tasks"]
        )
        return PlannedTasks(tasks=tasks, model="scripted")

    @activity.defn
    async def read_results(self, request: ReadResultsRequest) -> TaskResults:
        found = tuple(self.results.get((request.plan_id, name), TaskResult(task_id=name)) for name in request.tasks)
        return await self.world.call("results", lambda _step, _attempt: TaskResults(results=found))

    @activity.defn
    async def find_gates(self, request: FindGatesRequest) -> FoundGates:
        return await self.world.call(
            "gates", lambda _step, _attempt: FoundGates(gates=request.asked, tree=self.tree.disk)
        )

    @activity.defn
    async def run_project_gate(self, request: RunGateRequest) -> GateRun:
        name = request.gate.title

        def effect(step: Step, _attempt: int) -> GateRun:
            passed = step.get("s") != "fail"
            return GateRun(checks=(GateCheck(name=f"gate:{name}", passed=passed, message="" if passed else "red"),))

        return await self.world.call(f"gate {name}", effect)

    @activity.defn
    async def leave_project(self, request: LeaveProjectRequest) -> None:
        del request
        await self.world.call("leave", lambda _step, _attempt: None)
