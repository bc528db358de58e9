"""How the tasks of a project's plan are carried out: in rounds, each a plan of episodes in worktrees of their own."""

from collections.abc import Callable

from temporalio import workflow

from activities.loop.tasks.activity import ReadResultsRequest, TaskActivities, TaskResults
from tightloop.loop.dispatch import round_request
from tightloop.loop.model import LoopState, TaskState
from tightloop.loop.tasks import TaskResult, after_round, cancelled, following, in_round, queued
from tightloop.plan.child import StepNote
from tightloop.plan.input import PlanInput
from tightloop.plan.request import PlanOutcome, PlanResult
from tightloop.value import counted
from workflows.loop.context import LoopContext, LoopEnd
from workflows.loop.reporting import LoopReporting
from workflows.loop.waiting import Waiting
from workflows.shared.activities import OPEN_TIMEOUT, ActivityFailedError, ActivityRunner
from workflows.shared.child import run_child

ROUNDS_LIMIT = 20
"""Conflicts of conflicts are not resolved for ever."""


class Dispatching:
    """Runs rounds until no task is left."""

    def __init__(
        self, context: LoopContext, waiting: Waiting, reporting: LoopReporting, activities: ActivityRunner
    ) -> None:
        self._context, self._waiting, self._reporting = context, waiting, reporting
        self._activities = activities
        self._round = 0
        self._notes: dict[str, StepNote] = {}

    @property
    def child(self) -> str:
        """Workflow id of the plan of the round that runs; empty: none does."""
        return self._context.status.dispatched_as if self._context.status.completed_at is None else ""

    def hear_steps(self, child: str, notes: tuple[StepNote, ...]) -> None:
        """Note where steps of the round stand."""
        if child and child == self.child:
            self._notes |= {note.step: note for note in notes}
            self._follow()

    def hear_waits(self, child: str, waits: Callable[[], None]) -> None:
        """Note what waits for a person in the round."""
        if child and child == self.child:
            waits()
            self._follow()

    def _follow(self) -> None:
        context = self._context
        waits = tuple(wait for found in context.children.values() for wait in found)
        before = {task.task_id: task.state for task in context.status.tasks}
        context.set_tasks(following(context.status.tasks, self.child, self._notes, waits))
        for task in context.status.tasks:
            if task.state is not before[task.task_id]:
                context.log(f"task_{task.state.value.lower()}", task.message or task.run_id, step=task.task_id)
        self._reporting.show()

    async def run(self) -> None:
        """Carry the tasks out; each has ended afterwards.

        Raises:
            LoopEnd: the plan was cancelled.
        """
        context = self._context
        context.set_tasks(queued(context.status.tasks))
        context.log("plan_dispatched", f"{counted(len(context.status.tasks), 'task')}, {context.parallel} at a time")
        tree = ""
        while tasks := in_round(context.status.tasks):
            if self._round >= ROUNDS_LIMIT:
                ids = {task.task_id for task in tasks}
                lost = f"conflicts were not resolved in {ROUNDS_LIMIT} rounds"
                context.set_tasks(
                    tuple(
                        task.evolve(state=TaskState.ERROR, message=lost) if task.task_id in ids else task
                        for task in context.status.tasks
                    )
                )
                break
            tree = await self._run_round(tuple(task.task_id for task in tasks)) or tree
        context.complete(tree)
        done = sum(task.state is TaskState.COMPLETE for task in context.status.tasks)
        context.log("plan_completed", f"{done} of {counted(len(context.status.tasks), 'task')} complete")
        self._reporting.show()

    async def _run_round(self, ids: tuple[str, ...]) -> str:
        context = self._context
        self._round, self._notes = self._round + 1, {}
        tasks = tuple(task for task in context.status.tasks if task.task_id in ids)
        child = f"{context.plan_id}.dispatch-{self._round}"
        request = round_request(
            tasks, context.request, title=context.status.goal or "what is open", parallel=context.parallel
        )
        context.children.clear()
        context.change(context.status.evolve(status=LoopState.RUNNING, dispatched_as=child))
        self._reporting.show()
        start = PlanInput.of(request)
        try:
            result = await self._waiting.for_task(run_child(child, start, f"round {self._round}"))
        except LoopEnd:
            context.set_tasks(
                cancelled(after_round(context.status.tasks, await self._results(ids), reason="", cancelled=True))
            )
            raise
        except ActivityFailedError as failure:
            result = PlanResult(outcome=PlanOutcome.FAILED, reason=failure.reason)
        results = await self._results(ids)
        why = result.reason or f"the round ended {result.outcome.value}"
        was_cancelled = result.outcome is PlanOutcome.CANCELLED
        before = context.status.tasks
        context.set_tasks(after_round(before, results, reason=why, cancelled=False))
        if was_cancelled:
            # By a person, in the plan of the round itself.
            context.set_tasks(cancelled(context.status.tasks))
        for task in context.status.tasks[len(before) :]:
            context.log("conflict", f"{task.conflict_of} could not be merged; {task.task_id} resolves it", task.task_id)
        self._reporting.show()
        return result.tree

    async def _results(self, ids: tuple[str, ...]) -> tuple[TaskResult, ...]:
        context = self._context
        request = ReadResultsRequest(scope=context.scope(), plan_id=context.status.dispatched_as, tasks=ids)
        options = context.on_host("read what became of the tasks", OPEN_TIMEOUT)
        try:
            found: TaskResults = await self._activities.run(TaskActivities.read_results, request, options)
        except ActivityFailedError as failure:
            workflow.logger.warning("the results of %s could not be read: %s", request.plan_id, failure.reason)
            return tuple(TaskResult(task_id=name, reason=failure.reason) for name in ids)
        return found.results
