"""The course of the tasks of a project's plan."""

from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.check import Check
from tightloop.loop.model import CheckState, Conflict, LoopRequest, LoopTask, Packet, TaskState
from tightloop.loop.tasks import (
    TaskResult,
    after_round,
    cancelled,
    find_task_problem,
    following,
    in_round,
    parallel_of,
    queued,
    round_request,
    stage_of,
    tasks_by_rules,
)
from tightloop.plan.child import ChildWait, StepNote, StepStatus
from tightloop.plan.validation.validate import check_text
from tightloop.question import Question, QuestionKind

TREE = "a" * 40
REQUEST = LoopRequest(workspace="/home/me/project")


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


def play(tasks: tuple[LoopTask, ...], data: st.DataObject) -> tuple[tuple[LoopTask, ...], int]:
    """Run rounds with outcomes of chance, as plans would: nothing begins before what it needs is complete."""
    tasks, rounds = queued(tasks), 0
    conflicts = data.draw(st.integers(0, 4))
    while wanted := in_round(tasks):
        rounds += 1
        assert rounds <= 40, "rounds come to an end"
        known = {task.task_id: task for task in tasks}
        done = {each.task_id for each in tasks if each.state is TaskState.COMPLETE}
        results = []
        for task in wanted:
            assert task.state is TaskState.QUEUED
            assert all(
                known[each].state is not TaskState.ERROR or each in _resolved(tasks) for each in task.dependencies
            )
            if not done.issuperset(task.dependencies):
                results.append(TaskResult(task_id=task.task_id))
                continue
            outcome = data.draw(st.sampled_from(["done", "failed", "conflict", "lost"]))
            if outcome == "conflict" and conflicts > 0:
                conflicts -= 1
                found = Conflict(base=TREE, tree=TREE, paths=("a.txt",))
                results.append(TaskResult(task_id=task.task_id, reason="conflicts", conflict=found))
            elif outcome == "failed":
                results.append(TaskResult(task_id=task.task_id, reason="it failed"))
            elif outcome == "lost":
                results.append(TaskResult(task_id=task.task_id))
            else:
                done.add(task.task_id)
                results.append(TaskResult(task_id=task.task_id, completed=True, run_id="run"))
        tasks = after_round(tasks, results, reason="the round broke off")
    return tasks, rounds


def _resolved(tasks: tuple[LoopTask, ...]) -> set[str]:
    return {task.conflict_of for task in tasks if task.conflict_of and not task.state.has_ended}


@given(plans(), st.data())
def test_every_task_ends_and_says_why_it_is_not_complete(tasks: tuple[LoopTask, ...], data: st.DataObject) -> None:
    ended, _ = play(tasks, data)
    known = {task.task_id: task for task in ended}
    assert len(known) == len(ended)
    for task in ended:
        assert task.state in (TaskState.COMPLETE, TaskState.ERROR)
        if task.state is TaskState.ERROR:
            assert task.message
        else:
            assert all(known[each].state is TaskState.COMPLETE for each in task.dependencies)


@given(plans(), st.data())
def test_conflict_is_never_lost(tasks: tuple[LoopTask, ...], data: st.DataObject) -> None:
    ended, _ = play(tasks, data)
    for task in ended[len(tasks) :]:
        assert task.conflict is not None
        assert task.conflict_of in {each.task_id for each in ended}
        assert task.definition_of_done[0] == task.conflict.check
        if task.state is TaskState.COMPLETE:
            original = next(each for each in ended if each.task_id == task.conflict_of)
            assert original.state is TaskState.COMPLETE


@given(plans())
def test_round_of_any_tasks_is_a_plan_that_may_run(tasks: tuple[LoopTask, ...]) -> None:
    assert not find_task_problem(tasks)
    request = round_request(tasks, REQUEST, title="t ${x}", parallel=3)
    request.check()
    read, problems = check_text(request.source, name="tasks")
    assert [problem for problem in problems if problem.is_error] == []
    assert read is not None
    assert [step.id for step in read.plan.steps] == [task.task_id for task in tasks]


@given(plans())
def test_cancelled_tasks_have_all_ended(tasks: tuple[LoopTask, ...]) -> None:
    assert all(task.state.has_ended for task in cancelled(queued(tasks)))


def test_tasks_in_a_circle_are_refused() -> None:
    tasks = tuple(
        LoopTask(task_id=name, description="x", dependencies=(needs,)) for name, needs in (("a", "b"), ("b", "a"))
    )
    assert "in a circle" in find_task_problem(tasks)
    assert "not a task" in find_task_problem((tasks[0],))


def test_conflicts_are_resolved_one_after_the_other_before_the_rest() -> None:
    tasks = queued(tuple(LoopTask(task_id=f"ptask_{n}", description="x") for n in (1, 2, 3)))
    tasks = (*tasks[:2], tasks[2].evolve(dependencies=("ptask_1",)))
    conflict = Conflict(base=TREE, tree=TREE, paths=("a",))
    results = [TaskResult(task_id=name, reason="c", conflict=conflict) for name in ("ptask_1", "ptask_2")]
    tasks = after_round(tasks, [*results, TaskResult(task_id="ptask_3")], reason="")
    wanted = in_round(tasks)
    assert [task.conflict_of for task in wanted] == ["ptask_1", "ptask_2"]
    assert (parallel_of(wanted, 8), parallel_of(tasks[2:3], 8)) == (1, 8)
    assert "ptask_4 resolves it" in tasks[0].message


def test_running_tasks_follow_what_their_plan_tells() -> None:
    tasks = queued((LoopTask(task_id="ptask_1", description="x"), LoopTask(task_id="ptask_2", description="y")))
    notes = {"ptask_1": StepNote(step="ptask_1", status=StepStatus.RUNNING, attempt=1)}
    question = Question(id="q1", kind=QuestionKind.WORK, title="do it", options=())
    wait = ChildWait(workflow_id="p.ptask_1.1", question=question, step="ptask_1")
    assert [task.state for task in following(tasks, "p", notes, ())] == [TaskState.RUNNING, TaskState.QUEUED]
    [first, _] = following(tasks, "p", notes, (wait,))
    assert (first.state, first.run_id) == (TaskState.AWAITING_RESPONSE, "p.ptask_1.1")


def test_each_failing_check_is_a_task_and_formatting_comes_last() -> None:
    failing = ("ruff format --check .", "pytest -q", "npm run lint")
    packet = Packet(
        checks=(*(CheckState(run=run, passed=False) for run in failing), CheckState(run="mypy", passed=True))
    )
    tasks = tasks_by_rules(packet, [Check(run=run, timeout_s=9) for run in failing])
    assert [task.definition_of_done[0].run for task in tasks] == ["pytest -q", "npm run lint", "ruff format --check ."]
    assert [task.dependencies for task in tasks] == [(), ("ptask_1",), ("ptask_1", "ptask_2")]
    assert {task.definition_of_done[0].timeout_s for task in tasks} == {9}
    assert [stage_of(run) for run in ("pytest", "black .", "eslint src")] == [0, 2, 1]


def test_goal_is_one_task_that_all_checks_have_to_pass() -> None:
    packet = Packet(goal="add limits", checks=(CheckState(run="pytest", passed=False),))
    [task] = tasks_by_rules(packet, [Check(run="pytest"), Check(run="mypy")])
    assert task.description == "add limits"
    assert [check.run for check in task.definition_of_done] == ["pytest", "mypy"]
