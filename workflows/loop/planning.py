"""How a project's plan is made: the project is inspected, then its packet becomes tasks."""

from datetime import timedelta
from typing import NoReturn

from activities.loop.inspection.activity import Inspected, InspectionActivities, InspectRequest
from activities.loop.tasks.activity import PlannedTasks, PlanTasksRequest, TaskActivities
from tightloop.loop.decomposition import find_task_problem
from tightloop.loop.model import PLAN_GENERATION, GateCheck, LoopState
from tightloop.value import counted, shorten
from workflows.loop.context import LoopContext, LoopEnd
from workflows.loop.reporting import LoopReporting
from workflows.loop.waiting import Waiting
from workflows.shared.activities import PLAN_TIMEOUT, ActivityFailedError, ActivityOptions

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
