"""Tasks of a project plan."""

import re
from collections.abc import Iterable, Mapping

from tightloop.episode.check import Check
from tightloop.loop.model import (
    DESCRIPTION_CHARACTERS,
    TASKS_LIMIT,
    CheckState,
    LoopTask,
    Packet,
)
from tightloop.value import shorten

_FORMATS = re.compile(r"\b(?:format|fmt|black|isort|prettier)\b|gofmt|rustfmt|clang-format")
_LINTS = re.compile(r"\b(?:lint|ruff|eslint|flake8|pylint|stylelint|clippy)\b")


def task_id(number: int) -> str:
    """Return the id of a task of a plan, counted from 1."""
    return f"ptask_{number}"


def stage_of(command: str) -> int:
    """Return when a check is fixed: 0 first, then what lints, then what formats, as each may undo the one before."""
    if _FORMATS.search(command):
        return 2
    return 1 if _LINTS.search(command) else 0


def tasks_by_rules(packet: Packet, checks: Iterable[Check]) -> tuple[LoopTask, ...]:
    """Return the tasks of a packet; none where it shows nothing to do.

    A goal is one task, whose definition of done are all checks. Without one each failing check is a task; what lints
    or formats follows those that come before it.
    """
    known = {check.run: check for check in checks}
    if packet.goal:
        return (
            LoopTask(
                task_id=task_id(1),
                description=shorten(packet.goal, DESCRIPTION_CHARACTERS),
                definition_of_done=tuple(known.values()),
            ),
        )
    failing = sorted((state for state in packet.checks if state.passed is False), key=lambda one: stage_of(one.run))
    failing = failing[:TASKS_LIMIT]
    ids = {state.run: task_id(number) for number, state in enumerate(failing, start=1)}
    return tuple(_fix(state, known.get(state.run) or Check(run=state.run), failing, ids) for state in failing)


def _fix(state: CheckState, check: Check, failing: list[CheckState], ids: Mapping[str, str]) -> LoopTask:
    stage = stage_of(state.run)
    said = f": {state.summary}" if state.summary else ""
    return LoopTask(
        task_id=ids[state.run],
        description=shorten(f"Make `{state.run}` pass{said}", DESCRIPTION_CHARACTERS),
        priority=stage + 1,
        dependencies=tuple(ids[other.run] for other in failing if stage_of(other.run) < stage),
        definition_of_done=(check,),
    )


def find_task_problem(tasks: tuple[LoopTask, ...]) -> str:
    """Return what is wrong with tasks that a planner wrote; empty: nothing."""
    ids = [task.task_id for task in tasks]
    if len(tasks) > TASKS_LIMIT:
        return f"the plan has {len(tasks)} tasks; the maximum is {TASKS_LIMIT}"
    if len(set(ids)) < len(ids):
        return "two tasks have the same id"
    for task in tasks:
        if not task.description.strip():
            return f"{task.task_id} has no description"
        if unknown := [each for each in task.dependencies if each not in ids]:
            return f"{task.task_id} depends on {unknown[0]}, which is not a task of the plan"
    left = {task.task_id: set(task.dependencies) for task in tasks}
    while free := [each for each, needs in left.items() if not needs]:
        left = {each: needs - set(free) for each, needs in left.items() if each not in free}
    if len(left) == 1:
        return f"{next(iter(left))} depends on itself"
    return f"the tasks {', '.join(sorted(left))} depend on each other in a circle" if left else ""
