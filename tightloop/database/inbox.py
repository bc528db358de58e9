"""Questions that wait, and how much each of them holds up."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import RowMapping

from tightloop.database.rows import questions_of
from tightloop.ledger.model import InboxItem, StepRow
from tightloop.loop.model import LoopTask
from tightloop.plan.result import StepStatus
from tightloop.question import Question

OPEN = frozenset({StepStatus.PENDING.value, StepStatus.RUNNING.value, StepStatus.WAITING.value})
"""Statuses of steps that still want to do something."""
LEVELS = 10
"""Bound on plans within plans."""


class Within(NamedTuple):
    """What the ledger knows of a workflow that started others."""

    parent: str
    tasks: tuple[LoopTask, ...] = ()
    """Of a project's plan."""


class Blocked(NamedTuple):
    """What waits for one answer."""

    held: int = 0
    loop: str = ""
    tasks: tuple[str, ...] = ()


def inbox_items(
    waiting: Iterable[RowMapping], steps: Iterable[StepRow], within: Mapping[str, Within]
) -> tuple[InboxItem, ...]:
    """Return the questions of workflows, oldest first.

    Args:
        waiting: rows of workflows.
        steps: of the plans among them, and of the plans around them.
        within: the plans and projects' plans around them, by id.
    """
    around = _Around(steps, within)
    items = [
        InboxItem(
            project=row["project"],
            workflow_id=row["id"],
            kind=row["kind"],
            goal=row["goal"],
            executor=row["executor"],
            iteration=row["iteration"],
            question=question,
            since=question.since or row["waiting_since"],
            blocks=blocked.held,
            loop=blocked.loop,
            tasks=blocked.tasks,
        )
        for row in waiting
        for question in questions_of(row)
        for blocked in (around.blocked(row["id"], row["parent"], question),)
    ]
    return tuple(sorted(items, key=lambda item: (_moment(item), item.workflow_id, item.question.id)))


def _moment(item: InboxItem) -> float:
    return item.since.timestamp() if item.since is not None else 0.0


class _Around:
    """The plans around workflows that wait."""

    def __init__(self, steps: Iterable[StepRow], within: Mapping[str, Within]) -> None:
        self._plans: dict[str, dict[str, StepRow]] = defaultdict(dict)
        self._started: dict[str, StepRow] = {}
        self._within = within
        for step in steps:
            self._plans[step.plan_id][step.step] = step
            if step.child_id:
                self._started[step.child_id] = step

    def blocked(self, workflow_id: str, parent: str, question: Question) -> Blocked:
        """Return what cannot go on before an answer; of a question that holds up nothing else, nothing."""
        if not question.blocks:
            return Blocked()
        count, task = 1, question.step
        if question.step:
            count += len(_dependents(question.step, self._plans.get(workflow_id, {})))
        for _ in range(LEVELS):
            above = self._within.get(parent)
            if above is None:
                break
            if above.tasks:
                waiting = _waiting_tasks(task, above.tasks)
                return Blocked(1 + len(waiting), parent, (task, *waiting)) if task else Blocked(count, parent)
            step = self._started.get(workflow_id)
            task = step.step if step is not None else ""
            count += len(_dependents(task, self._plans.get(parent, {})))
            workflow_id, parent = parent, above.parent
        return Blocked(count)


def _waiting_tasks(task: str, tasks: Iterable[LoopTask]) -> tuple[str, ...]:
    """Return the tasks of a project's plan that wait for one, directly or through others, in their order."""
    found = {task}
    known = tuple(tasks)
    for _ in known:
        found |= {one.task_id for one in known if not found.isdisjoint(one.dependencies)}
        # What depends on a task in conflict waits for the task that resolves it.
        found |= {one.conflict_of for one in known if one.task_id in found and one.conflict_of}
    return tuple(one.task_id for one in known if one.task_id in found - {task} and not one.state.has_ended)


def _dependents(step: str, graph: Mapping[str, StepRow]) -> tuple[str, ...]:
    """Return the open steps that need a step, directly or through others."""
    needed_by: dict[str, list[str]] = defaultdict(list)
    for row in graph.values():
        for need in row.needs:
            needed_by[need].append(row.step)
    found: set[str] = set()
    todo = [step]
    while todo:
        for name in needed_by[todo.pop()]:
            if name not in found and name != step:
                found.add(name)
                todo.append(name)
    return tuple(name for name in found if graph[name].status in OPEN)
