"""The course of the tasks of a project's plan: what runs in which round, what became of it, what follows."""

from collections.abc import Iterable, Mapping

from tightloop.loop.conflict import Conflict
from tightloop.loop.decomposition import task_id
from tightloop.loop.model import DESCRIPTION_CHARACTERS, MESSAGE_CHARACTERS, LoopTask, TaskState
from tightloop.plan.child import ChildWait, StepNote, child_id
from tightloop.plan.result import StepStatus
from tightloop.value import Value, abridge, shorten

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
