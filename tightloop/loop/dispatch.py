"""The plan that carries out a round of tasks: an episode for each, in a worktree of its own."""

from collections.abc import Iterable

from tightloop.loop.model import LoopRequest, LoopTask
from tightloop.loop.tasks import Tasks, parallel_of
from tightloop.plan.document.action import EpisodeAction, MergeStart
from tightloop.plan.document.failing import Retry
from tightloop.plan.document.plan import OnPlanFailure, Plan
from tightloop.plan.document.step import Step, StepKind
from tightloop.plan.request import PlanRequest
from tightloop.value import shorten

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
