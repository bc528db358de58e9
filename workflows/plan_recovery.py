"""What follows failures of a plan: tries, alternates, people, planners, and taking back what was done."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from activities.plan.activity import PlanActivities
from activities.plan.requests import CompensateRequest
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from tightloop.alert import AlertKind
from tightloop.plan.engine.compensation import take_back
from tightloop.plan.engine.recovery import Route, RouteAction, route
from tightloop.plan.engine.schedule import Schedule
from tightloop.plan.input import PlanInput
from tightloop.plan.result import StepFailure, StepStatus
from tightloop.plan.state import UndoEntry

from workflows.plan_desk import PlanDesk
from workflows.plan_notice import Ended
from workflows.plan_steps import run_activity
from workflows.steps import Call, StepFailedError

COMPENSATE_TIMEOUT = timedelta(minutes=30)
AUTOMATIC_REPLANS = 2
"""How often a planner is asked because of one step."""


class PlanRecovery(PlanDesk):
    """Finds the way out of failures."""

    def __init__(self, request: PlanInput | None = None) -> None:
        """Begin with nothing under way."""
        super().__init__(request)
        self._backing_off: dict[str, asyncio.Task[None]] = {}
        self._side: dict[asyncio.Task[None], None] = {}
        """What is done beside the loop, and has to end before the plan or its run may; in the order of its begin."""
        self._taking_back = asyncio.Lock()
        self._planner = False
        """A planner may be asked to change the plan."""
        self._attempts_here = 0
        """Attempts, and steps taken back, in this run of the workflow."""

    @property
    def _plan(self) -> Schedule:
        if self._schedule is None:
            raise ApplicationError("the plan is not open", non_retryable=True)
        return self._schedule

    # -- what follows a failure ---------------------------------------------------------------------

    def _fail(self, name: str, number: int, failure: StepFailure, *, attempt: int) -> None:
        """Find the way out of a failed attempt."""
        self._book.failed(name, failure)
        self._book.decisions.pop(name, None)
        self._log("failed", name, f"{failure.failure_class.value}: {failure.reason}")
        asked = self._book.replans.get(name, 0)
        way = self._route(name, number, failure, attempt=attempt, replan=asked < AUTOMATIC_REPLANS)
        self._follow(name, number, failure, way)

    def _route(self, name: str, number: int, failure: StepFailure, *, attempt: int, replan: bool) -> Route:
        now = workflow.now()
        return route(
            self._plan.node(number),
            failure,
            attempt=attempt,
            elapsed=now - self._book.first_starts.get(name, now),
            replan_allowed=replan and self._planner and not self._request.dry_run,
            on_plan_failure=self._plan.graph.head.on_failure,
        )

    def _follow(self, name: str, number: int, failure: StepFailure, way: Route) -> None:
        match way.action:
            case RouteAction.RETRY:
                self._retry(name, number, timedelta(seconds=max(way.after_s, failure.retry_after_s or 0.0)))
            case RouteAction.ALTERNATE if way.compensate:
                self._holds += 1
                self._beside(self._go_another_way(name, way.compensate))
            case RouteAction.ALTERNATE:
                self._plan.fail(number, alternate=True)
            case RouteAction.SKIP:
                self._book.settled(name)
                self._plan.finish(number, StepStatus.SKIPPED)
            case RouteAction.REPLAN:
                self._plan.retry_later(number)
                self._beside(self._ask_planner(name, failure))
            case RouteAction.ASK:
                self._plan.fail(number)
                self._ask(name, failure)
            case RouteAction.FAIL:
                self._plan.fail(number)
            case RouteAction.ABORT | RouteAction.COMPENSATE:
                self._plan.fail(number)
                compensate = way.action is RouteAction.COMPENSATE
                self._over = self._over or Ended(f"{name}: {failure.reason}", compensate=compensate)
        self._wake()

    def _ask(self, name: str, failure: StepFailure) -> None:
        """Have a person asked; one alert tells of all that is asked at the same time."""
        first = not self._book.asked
        self._book.asked.append(name)
        self._show_attention()
        if first:
            self._alert(AlertKind.RESPONSE, failure.reason, name)

    def _retry(self, name: str, number: int, wait: timedelta) -> None:
        self._plan.retry_later(number)
        self._book.due[name] = workflow.now() + wait
        self._back_off(name)

    def _back_off(self, name: str) -> None:
        """Have a step tried again when it is due."""
        self._backing_off[name] = asyncio.create_task(self._until_due(name))

    async def _until_due(self, name: str) -> None:
        wait = self._book.due[name] - workflow.now()
        if wait > timedelta():
            await workflow.sleep(wait, summary=f"{name}: try again after {wait.total_seconds():g} s")
        del self._backing_off[name]
        if self._book.due.pop(name, None) is None:
            return
        number = self._plan.find(name)
        if number is not None and self._plan.backs_off(number):
            self._plan.ready_again(number)
        self._wake()

    async def _ask_planner(self, name: str, failure: StepFailure) -> None:
        """Have the plan changed because of a failure; without a planner go the next way."""
        self._book.replans[name] = self._book.replans.get(name, 0) + 1
        trouble = f"step {name} failed ({failure.failure_class.value}): {failure.reason}"
        revised = True
        try:
            await self._revise("", "a step failed", "tightloop", trouble=trouble)
        except ApplicationError:
            revised = False
        number = self._plan.find(name)
        if number is None or not self._plan.backs_off(number) or self._ending:
            return
        if revised:
            self._plan.ready_again(number)
        else:
            last = self._plan.node(number).retry.attempts
            self._follow(name, number, failure, self._route(name, number, failure, attempt=last, replan=False))

    # -- taking back --------------------------------------------------------------------------------

    async def _go_another_way(self, name: str, steps: tuple[str, ...]) -> None:
        """Take steps back while nothing else touches the tree, then let the alternate go."""
        alternate = False
        try:
            # Two that fail at the same time must not both start from the same tree.
            async with self._taking_back:
                await workflow.wait_condition(lambda: not any(each.touches_tree for each in self._running.values()))
                await self._take_back(take_back(self._book.undo, steps))
            alternate = True
        finally:
            self._holds -= 1
            number = self._plan.find(name)
            if number is not None:
                self._plan.fail(number, alternate=alternate)

    async def _take_back(self, entries: tuple[UndoEntry, ...]) -> list[str]:
        """Take attempts back, the latest first; what cannot be taken back is told, and the rest goes on."""
        problems: list[str] = []
        for entry in entries:
            problem = await self._take_one_back(entry)
            if problem:
                self._log("not taken back", entry.step, problem)
                problems.append(f"{entry.step}: {problem}")
        return problems

    async def _take_one_back(self, entry: UndoEntry) -> str:
        """Take one attempt back. Return why that did not work, or nothing."""
        request = CompensateRequest(
            scope=self._scope(),
            step=entry.step,
            template=entry.template,
            item=entry.item,
            attempt=entry.attempt,
            expected_tree=self._book.tree,
        )
        self._attempts_here += 1
        call = Call(f"take back {entry.step}", COMPENSATE_TIMEOUT, self._request.queues.workspace)
        try:
            answer = await run_activity(PlanActivities.compensate_step, request, call)
        except StepFailedError as error:
            return error.reason
        self._book.tree = answer.tree or self._book.tree
        if answer.failure:
            return answer.failure
        self._book.undone(entry)
        number = self._plan.find(entry.step)
        if number is not None:
            self._plan.compensated(number)
        self._log("compensated", entry.step, f"{answer.files_changed} files")
        return ""

    # -- beside the loop ----------------------------------------------------------------------------

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the loop."""
        task = asyncio.create_task(work)
        self._side[task] = None
        task.add_done_callback(self._done_beside)

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._side.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._over = self._over or Ended(f"{type(error).__name__}: {error}")
        self._wake()
