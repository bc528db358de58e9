"""What a run reports: details and search attributes in Temporal, its row in the ledger, what waits to its parent."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, FailureError

from activities.tracking.activity import RecordActivities, RecordRequest
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.run.core import REFUSED
from tightloop.run.question import CHILD_WAITS, WAITS_LIMIT, ChildNote, ChildWait, Question, waits_of
from tightloop.value import shorten
from workflows.run.activities import new_activity_id
from workflows.run.kernel import Run

# Search attributes are plaintext even where payloads are encrypted: they hold enum values only.
STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSE_KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")


class Reporter:
    """Shows the state of a workflow, no more often than needed."""

    def __init__(
        self,
        details: Callable[[], str],
        *,
        called_for: str = "",
        paused: bool = True,
        running: str = "running",
        every: timedelta = timedelta(),
        now: Callable[[], datetime] = workflow.now,
        show: Callable[[str], None] = workflow.set_current_details,
        upsert: Callable[[Sequence[SearchAttributeUpdate[Any]]], None] = workflow.upsert_search_attributes,
    ) -> None:
        """Begin with what the previous run left in the search attributes.

        Args:
            details: the current details as Markdown.
            called_for: kind of the question that the attributes show; empty: none waits.
            paused: whether they show that the workflow goes on only with an answer.
            running: the status that they show where it does not.
            every: shortest time between two of the details that do not follow at once.
            now: the time.
            show: shows the details.
            upsert: changes search attributes, which costs one event.
        """
        self._details, self._every = details, every
        self._now, self._show, self._upsert = now, show, upsert
        self._called_for = (called_for, "paused" if paused and called_for else running)
        self._shown_at: datetime | None = None

    def show(self, *, at_once: bool = True) -> None:
        """Refresh the current details; where that can wait, only once in a while."""
        now = self._now()
        if at_once or self._shown_at is None or now - self._shown_at >= self._every:
            self._shown_at = now
            # Unlike search attributes, current details add no event to the history.
            self._show(self._details())

    def call_for(self, kind: str, *, paused: bool = True, running: str = "running") -> None:
        """Show in the list of workflows for what a person is needed.

        Args:
            kind: of the question that waits; empty: none does.
            paused: whether the workflow goes on only with an answer.
            running: its status where it does not.
        """
        status = "paused" if kind and paused else running
        if (kind, status) != self._called_for:
            self._called_for = (kind, status)
            shown = PAUSE_KIND.value_set(kind) if kind else PAUSE_KIND.value_unset()
            self._upsert([STATUS.value_set(status), shown])
        self.show()

    def close(self, status: str) -> None:
        """Show how the workflow ended."""
        self._upsert([STATUS.value_set(status), PAUSE_KIND.value_unset()])
        self.show()


RECORD_TIMEOUT = timedelta(seconds=30)
RECORD_PATIENCE = timedelta(minutes=10)
"""For all tries; the next change brings everything anyway."""
PICK_UP_TIMEOUT = timedelta(minutes=1)
SETTLE_TIMEOUT = timedelta(seconds=10)
"""How long the end of a run waits for what is being recorded."""
RECORD_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=10,
)
GOAL_CHARACTERS = 200
Seen = tuple[str, ...]
"""The status and the ids of what is asked: what `show` compares."""


class Recording:
    """Records a run when its status or its questions change; one call at a time, the newest state last.

    The activities that open and close the workspace record how a run begins and ends.
    """

    def __init__(
        self,
        run: Run,
        seen: Callable[[], Seen],
        row: Callable[[], WorkflowSnapshot],
        events: Callable[[], tuple[TrailEvent, ...]] = tuple,
    ) -> None:
        """Start where the opening left the ledger. A run that follows another one does not know what is recorded.

        Args:
            run: says where to record.
            seen: what people see, in short; a change of it is recorded.
            row: all of it.
            events: lines of the trail that go with it, each once.
        """
        self._run, self._see, self._row, self._events = run, seen, row, events
        self._recorded: Seen | None = None if workflow.info().continued_run_id else ("running",)
        self._recording: asyncio.Task[None] | None = None

    def show(self) -> None:
        """Record the run, in the background, if people see something else than was recorded last."""
        is_recording = self._recording is not None and not self._recording.done()
        if not is_recording and self._see() != self._recorded:
            self._recording = asyncio.create_task(self._record())

    def show_again(self) -> None:
        """Record the run in any case: it was reset."""
        self._recorded = None
        self.show()

    async def settle(self) -> None:
        """Wait a little for what is being recorded, because it would end with the run."""
        recording = self._recording
        if recording is not None and not recording.done():
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    recording.done, timeout=SETTLE_TIMEOUT, timeout_summary="go on without the record"
                )

    async def _record(self) -> None:
        while (seen := self._see()) != self._recorded:
            self._recorded = seen
            try:
                snapshot, events = self._row(), self._events()
                await self._send(RecordRequest(scope=self._run.scope, snapshot=snapshot, events=events))
            except ActivityError as error:
                workflow.logger.warning("not in the ledger: %s", error.cause or error)

    async def _send(self, request: RecordRequest) -> None:
        queue = self._run.queues.home or self._run.queues.workspace
        await workflow.execute_activity_method(
            RecordActivities.record,
            request,
            activity_id=new_activity_id(),
            task_queue=queue or None,
            start_to_close_timeout=RECORD_TIMEOUT,
            schedule_to_start_timeout=PICK_UP_TIMEOUT if queue else None,
            schedule_to_close_timeout=RECORD_PATIENCE,
            retry_policy=RECORD_RETRIES,
            summary="record what people see",
        )


def begins(kind: str, goal: str, executor: str = "") -> WorkflowSnapshot:
    """Return how a workflow begins."""
    info = workflow.info()
    return WorkflowSnapshot(
        id=info.workflow_id,
        kind=kind,
        status="running",
        parent=info.parent.workflow_id if info.parent else "",
        goal=shorten(goal, GOAL_CHARACTERS),
        executor=executor,
        phase="opening",
        at=workflow.now(),
        started=info.workflow_start_time,
    )


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


class View(ABC):
    """How a kind of run shows itself."""

    @property
    @abstractmethod
    def tells_parent(self) -> bool:
        """Whether the workflow around it wants to know what waits."""

    @property
    def waits_within(self) -> tuple[ChildWait, ...]:
        """What waits in child workflows."""
        return ()

    @property
    @abstractmethod
    def is_opened(self) -> bool:
        """Whether the workspace is open, so that the ledger knows the run."""

    @property
    @abstractmethod
    def needs(self) -> tuple[Question | None, bool]:
        """The question that matters most, and whether the run goes on only with its answer."""

    @abstractmethod
    def details(self) -> str:
        """Return the current details as Markdown."""

    @abstractmethod
    def row(self) -> WorkflowSnapshot:
        """Return the row for the ledger."""

    def take_trail(self) -> tuple[TrailEvent, ...]:
        """Hand over the lines of the trail that are not recorded yet, unless activities record them."""
        return ()


class Reporting:
    """Shows a run to everybody who looks, after each change and no more often than needed."""

    def __init__(self, run: Run, view: View, *, every: timedelta = timedelta()) -> None:
        """Start with what the previous run left in the search attributes. `every`: shortest time between details."""
        info = workflow.info()
        self._run, self._view = run, view
        question, paused = view.needs
        kind = question.kind.value if question else ""
        self._reporter = Reporter(view.details, called_for=kind, paused=paused, every=every)
        self._recording = Recording(run, self._seen, view.row, view.take_trail)
        self._parent = ParentNotice(is_child=info.parent is not None, is_first_run=info.continued_run_id is None)

    @property
    def status(self) -> str:
        """`paused` where the run goes on only with an answer; otherwise that of the run."""
        return "paused" if self._run.is_running and self._view.needs[1] else self._run.status

    def show(self, *, at_once: bool = True) -> None:
        """Show where the run stands. Unless `at_once`, show details only once in a while and attributes not at all."""
        run, view = self._run, self._view
        if not run.is_running:
            self._reporter.show(at_once=at_once)
            return
        if view.tells_parent:
            self._parent.tell((*waits_of(run.id, run.waiting), *view.waits_within)[:WAITS_LIMIT])
        if at_once:
            question, paused = view.needs
            self._reporter.call_for(question.kind.value if question else "", paused=paused, running=self._word)
        else:
            self._reporter.show(at_once=False)
        if view.is_opened:
            self._recording.show()

    def show_again(self) -> None:
        """Show everything in any case: the run was reset."""
        self._parent.tell_again()
        self.show()
        if self._view.is_opened:
            self._recording.show_again()

    async def settle(self) -> None:
        """Wait a little for what is being recorded."""
        await self._recording.settle()

    @property
    def last(self) -> WorkflowSnapshot:
        """How the run ended, for the ledger."""
        return self._view.row().evolve(closed=workflow.now())

    def close(self) -> None:
        """Show how the run ended."""
        self._reporter.close(self._word)

    def refuse(self) -> None:
        """Show that nothing began. A first run leaves its id free, and hides no earlier one."""
        self._reporter.close(REFUSED if self._run.is_first else "failed")

    @property
    def _word(self) -> str:
        """The status that lists show where no answer is needed."""
        return self._run.status

    def _seen(self) -> Seen:
        return (self.status, *(question.id for question in self._run.waiting))
