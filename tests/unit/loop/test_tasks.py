"""Decomposition of a project's work into tasks, by rules."""

from tightloop.episode.check import Check
from tightloop.loop.model import CheckState, LoopTask, Packet
from tightloop.loop.plan import find_task_problem, stage_of, tasks_by_rules


def test_tasks_in_a_circle_are_refused() -> None:
    tasks = tuple(
        LoopTask(task_id=name, description="x", dependencies=(needs,)) for name, needs in (("a", "b"), ("b", "a"))
    )
    assert "in a cycle" in find_task_problem(tasks)
    assert "not a task" in find_task_problem((tasks[0],))


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
