"""The plan of a project: what it becomes with tasks and conflicts, and how the loop shows it."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.check import Check
from tightloop.errors import InvalidRequestError
from tightloop.loop.model import CONFLICT, Conflict, GateCheck, LoopRequest, LoopState, LoopStatus, LoopTask, TaskState
from tightloop.loop.plan import (
    DECOMPOSE,
    DISPATCH,
    INSPECT,
    VERIFY,
    ProjectFacts,
    ProjectInput,
    ProjectNote,
    find_task_problem,
    project_plan,
    resolving,
    with_resolution,
    with_tasks,
)
from tightloop.loop.projection import event_name, loop_status
from tightloop.plan.child import StepFailure, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.engine.graph import compile_graph
from tightloop.plan.engine.revision import carry_over, diff_plans
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.failing import FailureClass
from tightloop.plan.request import PlanStatus, StepLine
from tightloop.plan.validation import check_text

TREE = "a" * 40
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = LoopRequest.model_validate(
    {"workspace": "/home/me/project", "goal": "cost ${x}", "gates": ["echo ${HOME}"], "budget": {"max_iterations": 3}}
)
CONFLICTING = Conflict(base=TREE, tree=TREE, paths=("a.txt",))


@st.composite
def plans(draw: st.DrawFn) -> tuple[LoopTask, ...]:
    """Tasks that depend on earlier ones only."""
    size = draw(st.integers(1, 8))
    tasks = []
    for number in range(1, size + 1):
        before = [f"ptask_{each}" for each in range(1, number)]
        needs = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
        tasks.append(
            LoopTask(
                task_id=f"ptask_{number}",
                description=draw(st.text(min_size=1, max_size=30).filter(str.strip)),
                dependencies=tuple(needs),
                definition_of_done=(Check(run="true"),),
            )
        )
    return tuple(tasks)


class Project:
    """A project's plan under way, with ends of its steps that a test decides on."""

    def __init__(self, tasks: tuple[LoopTask, ...]) -> None:
        self.plan = project_plan(REQUEST)
        self.facts = ProjectFacts(created_at=NOW)
        self.failures: dict[str, StepFailure] = {}
        self.schedule = Schedule(compile_graph(self.plan))
        self.complete(INSPECT)
        [number] = self.schedule.take(9)
        self.schedule.retry_later(number)
        self.revise(with_tasks(self.plan, tasks), tasks)
        self.schedule.finish(self.number(DECOMPOSE), StepStatus.COMPLETED)

    def number(self, name: str) -> int:
        found = self.schedule.find(name)
        assert found is not None
        return found

    def complete(self, name: str) -> None:
        if self.schedule.status(self.number(name)) is not StepStatus.RUNNING:
            assert name in [self.schedule.name(number) for number in self.schedule.take(99)]
        self.schedule.finish(self.number(name), StepStatus.COMPLETED)

    def revise(self, plan: Plan, added: tuple[LoopTask, ...]) -> None:
        graph, found = compile_graph(plan), diff_plans(self.plan, plan)
        assert not found.redone
        state = carry_over(self.schedule.graph, self.schedule.save(), graph, found.redone, keeps_failures=True).state
        self.plan, self.schedule = plan, Schedule(graph, state)
        self.facts = self.facts.evolve(tasks=(*self.facts.tasks, *added))

    def wait(self, step: str, **times: datetime) -> None:
        """Let a person go on."""
        assert self.schedule.take_this(self.number(step))
        self.facts = self.facts.evolve(**times)
        self.complete(step)

    def fail(self, name: str, reason: str = "it failed", mode: str = "") -> None:
        self.failures[name] = StepFailure(failure_class=FailureClass.LOGIC, reason=reason, mode=mode)
        self.schedule.fail(self.number(name), alternate=bool(mode))

    def conflict(self, name: str) -> None:
        self.schedule.retry_later(self.number(name))
        task = resolving(self.facts.tasks, name, CONFLICTING)
        self.revise(with_resolution(self.plan, task), (task,))
        self.fail(name, "conflicts", CONFLICT)

    def status(self, status: str = "running", reason: str = "") -> LoopStatus:
        names = [self.schedule.name(number) for number in range(len(self.schedule))]
        lines = {name: self.line(name) for name in names}
        return loop_status(PlanStatus(plan_id="plan_1", status=status, reason=reason), REQUEST, self.facts, lines)

    def line(self, name: str) -> StepLine:
        number = self.number(name)
        return StepLine(
            id=name,
            status=self.schedule.status(number),
            attempt=self.schedule.attempt(number),
            failure=self.failures.get(name),
        )

    def dispatched(self) -> "Project":
        self.facts = self.facts.evolve(planned_at=NOW)
        self.wait(DISPATCH, executed_at=NOW, parallel=4)
        return self

    def running(self) -> Iterator[str]:
        """Yield the tasks that run, as long as there are any."""
        while started := [self.schedule.name(number) for number in self.schedule.take(99)]:
            if started == [VERIFY]:
                self.schedule.mark_waiting(self.number(VERIFY))
                return
            yield from started


def tasks_of(*needs: tuple[int, ...]) -> tuple[LoopTask, ...]:
    return tuple(
        LoopTask(
            task_id=f"ptask_{number}",
            description=f"task {number}",
            dependencies=tuple(f"ptask_{need}" for need in before),
            definition_of_done=(Check(run="true"),),
        )
        for number, before in enumerate(needs, start=1)
    )


@given(plans())
def test_plan_of_any_tasks_may_run_and_holds_no_reference_of_its_texts(tasks: tuple[LoopTask, ...]) -> None:
    assert not find_task_problem(tasks)
    plan = with_tasks(project_plan(REQUEST), tasks)
    read, problems = check_text(plan.model_dump_json(by_alias=True, exclude_defaults=True), name="project")
    assert [str(problem) for problem in problems] == []
    assert read is not None
    assert read.plan == plan
    assert plan.steps[0].project is not None
    assert plan.steps[0].project.given["goal"] == "cost $${x}"


@given(plans(), st.data())
def test_every_task_ends_and_then_the_gates_can_be_run(tasks: tuple[LoopTask, ...], data: st.DataObject) -> None:
    project = Project(tasks).dispatched()
    conflicts = 0
    for name in project.running():
        outcome = data.draw(st.sampled_from(["done", "failed", "conflict"]))
        if outcome == "conflict" and conflicts < 4:
            conflicts += 1
            project.conflict(name)
        elif outcome == "failed":
            project.fail(name)
        else:
            project.complete(name)
    assert project.schedule.status(project.number(VERIFY)) is StepStatus.WAITING
    known = {task.task_id: task for task in project.status().tasks}
    assert len(known) == len(tasks) + conflicts
    for task in known.values():
        assert task.state in (TaskState.COMPLETE, TaskState.ERROR)
        if task.state is TaskState.ERROR:
            assert task.message
        else:
            assert all(known[need].state is TaskState.COMPLETE for need in task.dependencies)
        if task.conflict_of and task.state is TaskState.COMPLETE:
            assert known[task.conflict_of].state is TaskState.COMPLETE


def test_draft_has_no_tasks_before_they_can_be_dispatched() -> None:
    project = Project(tasks_of(()))
    assert project.status().tasks == ()
    project.facts = project.facts.evolve(planned_at=NOW)
    status = project.status()
    assert (status.status, status.possible) == (LoopState.DRAFT, ("dispatch", "cancel"))
    assert [task.state for task in status.tasks] == [TaskState.CREATED]


def test_states_follow_what_people_asked_for_and_what_began() -> None:
    project = Project(tasks_of((), (1,))).dispatched()
    assert project.status().status is LoopState.DISPATCHING
    assert [task.state for task in project.status().tasks] == [TaskState.QUEUED, TaskState.QUEUED]
    running = project.running()
    assert next(running) == "ptask_1"
    status = project.status()
    assert (status.status, status.tasks[0].run_id) == (LoopState.RUNNING, "plan_1.ptask_1.1")
    assert [task.state for task in status.tasks] == [TaskState.RUNNING, TaskState.QUEUED]
    project.facts = project.facts.evolve(completed_at=NOW)
    assert "verify" in project.status().possible
    project.facts = project.facts.evolve(verify_asked_at=NOW)
    status = project.status()
    assert (status.status, status.verify_run_id) == (LoopState.VERIFYING, "verify_plan_1_1")


def test_failed_task_and_those_behind_it_say_why() -> None:
    project = Project(tasks_of((), (1,), ())).dispatched()
    running = project.running()
    assert [next(running), next(running)] == ["ptask_1", "ptask_3"]
    project.fail("ptask_1", "the tests fail")
    first, second, third = project.status().tasks
    assert (first.state, first.message) == (TaskState.ERROR, "the tests fail")
    assert (second.state, second.message) == (TaskState.ERROR, "the task depends on ptask_1, which did not complete")
    assert third.state is TaskState.RUNNING


def test_conflict_becomes_a_task_and_what_depends_on_it_waits_for_that() -> None:
    project = Project(tasks_of((), (), (1, 2))).dispatched()
    running = project.running()
    assert [next(running), next(running)] == ["ptask_1", "ptask_2"]
    project.complete("ptask_1")
    project.conflict("ptask_2")
    _, second, third, fourth = project.status().tasks
    assert (second.state, second.message) == (TaskState.ERROR, "ptask_4 will resolve the conflict: conflicts")
    assert (third.state, fourth.state) == (TaskState.QUEUED, TaskState.QUEUED)
    assert fourth.definition_of_done[0] == CONFLICTING.check
    assert next(running) == "ptask_4"
    project.complete("ptask_4")
    _, second, _, _ = project.status().tasks
    assert (second.state, second.message) == (TaskState.COMPLETE, "ptask_4 resolved its conflict")
    assert next(running) == "ptask_3"


def test_conflicts_of_conflicts_are_bounded() -> None:
    tasks = tasks_of(())
    for _ in range(20):
        tasks = (*tasks, resolving(tasks, tasks[-1].task_id, CONFLICTING))
    with pytest.raises(InvalidRequestError, match="remain after 20 conflict-resolution tasks"):
        resolving(tasks, tasks[-1].task_id, CONFLICTING)


def test_gates_are_shown_in_their_order_and_decide_with_the_tasks() -> None:
    project = Project(tasks_of(())).dispatched()
    project.fail(next(project.running()))
    passed, failed = GateCheck(name="gate:a", passed=True), GateCheck(name="gate:b/c", passed=False)
    inside = GateCheck(name="gate:b/c/x", passed=False, within=True)
    project.facts = project.facts.evolve(verify_asked_at=NOW, gate_names=("gate:a", "gate:b/c"))
    project.facts = project.facts.with_note("gate-2", ProjectNote(checks=(failed, inside)))
    project.facts = project.facts.with_note("gate-1", ProjectNote(checks=(passed,)))
    status = project.status("failed", "2 steps failed")
    assert status.gate_result is not None
    assert [check.name for check in status.gate_result.checks] == ["gate:a", "gate:b/c", "gate:b/c/x"]
    assert (status.status, status.reason) == (LoopState.FAILED, "gate:b/c did not pass; not complete: ptask_1")
    project.facts = project.facts.with_note("gate-2", ProjectNote(checks=(failed.evolve(passed=True),)))
    status = project.status("failed", "1 step failed")
    assert status.gate_result is not None
    assert (status.gate_result.passed, status.reason) == (True, "not complete: ptask_1")


def test_project_that_cannot_be_planned_says_so_in_a_check() -> None:
    project = Project(())
    status = project.status("failed", "decompose: plan_generation: the goal contradicts itself")
    assert status.gate_result is not None
    [check] = status.gate_result.checks
    assert (check.name, check.passed, check.message) == ("plan_generation", False, "the goal contradicts itself")
    assert status.reason == check.message


def test_moments_of_the_plan_have_the_names_of_the_loop() -> None:
    facts = ProjectFacts(tasks=tasks_of(()), gate_names=("gate:a",))
    assert event_name("completed", DECOMPOSE, "1 task", facts) == "plan_created"
    assert event_name("waits", VERIFY, "", facts) == "plan_completed"
    assert event_name("started", "ptask_1", "", facts) == "task_running"
    assert event_name("failed", "gate-1", "", facts) == "gate_failed"
    assert event_name("closed", "", "COMPLETED: fine", facts) == "plan_verified"
    assert event_name("closed", "", "FAILED: no", facts) == "plan_failed"
    assert event_name("waits", DISPATCH, "", facts) == ""


def test_input_that_cannot_work_becomes_a_sentence_and_no_plan() -> None:
    assert ProjectInput.model_validate({"workspace": "/home/me/project"}).plan.source
    assert ProjectInput.model_validate({"workspace": "/home/me/project", "parallel": 0}).plan.source == ""
    assert "Valid input" in ProjectInput.model_validate({"workspace": 3}).plan.problem
    assert ProjectInput.model_validate({"workspace": "/w", "goals": "x"}).plan.unknown
