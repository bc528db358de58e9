"""Taking back what steps did."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from temporalio import workflow

from activities.plan.activity import PlanActivities
from activities.plan.requests import RunStepRequest
from tightloop.plan.engine.compensation import select_undo
from tightloop.plan.engine.state import UndoEntry
from tightloop.plan.request import PlanPhase
from tightloop.value import counted
from workflows.plan.attempts import Attempt
from workflows.plan.context import PlanContext
from workflows.plan.continuation import HARD_ATTEMPTS, ContinueAsNew
from workflows.plan.reporting import PlanReporting
from workflows.shared.activities import ActivityFailedError, ActivityRunner

COMPENSATE_TIMEOUT = timedelta(minutes=30)


class Compensation:
    """Takes attempts back, the latest first."""

    def __init__(
        self,
        context: PlanContext,
        reporting: PlanReporting,
        running: Mapping[str, Attempt],
        activities: ActivityRunner,
    ) -> None:
        self._context, self._reporting, self._running = context, reporting, running
        self._activities = activities
        # Of Temporal's event loop: waiting tasks go on in the order in which they came, also in replay.
        self._one_at_a_time = asyncio.Lock()

    async def go_another_way(self, name: str, steps: tuple[str, ...]) -> None:
        """Take steps back while nothing else touches the tree, then let the alternate of a failed step start.

        The caller holds the plan, since the loop could start a step before this begins; it is released here.
        """
        context = self._context
        is_taken_back = False
        try:
            # Two that fail at the same time must not both start from the same tree.
            async with self._one_at_a_time:
                await workflow.wait_condition(lambda: not any(each.touches_tree for each in self._running.values()))
                await self._take_back(select_undo(context.progress.undo, steps))
            is_taken_back = True
        finally:
            context.release()
            number = context.schedule.find(name)
            if number is not None:
                context.schedule.fail(number, alternate=is_taken_back)

    async def take_all_back(self) -> list[str]:
        """Take everything back; what cannot be taken back is returned, and the rest goes on.

        Raises:
            ContinueAsNew: the history grows too long; the next run goes on.
        """
        self._reporting.enter(PlanPhase.COMPENSATING)
        problems: list[str] = []
        for entry in select_undo(self._context.progress.undo):
            if self._context.attempts >= HARD_ATTEMPTS:
                raise ContinueAsNew
            problems += await self._take_back((entry,))
        return problems

    async def _take_back(self, entries: tuple[UndoEntry, ...]) -> list[str]:
        problems: list[str] = []
        for entry in entries:
            problem = await self._take_one_back(entry)
            if problem:
                self._context.log("not taken back", entry.step, problem)
                problems.append(f"{entry.step}: {problem}")
        return problems

    async def _take_one_back(self, entry: UndoEntry) -> str:
        """Take one attempt back. Return why that did not work, or nothing."""
        context = self._context
        request = RunStepRequest(scope=context.scope(), expected_tree=context.progress.tree, **entry.model_dump())
        context.count_attempt()
        options = context.on_host(f"take back {entry.step}", COMPENSATE_TIMEOUT)
        try:
            answer = await self._activities.run(PlanActivities.compensate_step, request, options)
        except ActivityFailedError as error:
            return error.reason
        context.set_tree(answer.tree)
        context.log_drift(answer.drift, entry.step)
        if answer.failure:
            return answer.failure
        context.progress.remove_undo(entry)
        number = context.schedule.find(entry.step)
        if number is not None:
            context.schedule.mark_compensated(number)
        context.log("compensated", entry.step, counted(answer.files_changed, "file"))
        return ""
