"""Tells the plan that started a workflow what waits for a person in it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from temporalio import workflow
from temporalio.exceptions import FailureError

from tightloop.plan.child import CHILD_STEPS, CHILD_WAITS, ChildNote, ChildWait, StepNote, StepsNote

Waits = tuple[ChildWait, ...]


async def signal_parent(waits: Waits) -> None:
    """Signal what waits here to the workflow that started this one.

    Raises:
        FailureError: it has ended.
    """
    info = workflow.info()
    if info.parent is not None:
        parent = workflow.get_external_workflow_handle(info.parent.workflow_id)
        await parent.signal(CHILD_WAITS, ChildNote(workflow_id=info.workflow_id, waits=waits))


async def signal_steps(steps: tuple[StepNote, ...]) -> None:
    """Signal where steps stand to the workflow that started this one.

    Raises:
        FailureError: it has ended.
    """
    info = workflow.info()
    if info.parent is not None:
        parent = workflow.get_external_workflow_handle(info.parent.workflow_id)
        await parent.signal(CHILD_STEPS, StepsNote(workflow_id=info.workflow_id, steps=steps))


class StepNotice:
    """Tells the loop around a plan where its steps stand; only what has changed since it was told last."""

    def __init__(self, *, send: Callable[[tuple[StepNote, ...]], Awaitable[None]] = signal_steps) -> None:
        """Begin with nothing told."""
        self._send = send
        self._told: dict[str, StepNote] = {}
        self._wanted: dict[str, StepNote] = {}
        self._telling: asyncio.Task[None] | None = None

    def tell(self, steps: Iterable[StepNote]) -> None:
        """Let the loop know. The newest word reaches it last; nothing waits for that."""
        self._wanted = {note.step: note for note in steps}
        if self._changed and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell())

    @property
    def _changed(self) -> tuple[StepNote, ...]:
        return tuple(note for note in self._wanted.values() if self._told.get(note.step) != note)

    async def _tell(self) -> None:
        while changed := self._changed:
            self._told |= {note.step: note for note in changed}
            try:
                await self._send(changed)
            except FailureError:
                return  # the loop has ended, and ends this workflow too


class ParentNotice:
    """What the plan around a workflow was told last, and has yet to be told."""

    def __init__(
        self, *, is_child: bool, is_first_run: bool, send: Callable[[Waits], Awaitable[None]] = signal_parent
    ) -> None:
        """Begin with a parent that was told nothing; a run that follows another one does not know what was."""
        self._is_child, self._send = is_child, send
        self._told: Waits | None = () if is_first_run else None
        self._wanted: Waits = ()
        self._telling: asyncio.Task[None] | None = None

    def tell(self, waits: Waits) -> None:
        """Let the parent know what waits here now. The newest word reaches it last; nothing waits for that."""
        self._wanted = waits
        is_telling = self._telling is not None and not self._telling.done()
        if self._is_child and waits != self._told and not is_telling:
            self._telling = asyncio.create_task(self._tell())

    def tell_again(self) -> None:
        """Forget what was told: the run was reset."""
        self._told = None

    async def _tell(self) -> None:
        while self._wanted != self._told:
            waits = self._told = self._wanted
            try:
                await self._send(waits)
            except FailureError:
                return  # the plan has ended, and ends this workflow too
