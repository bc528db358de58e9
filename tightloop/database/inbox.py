"""Questions that wait, and how much each of them holds up."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from sqlalchemy import RowMapping

from tightloop.database.rows import questions_of
from tightloop.ledger.model import InboxItem, StepRow
from tightloop.plan.result import StepStatus
from tightloop.question import Question

OPEN = frozenset({StepStatus.PENDING.value, StepStatus.RUNNING.value, StepStatus.WAITING.value})
"""Statuses of steps that still want to do something."""


def inbox_items(waiting: Iterable[RowMapping], steps: Iterable[StepRow]) -> tuple[InboxItem, ...]:
    """Return the questions of workflows, oldest first.

    Args:
        waiting: rows of workflows.
        steps: of the plans among them, and of the plans that started some of them.
    """
    plans: dict[str, dict[str, StepRow]] = defaultdict(dict)
    started: dict[str, StepRow] = {}
    for step in steps:
        plans[step.plan_id][step.step] = step
        if step.child_id:
            started[step.child_id] = step
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
            blocks=_blocks(row["id"], question, plans, started),
        )
        for row in waiting
        for question in questions_of(row)
    ]
    return tuple(sorted(items, key=lambda item: (_moment(item), item.workflow_id, item.question.id)))


def _moment(item: InboxItem) -> float:
    return item.since.timestamp() if item.since is not None else 0.0


def _blocks(
    workflow_id: str, question: Question, plans: Mapping[str, Mapping[str, StepRow]], started: Mapping[str, StepRow]
) -> int:
    """Return how many steps cannot go on before an answer, the asking one included."""
    if not question.blocks:
        return 0
    if question.step:
        return 1 + _dependents(question.step, plans.get(workflow_id, {}))
    above = started.get(workflow_id)
    return 1 + (_dependents(above.step, plans.get(above.plan_id, {})) if above is not None else 0)


def _dependents(step: str, graph: Mapping[str, StepRow]) -> int:
    """Return how many open steps need a step, directly or through others."""
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
    return sum(graph[name].status in OPEN for name in found)
