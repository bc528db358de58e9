"""Tasks of a project plan."""

import re
from collections.abc import Iterable, Mapping

from tightloop.episode.check import Check
from tightloop.loop.model import (
    DESCRIPTION_CHARACTERS,
    MESSAGE_CHARACTERS,
    TASKS_LIMIT,
    CheckState,
    Conflict,
    LoopRequest,
    LoopTask,
    Packet,
    TaskState,
)
from tightloop.plan.child import ChildWait, StepNote, StepStatus, child_id
from tightloop.plan.document.action import EpisodeAction, MergeStart
from tightloop.plan.document.failing import Retry
from tightloop.plan.document.plan import OnPlanFailure, Plan
from tightloop.plan.document.step import Step, StepKind
from tightloop.plan.request import PlanRequest
from tightloop.value import Value, abridge, shorten

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


Tasks = tuple[LoopTask, ...]
_LIVE = {
    StepStatus.RUNNING: TaskState.RUNNING,
    StepStatus.COMPLETED: TaskState.COMPLETE,
    StepStatus.FAILED: TaskState.ERROR,
}
"""What a step of the round that runs says about its task; every other one waits."""


class TaskResult(Value):
    """What became of a task in a round."""

    task_id: str
    completed: bool = False
    run_id: str = ""
    reason: str = ""
    """Why it is not completed; empty with `completed` false: it was never begun."""
    conflict: Conflict | None = None
    """Its result could not be merged."""


def queued(tasks: Tasks) -> Tasks:
    """Return the tasks with those that are dispatched waiting for their turn."""
    return tuple(task.evolve(state=TaskState.QUEUED) if task.state is TaskState.CREATED else task for task in tasks)


def following(tasks: Tasks, plan_id: str, notes: Mapping[str, StepNote], waits: Iterable[ChildWait]) -> Tasks:
    """Return the tasks of a round that runs, as its plan tells where its steps stand and what waits in them."""
    waiting = {wait.step for wait in waits}
    return tuple(_following(task, plan_id, notes.get(task.task_id), task.task_id in waiting) for task in tasks)


def _following(task: LoopTask, plan_id: str, note: StepNote | None, is_waiting: bool) -> LoopTask:
    if note is None:
        return task
    state = _LIVE.get(note.status, TaskState.QUEUED)
    if state is TaskState.RUNNING and is_waiting:
        state = TaskState.AWAITING_RESPONSE
    run = child_id(plan_id, task.task_id, note.attempt) if note.attempt else task.run_id
    return task.evolve(state=state, run_id=run, message=shorten(note.reason, MESSAGE_CHARACTERS))


def after_round(tasks: Tasks, results: Iterable[TaskResult], *, reason: str, cancelled: bool = False) -> Tasks:
    """Return the tasks after a round has ended.

    A conflict becomes a task of its own, and what depends on the task that has it waits for that. What depends on any
    other task that is not complete is an error, too.

    Args:
        tasks: before; those of the round are not ended, or as they were shown last.
        results: of the tasks of the round.
        reason: why the round ended, for tasks that were never begun.
        cancelled: a person ended it.
    """
    by_id = {result.task_id: result for result in results}
    ended = tuple(_after(task, by_id.get(task.task_id), cancelled) for task in tasks)
    if cancelled:
        return ended
    made: list[LoopTask] = []
    for task in ended:
        result = by_id.get(task.task_id)
        if result is not None and result.conflict is not None:
            made.append(_resolving(task_id(len(ended) + len(made) + 1), task, result.conflict))
    names = {task.conflict_of: task.task_id for task in made}
    ended = tuple(
        task.evolve(message=shorten(f"{names[task.task_id]} resolves it: {task.message}", MESSAGE_CHARACTERS))
        if task.task_id in names
        else task
        for task in ended
    )
    return _propagated((*_completed_by_resolution(ended), *made), reason, frozenset(by_id))


def _after(task: LoopTask, result: TaskResult | None, cancelled: bool) -> LoopTask:
    if result is None:
        return task
    if result.completed:
        return task.evolve(state=TaskState.COMPLETE, run_id=result.run_id or task.run_id, message="")
    if result.reason:
        state = TaskState.CANCELLED if cancelled else TaskState.ERROR
        message = abridge(result.reason, MESSAGE_CHARACTERS)
        return task.evolve(state=state, run_id=result.run_id or task.run_id, message=message)
    return task.evolve(state=TaskState.CANCELLED if cancelled else TaskState.QUEUED, message="")


def _resolving(name: str, task: LoopTask, conflict: Conflict) -> LoopTask:
    paths = ", ".join(conflict.paths)
    description = (
        f"Resolve the conflict between {task.task_id} and what was done beside it, in {paths}: the files hold both "
        f"sides between conflict markers. Keep what both sides wanted. {task.task_id} was: {task.description}"
    )
    return LoopTask(
        task_id=name,
        description=shorten(description, DESCRIPTION_CHARACTERS),
        priority=task.priority,
        definition_of_done=(conflict.check, *task.definition_of_done),
        state=TaskState.QUEUED,
        conflict_of=task.task_id,
        conflict=conflict,
    )


def _completed_by_resolution(tasks: Tasks) -> Tasks:
    """Return the tasks with those complete whose conflict was resolved; also over several conflicts."""
    resolved = {task.conflict_of: task for task in tasks if task.conflict_of and task.state is TaskState.COMPLETE}
    changed = tuple(
        task.evolve(state=TaskState.COMPLETE, message=f"{resolved[task.task_id].task_id} resolved its conflict")
        if task.state is TaskState.ERROR and task.task_id in resolved
        else task
        for task in tasks
    )
    return tasks if changed == tasks else _completed_by_resolution(changed)


def _propagated(tasks: Tasks, reason: str, round_of: frozenset[str]) -> Tasks:
    """Return the tasks with an error for each that can never begin."""
    pending = {task.conflict_of for task in tasks if task.conflict_of and not task.state.has_ended}
    done = {task.task_id for task in tasks if task.state is TaskState.COMPLETE}
    lost = {task.task_id for task in tasks if task.state.has_ended} - done - pending
    changed = tuple(
        task if task.state.has_ended else _never_begun(task, lost, done, reason if task.task_id in round_of else "")
        for task in tasks
    )
    return tasks if changed == tasks else _propagated(changed, reason, round_of)


def _never_begun(task: LoopTask, lost: set[str], done: set[str], reason: str) -> LoopTask:
    if cause := next((each for each in task.dependencies if each in lost), ""):
        return task.evolve(state=TaskState.ERROR, message=f"it depends on {cause}, which is not complete")
    # All that it needs is there, and nevertheless it was not begun: the round itself broke off.
    if reason and done.issuperset(task.dependencies):
        return task.evolve(state=TaskState.ERROR, message=shorten(reason, MESSAGE_CHARACTERS))
    return task


def in_round(tasks: Tasks) -> Tasks:
    """Return the tasks that the next round runs: conflicts first, one after the other, then the rest."""
    left = tuple(task for task in tasks if not task.state.has_ended)
    return tuple(task for task in left if task.conflict_of) or left


def parallel_of(tasks: Tasks, parallel: int) -> int:
    """Return how many tasks of a round run at the same time; what resolves conflicts must not make another one."""
    return 1 if any(task.conflict_of for task in tasks) else parallel


def cancelled(tasks: Tasks) -> Tasks:
    """Return the tasks with those that have not ended cancelled."""
    return tuple(task if task.state.has_ended else task.evolve(state=TaskState.CANCELLED) for task in tasks)


TITLE_CHARACTERS = 120


def round_request(tasks: Tasks, request: LoopRequest, *, title: str, parallel: int) -> PlanRequest:
    """Return what starts the plan of a round.

    Args:
        tasks: those of the round; what else they depend on is complete.
        request: of the loop.
        title: of the plan.
        parallel: tasks at the same time.
    """
    return PlanRequest(
        workspace=request.workspace,
        # JSON is a form of plan texts, and this one has no references but those that are meant.
        source=round_plan(tasks, request, title=title).model_dump_json(by_alias=True, exclude_defaults=True),
        max_parallel=parallel_of(tasks, parallel),
        pause_timeout=request.pause_timeout,
        queues=request.queues,
        executor=request.executor,
        notes_steps=True,
    )


def round_plan(tasks: Tasks, request: LoopRequest, *, title: str) -> Plan:
    """Return the plan of a round; a task that fails leaves those alone that do not depend on it."""
    names = {task.task_id for task in tasks}
    return Plan(
        id="tasks",
        title=shorten(title, TITLE_CHARACTERS),
        steps=tuple(_step(task, names, request) for task in tasks),
        on_failure=OnPlanFailure.FAIL,
    )


def _step(task: LoopTask, names: Iterable[str], request: LoopRequest) -> Step:
    start = None if task.conflict is None else MergeStart(base=task.conflict.base, tree=task.conflict.tree)
    return Step(
        id=task.task_id,
        title=shorten(_literal(" ".join(task.description.split())), TITLE_CHARACTERS),
        kind=StepKind.EPISODE,
        # The best priority of a task is 1, that of a step the highest number.
        priority=-task.priority,
        needs=tuple(each for each in task.dependencies if each in names),
        episode=EpisodeAction(
            goal=_literal(task.description),
            definition_of_done=tuple(check.evolve(run=_literal(check.run)) for check in task.definition_of_done),
            planner="" if request.planner == "auto" else request.planner,
            budget=request.budget,
            worktree=True,
            merge=start,
        ),
        # An episode tries again by itself.
        retry=Retry(attempts=1),
        cache=False,
    )


def _literal(text: str) -> str:
    """Return a text in which nothing is read as a reference."""
    return text.replace("${", "$${")
