"""Phases of a project plan, and its reports."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from temporalio import workflow

from activities.loop.gates import (
    FindGatesRequest,
    FoundGates,
    GateActivities,
    GateRun,
    LeaveProjectRequest,
    RunGateRequest,
)
from activities.loop.inspection import Inspected, InspectionActivities, InspectRequest
from activities.loop.tasks import PlannedTasks, PlanTasksRequest, ReadResultsRequest, TaskActivities, TaskResults
from tightloop.episode.check import Check
from tightloop.episode.model import REFUSED
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.loop.control import loop_details
from tightloop.loop.gates import gate_name, running
from tightloop.loop.model import (
    CLOSED,
    PLAN_GENERATION,
    GateCheck,
    GateResult,
    LoopState,
    TaskState,
    failing_gates,
    word_of,
)
from tightloop.loop.tasks import (
    TaskResult,
    after_round,
    cancelled,
    find_task_problem,
    following,
    in_round,
    queued,
    round_request,
)
from tightloop.plan.child import StepNote
from tightloop.plan.progress import PlanInput
from tightloop.plan.request import PlanOutcome, PlanResult
from tightloop.run.timeline import TimelineLine
from tightloop.value import counted, shorten
from workflows.loop.context import LoopContext, LoopEnd
from workflows.run.activities import (
    CLOSE_TIMEOUT,
    GRACE,
    OPEN_TIMEOUT,
    PLAN_TIMEOUT,
    ActivityFailedError,
    ActivityOptions,
    ActivityRunner,
)
from workflows.run.child import run_child
from workflows.run.reporting import GOAL_CHARACTERS, PAUSE_KIND, STATUS, Recording, Seen

A = TypeVar("A")
R = TypeVar("R")


class Waiting:
    """Waits, and ends the plan where a person wants that."""

    def __init__(self, context: LoopContext, activities: ActivityRunner) -> None:
        self._context, self._activities = context, activities

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a person.

        Raises:
            LoopEnd: the plan was cancelled, or nobody came in time.
        """
        limit = self._context.request.pause_timeout
        try:
            await workflow.wait_condition(
                lambda: holds() or self._context.cancelled is not None,
                timeout=limit,
                timeout_summary=f"waits for {what}",
            )
        except TimeoutError:
            raise LoopEnd(LoopState.CANCELLED, f"nobody sent {what} within {limit}") from None
        self.check()

    async def until_resumed(self) -> None:
        """Wait while the plan is paused.

        Raises:
            LoopEnd: as `until` does.
        """
        if self._context.is_paused:
            await self.until(lambda: not self._context.is_paused, "resume")

    def check(self) -> None:
        """End where a person wants that.

        Raises:
            LoopEnd: the plan was cancelled.
        """
        if self._context.cancelled is not None:
            raise LoopEnd(LoopState.CANCELLED, self._context.cancelled)

    async def run(self, method: Callable[[Any, A], Any], request: A, options: ActivityOptions) -> Any:
        """Run one activity, and stop it when the plan is cancelled.

        Raises:
            ActivityFailedError: it could not be run.
            LoopEnd: the plan was cancelled.
        """
        return await self.for_task(self._activities.run(method, request, options))

    async def for_task(self, work: Awaitable[R]) -> R:
        """Wait for what runs, and cancel it when the plan is cancelled; its end is waited for.

        Raises:
            LoopEnd: the plan was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            await workflow.wait_condition(lambda: task.done() or self._context.cancelled is not None)
        finally:
            if not task.done():
                task.cancel()
                await workflow.wait_condition(task.done)
        self.check()
        return await task


class LoopReporting:
    """Shows the plan to people, and has it recorded beside the work."""

    def __init__(self, context: LoopContext) -> None:
        """Begin with nothing shown and nothing recorded."""
        self._context = context
        self._shown = ""
        self._lines: list[TrailEvent] = []
        self._count = 0
        self._recording = Recording(context.run, self._seen, self._row, self._take_lines)
        context.on_log(self._add)

    def show(self) -> None:
        """Show where the plan stands; the search attributes change only with its status."""
        status = self._context.snapshot()
        word = word_of(status)
        if word != self._shown:
            self._shown = word
            kind = next((question.kind.value for question in status.questions), "")
            shown = PAUSE_KIND.value_set(kind) if kind else PAUSE_KIND.value_unset()
            workflow.upsert_search_attributes([STATUS.value_set(word), shown])
        workflow.set_current_details(loop_details(status))
        self._recording.show()

    def refuse(self) -> None:
        """Show that nothing began; the id stays free."""
        workflow.upsert_search_attributes([STATUS.value_set(REFUSED)])

    async def settle(self) -> None:
        """Wait a little for what the ledger is being told."""
        await self._recording.settle()

    def _add(self, line: TimelineLine) -> None:
        self._count += 1
        key = f"{workflow.info().run_id}/{self._count}"
        plan_id = self._context.plan_id
        self._lines.append(TrailEvent(episode_id=plan_id, kind=line.kind, text=line.text, key=key, at=line.at))
        self._recording.show()

    def _take_lines(self) -> tuple[TrailEvent, ...]:
        taken, self._lines = tuple(self._lines), []
        return taken

    def _seen(self) -> Seen:
        status = self._context.snapshot()
        gates = status.gate_result.checks if status.gate_result else ()
        return (
            word_of(status),
            str(self._count),
            *(f"{task.task_id} {task.state} {task.run_id}" for task in status.tasks),
            *(f"{check.name} {check.passed} {check.running}" for check in gates),
            *(question.id for question in status.questions),
        )

    def _row(self) -> WorkflowSnapshot:
        status, info = self._context.snapshot(), workflow.info()
        return WorkflowSnapshot(
            id=status.plan_id,
            kind="loop",
            status=word_of(status),
            goal=shorten(status.goal, GOAL_CHARACTERS),
            phase=status.status.value.lower(),
            checks=f"{sum(task.state.has_ended for task in status.tasks)}/{len(status.tasks)}" if status.tasks else "",
            at=workflow.now(),
            started=info.workflow_start_time,
            closed=workflow.now() if status.status in CLOSED else None,
            questions=status.questions,
            details=status.model_dump(mode="json"),
        )


INSPECT_TIMEOUT = timedelta(minutes=40)
REASON_CHARACTERS = 600


class Planning:
    """Makes the tasks."""

    def __init__(self, context: LoopContext, waiting: Waiting, reporting: LoopReporting) -> None:
        self._context, self._waiting, self._reporting = context, waiting, reporting

    async def plan(self) -> None:
        """Inspect the project and make its tasks.

        Raises:
            LoopEnd: there is no plan; the check `plan_generation` says why.
        """
        context, request = self._context, self._context.request
        try:
            inspected = await self._inspect()
            planned: PlannedTasks = await self._waiting.run(
                TaskActivities.plan_tasks,
                PlanTasksRequest(
                    scope=context.scope(),
                    packet=inspected.packet,
                    checks=inspected.checks,
                    planner=request.planner,
                    model=request.model,
                ),
                ActivityOptions("divide the work into tasks", PLAN_TIMEOUT, request.queues.llm),
            )
        except ActivityFailedError as failure:
            self._fail(failure.reason)
        if problem := planned.problem or find_task_problem(planned.tasks):
            self._fail(problem)
        context.change(context.status.evolve(tasks=planned.tasks))
        made = f"{counted(len(planned.tasks), 'task')} by {planned.model or 'rules'}"
        context.log("plan_created", made)
        self._reporting.show()

    async def _inspect(self) -> Inspected:
        context, request = self._context, self._context.request
        inspected: Inspected = await self._waiting.run(
            InspectionActivities.inspect_project,
            InspectRequest(
                scope=context.scope(),
                goal=request.goal,
                episode=request.episode,
                packet_id=request.packet_id,
                gates=request.gates,
            ),
            context.on_host("inspect the project", INSPECT_TIMEOUT),
        )
        context.change(
            context.status.evolve(
                project=inspected.project,
                goal=inspected.goal or context.status.goal,
                packet_id=inspected.packet_id,
                packet=inspected.packet,
                tree=inspected.tree,
            )
        )
        # The checks of an episode are not those of the project.
        context.inspect(() if request.episode else inspected.checks)
        failing = f"{inspected.failing} of {counted(len(inspected.checks), 'check')} did not pass"
        context.log("project_inspected", f"{inspected.packet_id}: {failing}")
        self._reporting.show()
        return inspected

    def _fail(self, reason: str) -> NoReturn:
        reason = shorten(reason, REASON_CHARACTERS)
        self._context.set_gates((GateCheck(name=PLAN_GENERATION, passed=False, message=reason),))
        raise LoopEnd(LoopState.FAILED, reason) from None


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


CHECKS_LIMIT = 300
"""Gates and checks within them that the status holds."""


class Verifying:
    """Runs `gate:all`."""

    def __init__(
        self, context: LoopContext, waiting: Waiting, reporting: LoopReporting, activities: ActivityRunner
    ) -> None:
        self._context, self._waiting, self._reporting = context, waiting, reporting
        self._activities = activities
        self._times = 0

    async def run(self) -> None:
        """Run the gates. Where they cannot be run, the plan is as before, and says why.

        Raises:
            LoopEnd: all passed, or one did not, or the plan was cancelled.
        """
        context = self._context
        self._times += 1
        context.enter(LoopState.VERIFYING)
        context.change(context.status.evolve(verify_run_id=f"verify_{context.plan_id}_{self._times}"))
        context.set_gates(())
        self._reporting.show()
        try:
            passed = await self._run_gates()
        except ActivityFailedError as failure:
            context.verify(False)
            context.change(context.status.evolve(status=LoopState.RUNNING, reason=failure.reason, gate_result=None))
            context.log("verify_not_run", failure.reason)
            self._reporting.show()
            return
        finally:
            await self._leave()
        result = context.status.gate_result or GateResult()
        if not passed:
            raise LoopEnd(LoopState.FAILED, failing_gates(result))
        raise LoopEnd(LoopState.VERIFIED, f"{counted(self._gates, 'gate')} passed")

    async def _run_gates(self) -> bool:
        context = self._context
        found: FoundGates = await self._waiting.run(
            GateActivities.find_gates,
            FindGatesRequest(scope=context.scope(), asked=context.request.gates, planned=context.gates),
            context.on_host("find the gates", OPEN_TIMEOUT),
        )
        self._gates = len(found.gates)
        context.change(context.status.evolve(tree=found.tree))
        if not found.gates:
            why = "no gate is known for this project. Name some in the settings: gates.checks"
            context.set_gates((GateCheck(name="gate:all", passed=False, message=why),))
            return False
        done: tuple[GateCheck, ...] = ()
        passed = True
        for number, gate in enumerate(found.gates, start=1):
            await self._waiting.until_resumed()
            context.set_gates((*done, running(gate)))
            context.log("gate_running", f"{number} of {self._gates}", step=gate_name(gate))
            self._reporting.show()
            run = await self._run_gate(gate, number, found.tree)
            done = (*done, *run.checks)[:CHECKS_LIMIT]
            passed = passed and run.checks[0].passed
            word = "passed" if run.checks[0].passed else "failed"
            context.log(f"gate_{word}", run.checks[0].message, step=gate_name(gate))
            context.set_gates(done, passed=passed and number == self._gates)
            self._reporting.show()
        return passed

    async def _run_gate(self, gate: Check, number: int, tree: str) -> GateRun:
        context = self._context
        request = RunGateRequest(scope=context.scope(), gate=gate, number=number, total=self._gates, expected_tree=tree)
        limit = timedelta(seconds=gate.timeout_s) + GRACE
        run: GateRun = await self._waiting.run(
            GateActivities.run_project_gate, request, context.on_host(gate_name(gate), limit)
        )
        return run

    async def _leave(self) -> None:
        options = self._context.on_host("give the workspace back", CLOSE_TIMEOUT)
        try:
            request = LeaveProjectRequest(scope=self._context.scope())
            await self._activities.run(GateActivities.leave_project, request, options)
        except ActivityFailedError as failure:
            self._context.log("workspace", f"it could not be given back: {failure.reason}")
