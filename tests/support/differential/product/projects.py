"""The activities of a project's plan besides those of every plan: inspection, tasks and gates as the script says."""

from typing import Any

from temporalio import activity

from activities.plan.requests import LoadPlanRequest, RevisedPlan, RevisePlanRequest, RunStepRequest
from tests.support.differential.product.plans import PlanFolder, failed
from tests.support.differential.product.world import Step, World, reference
from tightloop.loop.model import PLAN_GENERATION, Conflict, GateCheck, LoopTask
from tightloop.loop.plan import (
    COMMANDS,
    DECOMPOSE,
    FIND_GATES,
    INSPECT,
    ProjectNote,
    resolving,
    with_resolution,
    with_tasks,
)
from tightloop.plan.child import StepResult, StepStatus
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.failing import Recovery
from tightloop.run.question import Option, Question, QuestionKind

__all__ = ["ScriptedProjects", "gate_checks"]


def gate_checks(names: list[str]) -> list[dict[str, Any]]:
    """Return the gates of a request."""
    return [{"run": name, "name": name} for name in names]


class ScriptedProjects:
    """What a worker registers for project plans."""

    world: World
    tree: PlanFolder

    def all(self) -> list[Any]:
        """Return the definitions."""
        return [self.run_project, self.leave_workspace, self.enter_workspace]

    @activity.defn
    async def run_project(self, request: RunStepRequest) -> StepResult:
        gates = self.world.schedule.request["gates"]
        match request.step:
            case _ if request.step in COMMANDS:
                return _waits_for(request)
            case name if name == INSPECT:
                return await self.world.call("inspect", lambda step, _attempt: self._inspected(step))
            case name if name == DECOMPOSE:
                return await self.world.call("tasks", lambda step, _attempt: self._decomposed(step))
            case name if name == FIND_GATES:
                return await self.world.call("gates", lambda _step, _attempt: _found(gates))
        gate = gates[request.item or 0]
        return await self.world.call(f"gate {gate}", lambda step, _attempt: self._gate(step, gate, request))

    def _inspected(self, step: Step) -> StepResult:
        if step.get("s") == "fail":
            return _ends_plan("the project cannot be inspected")
        note = ProjectNote(project="p", goal="a project", packet_id="pkt_0123456789abcdef", packet=reference("packet"))
        return _done(note)

    def _decomposed(self, step: Step) -> StepResult:
        return _ends_plan("it cannot be divided") if step.get("s") == "fail" else _done(ProjectNote())

    def _gate(self, step: Step, name: str, request: RunStepRequest) -> StepResult:
        self.tree.expect(request.expected_tree)
        passed = step.get("s") != "fail"
        check = GateCheck(name=f"gate:{name}", passed=passed, message="" if passed else "red")
        done = _done(ProjectNote(checks=(check,))).evolve(tree=request.expected_tree)
        return done if passed else failed(f"gate:{name} is red").evolve(note=done.note, tree=done.tree)

    def _tasks(self) -> tuple[LoopTask, ...]:
        return tuple(
            LoopTask(
                task_id=f"ptask_{task['id']}",
                description=f"task {task['id']}",
                priority=task["priority"],
                dependencies=tuple(f"ptask_{need}" for need in task["needs"]),
                definition_of_done=tuple({"run": check} for check in task["checks"]),  # type: ignore[misc]
            )
            for task in self.world.schedule.request["tasks"]
        )

    def grow(self, request: RevisePlanRequest) -> RevisedPlan:
        """Return the plan with what one of its steps found."""
        assert request.scope.plan is not None
        plan = self.tree.plans[request.scope.plan.sha256]
        if request.after == DECOMPOSE:
            tasks = self._tasks()
            plan = with_tasks(plan, tasks)
        else:
            conflict = Conflict(base="1" * 40, tree="2" * 40, paths=("log.txt",))
            tasks = (resolving(request.tasks, request.after, conflict),)
            plan = with_resolution(plan, tasks[0])
        ref = self.tree.keep(plan.model_dump_json(by_alias=True, exclude_defaults=True), request.scope.revision + 1)
        return RevisedPlan(plan=ref, graph=compile_graph(plan).pack(), tasks=tasks)

    @activity.defn
    async def leave_workspace(self, request: LoadPlanRequest) -> None:
        del request
        await self.world.call("leave", lambda _step, _attempt: None)

    @activity.defn
    async def enter_workspace(self, request: LoadPlanRequest) -> str:
        del request
        return await self.world.call("enter", lambda _step, _attempt: self.tree.disk)


def _done(note: ProjectNote) -> StepResult:
    return StepResult(status=StepStatus.COMPLETED, note=note.model_dump(mode="json", exclude_defaults=True))


def _found(gates: list[str]) -> StepResult:
    note = ProjectNote(gate_names=tuple(f"gate:{name}" for name in gates))
    if not gates:
        return failed("no gate is known").evolve(note=note.model_dump(mode="json", exclude_defaults=True))
    return _done(note).evolve(counts={"gates": len(gates)})


def _ends_plan(reason: str) -> StepResult:
    return failed(f"{PLAN_GENERATION}: {reason}", mode=PLAN_GENERATION, recover=Recovery.ABORT)


def _waits_for(request: RunStepRequest) -> StepResult:
    if request.answers:
        return StepResult(status=StepStatus.COMPLETED)
    options = (Option(name=request.step),)
    question = Question(id="", kind=QuestionKind.GATE, title=request.step, options=options, command=request.step)
    return StepResult(status=StepStatus.WAITING, question=question)
