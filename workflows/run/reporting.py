"""A run's reports: details and search attributes in Temporal, its ledger row, and its open questions for its parent."""

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
from tightloop.run.outcome import label
from tightloop.run.question import CHILD_WAITS, WAITS_LIMIT, ChildNote, ChildWait, Question, waits_of
from tightloop.value import shorten
from workflows.run.activities import new_activity_id
from workflows.run.kernel import Run

# Search attributes are plain text even if payloads are encrypted, so they hold enum values only.
STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSE_KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")


class Reporter:
    """Publishes details and search attributes, and avoids unnecessary updates."""

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
        """Start with the search attributes that the previous run set.

        Args:
            details: returns the current details as Markdown.
            called_for: kind of the question in the search attributes. Empty if no question is open.
            paused: whether the search attributes show that the workflow is blocked until an answer arrives.
            running: status to show while the workflow is not waiting.
            every: minimum time between two refreshes of the details, unless they are urgent.
            now: returns the current time.
            show: publishes the details.
            upsert: changes search attributes. Each change adds one event to the history.
        """
        self._details, self._every = details, every
        self._now, self._show, self._upsert = now, show, upsert
        self._called_for = (called_for, "paused" if paused and called_for else running)
        self._shown_at: datetime | None = None

    def show(self, *, at_once: bool = True) -> None:
        """Refresh the current details. If `at_once` is False, refresh them at most once per interval."""
        now = self._now()
        if at_once or self._shown_at is None or now - self._shown_at >= self._every:
            self._shown_at = now
            # Unlike search attributes, current details add no event to the history.
            self._show(self._details())

    def call_for(self, kind: str, *, paused: bool = True, running: str = "running") -> None:
        """Update the search attributes with the kind of answer that is needed.

        Args:
            kind: kind of the open question. Empty if no question is open.
            paused: whether the workflow is blocked until an answer arrives.
            running: status to show while the workflow is not waiting.
        """
        status = "paused" if kind and paused else running
        # Each upsert adds an event to the history, so an unchanged value is not sent again.
        if (kind, status) != self._called_for:
            self._called_for = (kind, status)
            pause_kind = PAUSE_KIND.value_set(kind) if kind else PAUSE_KIND.value_unset()
            self._upsert([STATUS.value_set(status), pause_kind])
        self.show()

    def close(self, status: str) -> None:
        """Publish the final status."""
        self._upsert([STATUS.value_set(status), PAUSE_KIND.value_unset()])
        self.show()


RECORD_TIMEOUT = timedelta(seconds=30)
RECORD_PATIENCE = timedelta(minutes=10)
"""Timeout of all attempts to record a change. The next change sends the complete state anyway."""
PICK_UP_TIMEOUT = timedelta(minutes=1)
SETTLE_TIMEOUT = timedelta(seconds=10)
"""Maximum time to wait at the end of a run for a record that is still being sent."""
RECORD_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=10,
)
GOAL_CHARACTERS = 200
StatusKey = tuple[str, ...]
"""Status and ids of open questions. A change triggers a record."""


class Recording:
    """Records a run in the ledger when its status or questions change.

    Only one call runs at a time. The last call records the newest state. The activities that open and
    close the workspace record the start and the end of a run.
    """

    def __init__(
        self,
        run: Run,
        visible_state: Callable[[], StatusKey],
        row: Callable[[], WorkflowSnapshot],
        events: Callable[[], tuple[TrailEvent, ...]] = tuple,
    ) -> None:
        """Start in the state that was recorded when the workspace was opened.

        After continue-as-new, the recorded state is unknown.

        Args:
            run: provides the scope and the task queue.
            visible_state: returns a short form of the visible state. A record is written when it changes.
            row: returns the full row.
            events: returns pending timeline events. Each event is returned only once.
        """
        self._run, self._see, self._row, self._events = run, visible_state, row, events
        self._recorded: StatusKey | None = None if workflow.info().continued_run_id else ("running",)
        self._recording: asyncio.Task[None] | None = None

    def show(self) -> None:
        """Record the run in the background if its visible state has changed."""
        is_recording = self._recording is not None and not self._recording.done()
        if not is_recording and self._see() != self._recorded:
            self._recording = asyncio.create_task(self._record())

    def show_again(self) -> None:
        """Record the run after a reset, even if its visible state has not changed."""
        self._recorded = None
        self.show()

    async def settle(self) -> None:
        """Wait for up to `SETTLE_TIMEOUT` for a record that is being written.

        Otherwise, the record would be lost when the run ends.
        """
        recording = self._recording
        if recording is not None and not recording.done():
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    recording.done, timeout=SETTLE_TIMEOUT, timeout_summary="continue without the record"
                )

    async def _record(self) -> None:
        while (state := self._see()) != self._recorded:
            # Set before the call: a change that arrives during it starts another round.
            self._recorded = state
            await self.send(self._row())

    async def send(self, snapshot: WorkflowSnapshot) -> None:
        """Record a row and the pending timeline events. A failure is only logged."""
        try:
            await self._send(RecordRequest(scope=self._run.scope, snapshot=snapshot, events=self._events()))
        except ActivityError as error:
            workflow.logger.warning("could not write the ledger entry: %s", error.cause or error)

    async def _send(self, request: RecordRequest) -> None:
        # The ledger is a file on the host that has the workspace.
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
            summary="update the ledger entry",
        )


def first_row(kind: str, goal: str, executor: str = "") -> WorkflowSnapshot:
    """Return the first ledger row for a workflow."""
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
    """Send the open questions to the parent workflow as a signal.

    Raises:
        FailureError: the parent has closed.
    """
    info = workflow.info()
    if info.parent is not None:
        parent = workflow.get_external_workflow_handle(info.parent.workflow_id)
        await parent.signal(CHILD_WAITS, ChildNote(workflow_id=info.workflow_id, waits=waits))


class ParentReporter:
    """Signals open questions to the parent plan. Unchanged questions are not sent again."""

    def __init__(
        self, *, is_child: bool, is_first_run: bool, send: Callable[[Waits], Awaitable[None]] = signal_parent
    ) -> None:
        """Start without a previous report. After continue-as-new, the last report is unknown."""
        self._is_child, self._send = is_child, send
        self._sent: Waits | None = () if is_first_run else None
        self._wanted: Waits = ()
        self._sending: asyncio.Task[None] | None = None

    def report(self, waits: Waits) -> None:
        """Send the open questions in the background. The newest state is sent last."""
        self._wanted = waits
        is_telling = self._sending is not None and not self._sending.done()
        if self._is_child and waits != self._sent and not is_telling:
            self._sending = asyncio.create_task(self._send_changes())

    def report_again(self) -> None:
        """Forget the last report after a reset, so that the questions are sent again."""
        self._sent = None

    async def _send_changes(self) -> None:
        while self._wanted != self._sent:
            # Set before the signal: a change that arrives during it starts another round.
            waits = self._sent = self._wanted
            try:
                await self._send(waits)
            except FailureError:
                return  # the plan has ended, and ends this workflow too


class View(ABC):
    """The views of one kind of run."""

    @property
    @abstractmethod
    def tells_parent(self) -> bool:
        """True if the open questions are reported to the parent workflow."""

    @property
    def waits_within(self) -> tuple[ChildWait, ...]:
        """Open questions in child workflows."""
        return ()

    @property
    @abstractmethod
    def is_opened(self) -> bool:
        """True if the workspace is open. The ledger then has a row for the run."""

    @property
    @abstractmethod
    def needs(self) -> tuple[Question | None, bool]:
        """The most important open question, and whether the run is blocked until it is answered."""

    @abstractmethod
    def details(self) -> str:
        """Return the current details as Markdown."""

    @abstractmethod
    def row(self) -> WorkflowSnapshot:
        """Return the ledger row."""

    def take_events(self) -> tuple[TrailEvent, ...]:
        """Return the pending timeline events and clear the list.

        The result is empty if activities record the events.
        """
        return ()


class Reporting:
    """Publishes the state of a run after each change, and avoids unnecessary updates."""

    def __init__(self, run: Run, view: View, *, every: timedelta = timedelta()) -> None:
        """Start with the search attributes of the previous run.

        `every` is the minimum time between two refreshes of the details.
        """
        info = workflow.info()
        self._run, self._view = run, view
        question, paused = view.needs
        kind = question.kind.value if question else ""
        self._reporter = Reporter(view.details, called_for=kind, paused=paused, every=every)
        self._recording = Recording(run, self._visible_state, view.row, view.take_events)
        self._parent = ParentReporter(is_child=info.parent is not None, is_first_run=info.continued_run_id is None)

    @property
    def status(self) -> str:
        """`paused` if the run is blocked until a question is answered, otherwise the run's own status."""
        return "paused" if self._run.is_running and self._view.needs[1] else self._run.status

    def show(self, *, at_once: bool = True) -> None:
        """Publish the state. If `at_once` is False, only refresh the details, at most once per interval."""
        run, view = self._run, self._view
        # Questions may still be open after the end; they must not replace the final status.
        if not run.is_running:
            self._reporter.show(at_once=at_once)
            return
        if view.tells_parent:
            self._parent.report((*waits_of(run.id, run.waiting), *view.waits_within)[:WAITS_LIMIT])
        if at_once:
            question, paused = view.needs
            self._reporter.call_for(question.kind.value if question else "", paused=paused, running=self._word)
        else:
            self._reporter.show(at_once=False)
        if view.is_opened:
            self._recording.show()

    def show_again(self) -> None:
        """Publish the complete state after a reset, even if it has not changed."""
        self._parent.report_again()
        self.show()
        if self._view.is_opened:
            self._recording.show_again()

    async def settle(self) -> None:
        """Wait a few seconds for a record that is still being sent."""
        await self._recording.settle()

    @property
    def last(self) -> WorkflowSnapshot:
        """Final ledger row."""
        return self._view.row().evolve(closed=workflow.now())

    def close(self) -> None:
        """Publish the final status."""
        self._reporter.close(self._word)

    def refuse(self) -> None:
        """Publish the fact that the run was refused.

        The ID of a first run can be used again. A refused run does not hide an earlier run.
        """
        self._reporter.close(REFUSED if self._run.is_first else "failed")

    async def record_refused(self) -> None:
        """Record the end of a run whose workspace was not opened.

        No activity records the end of such a run.
        """
        if self._run.is_first:
            await self._recording.send(self.last.evolve(started=workflow.info().workflow_start_time))

    @property
    def _word(self) -> str:
        """Status to show in lists while no question is open."""
        return label(self._run.status, self._run.qualifier)

    def _visible_state(self) -> StatusKey:
        return (self.status, *(question.id for question in self._run.waiting))
