"""Tells the plan around a workflow what waits for a person in it."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import FailureError
from tightloop.episode import Pause
from tightloop.plan.child_wait import CHILD_WAITS, REASON_CHARACTERS, ChildNote, ChildWait
from tightloop.value import shorten

TELLS_ITS_PLAN = "tells-its-plan"
"""Patch: what a step started signals to its plan when it begins and ends to wait for a person."""


class PlanAround:
    """The plan that started this workflow, and what it was told last."""

    def __init__(self) -> None:
        """Begin with a plan that was told nothing; a run that follows another one does not know what was."""
        self._told: tuple[ChildWait, ...] | None = None if workflow.info().continued_run_id else ()
        self._wanted: tuple[ChildWait, ...] = ()
        self._telling: asyncio.Task[None] | None = None

    def tell(self, waits: tuple[ChildWait, ...]) -> None:
        """Let the plan know what waits here now. The newest word reaches it last; nothing waits for that."""
        self._wanted = waits
        parent = workflow.info().parent
        if parent is None or waits == self._told or (self._telling is not None and not self._telling.done()):
            return
        if workflow.patched(TELLS_ITS_PLAN):
            self._telling = asyncio.create_task(self._tell(parent.workflow_id))

    def tell_again(self) -> None:
        """Take nothing for told any more: the run was reset."""
        self._told = None

    async def _tell(self, plan_id: str) -> None:
        handle = workflow.get_external_workflow_handle(plan_id)
        while self._wanted != self._told:
            waits = self._told = self._wanted
            try:
                await handle.signal(CHILD_WAITS, ChildNote(workflow_id=workflow.info().workflow_id, waits=waits))
            except FailureError:
                return  # the plan has ended, and ends this workflow too


def waits_of(pause: Pause | None) -> tuple[ChildWait, ...]:
    """Return what an episode waits for."""
    if pause is None:
        return ()
    reason = shorten(pause.reason, REASON_CHARACTERS)
    return (ChildWait(workflow_id=workflow.info().workflow_id, kind=pause.kind.value, reason=reason),)
