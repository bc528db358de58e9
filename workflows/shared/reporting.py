"""What a workflow reports: details, search attributes, ledger, alerts, parent."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, FailureError

from activities.alerts.activity import AlertActivities, AlertsSent, SendAlertsRequest
from activities.tracking.activity import RecordActivities, RecordRequest
from activities.workspace.scope import EpisodeScope
from tightloop.episode.budget import Spent
from tightloop.episode.model import REFUSED, EpisodeOutcome
from tightloop.ledger.alert import Alert, delivery_line
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.plan.child import CHILD_STEPS, CHILD_WAITS, ChildNote, ChildWait, StepNote, StepsNote
from tightloop.question import QuestionKind
from tightloop.safety.seal import RefusedPayload
from tightloop.telemetry import METRICS
from tightloop.value import shorten
from workflows.shared.activities import found_no_worker, new_activity_id

# Search attributes are plaintext even where payloads are encrypted: they hold enum values only.
STATUS = SearchAttributeKey.for_keyword("TightloopStatus")
PAUSE_KIND = SearchAttributeKey.for_keyword("TightloopPauseKind")


def is_first_use() -> bool:
    """Return whether nobody but this run may have used its id: not a child of a plan, not a run that follows one."""
    info = workflow.info()
    return info.parent is None and info.continued_run_id is None


class Reporter:
    """Shows the state of a workflow, no more often than needed."""

    def __init__(
        self,
        details: Callable[[], str],
        *,
        called_for: str = "",
        paused: bool = True,
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
            every: shortest time between two of the details that do not follow at once.
            now: the time.
            show: shows the details.
            upsert: changes search attributes, which costs one event.
        """
        self._details, self._every = details, every
        self._now, self._show, self._upsert = now, show, upsert
        self._called_for = (called_for, paused and bool(called_for))
        self._shown_at: datetime | None = None

    def show(self, *, at_once: bool = True) -> None:
        """Refresh the current details; where that can wait, only once in a while."""
        now = self._now()
        if at_once or self._shown_at is None or now - self._shown_at >= self._every:
            self._shown_at = now
            # Unlike search attributes, current details add no event to the history.
            self._show(self._details())

    def call_for(self, kind: str, *, paused: bool = True) -> None:
        """Show in the list of workflows for what a person is needed.

        Args:
            kind: of the question that waits; empty: none does.
            paused: whether the workflow goes on only with an answer.
        """
        if (kind, paused and bool(kind)) != self._called_for:
            self._called_for = (kind, paused and bool(kind))
            shown = PAUSE_KIND.value_set(kind) if kind else PAUSE_KIND.value_unset()
            self._upsert([STATUS.value_set("paused" if kind and paused else "running"), shown])
        self.show()

    def close(self, status: str) -> None:
        """Show how the workflow ended."""
        self._upsert([STATUS.value_set(status), PAUSE_KIND.value_unset()])
        self.show()

    def refuse(self, *, is_new: bool) -> None:
        """Show that nothing began; a run that is the first under its id leaves it free, and hides no earlier one."""
        self.close(REFUSED if is_new else "failed")


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
    """Records a workflow when its status or its questions change; one call at a time, the newest state last.

    How a workflow begins and ends is recorded by the activities that open and close its workspace.
    """

    def __init__(
        self,
        queue: Callable[[], str],
        scope: Callable[[], EpisodeScope],
        seen: Callable[[], Seen],
        snapshot: Callable[[], WorkflowSnapshot],
        events: Callable[[], tuple[TrailEvent, ...]] = tuple,
    ) -> None:
        """Begin where the opening left the ledger; a run that follows another one does not know what that recorded.

        Args:
            queue: the task queue of the workspace's host.
            scope: where the workflow works.
            seen: what people see, in short; a change of it is recorded.
            snapshot: all of it.
            events: hands over the lines of the trail that go with it, each once.
        """
        self._queue, self._scope, self._see, self._snapshot, self._events = queue, scope, seen, snapshot, events
        self._recorded: Seen | None = None if workflow.info().continued_run_id else ("running",)
        self._recording: asyncio.Task[None] | None = None

    def show(self) -> None:
        """Record the workflow if people see something else than was recorded last; nothing waits for that."""
        is_recording = self._recording is not None and not self._recording.done()
        if not is_recording and self._see() != self._recorded:
            self._recording = asyncio.create_task(self._record())

    def show_again(self) -> None:
        """Forget what was recorded: the run was reset."""
        self._recorded = None
        self.show()

    async def settle(self) -> None:
        """Wait a little for what is being recorded: a run that ends takes it along."""
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
                snapshot, events = self._snapshot(), self._events()
                await self._send(RecordRequest(scope=self._scope(), snapshot=snapshot, events=events))
            except ActivityError as error:
                workflow.logger.warning("not in the ledger: %s", error.cause or error)

    async def _send(self, request: RecordRequest) -> None:
        queue = self._queue()
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


ALERT_TIMEOUT = timedelta(minutes=1)
"""For one try on all channels."""
ALERT_PATIENCE = timedelta(minutes=15)
"""For all tries; after that the cause is old news."""
ALERT_PICK_UP_TIMEOUT = timedelta(seconds=20)
"""After this time without a worker on the workspace's queue the workflow's own workers send the alert."""
LAST_ALERT_TIMEOUT = timedelta(seconds=10)
"""How long a workflow that fails waits for its alert: what is not sent when a workflow closes is never sent."""
ALERT_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=8,
)


class Alerts:
    """Sends the alerts of one workflow and notes what became of them."""

    def __init__(
        self,
        queue: str,
        scope: Callable[[], EpisodeScope],
        log: Callable[[str], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start with nothing under way; `log` notes a line in the timeline, `on_end` is called after each alert."""
        self._queue, self._scope, self._log, self._on_end = queue, scope, log, on_end
        # A dictionary, because the order of a set could differ in replay.
        self._sending: dict[asyncio.Task[None], None] = {}

    @property
    def is_sending(self) -> bool:
        """Whether an alert is under way."""
        return bool(self._sending)

    def send(self, alert: Alert) -> asyncio.Task[None]:
        """Send an alert; neither an answer nor a cancellation waits for it."""
        task = asyncio.create_task(self._send(SendAlertsRequest(scope=self._scope(), alert=alert)))
        self._sending[task] = None
        task.add_done_callback(self._forget)
        return task

    async def send_last(self, alert: Alert) -> None:
        """Send an alert and wait a little for that: it would end with the workflow."""
        task = self.send(alert)
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                task.done, timeout=LAST_ALERT_TIMEOUT, timeout_summary="failed: close without the alert"
            )

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._sending.pop(task, None)
        self._on_end()

    async def _send(self, request: SendAlertsRequest) -> None:
        try:
            sent = await self._sent(request)
        except ActivityError as error:
            self._log(f"{request.alert.kind.value} could not be sent: {error.cause or error}")
            return
        if isinstance(sent, RefusedPayload):
            self._log(f"{request.alert.kind.value}: whether it was sent is not known: {sent.reason}")
            return
        for delivery in sent.deliveries:
            self._log(delivery_line(request.alert, delivery))

    async def _sent(self, request: SendAlertsRequest) -> AlertsSent | RefusedPayload:
        """Send from the workspace's queue, or from the workflow's own where that one has no worker."""
        try:
            return await _execute(request, self._queue)
        except ActivityError as error:
            if not found_no_worker(error):
                raise
        return await _execute(request, "")


async def _execute(request: SendAlertsRequest, queue: str) -> AlertsSent | RefusedPayload:
    return await workflow.execute_activity_method(
        AlertActivities.send_alerts,
        request,
        activity_id=new_activity_id(),
        task_queue=queue or None,
        start_to_close_timeout=ALERT_TIMEOUT,
        schedule_to_start_timeout=ALERT_PICK_UP_TIMEOUT if queue else None,
        schedule_to_close_timeout=ALERT_PATIENCE,
        retry_policy=ALERT_RETRIES,
        summary=f"alert: {request.alert.kind.value}",
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


def count_pause(kind: QuestionKind) -> None:
    """Count a wait for a person."""
    name = "tightloop_pauses"
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, {"kind": kind.value})


def count_answer(kind: QuestionKind, waited: timedelta) -> None:
    """Count how long a question waited for its answer."""
    name = "tightloop_answer_seconds"
    made = workflow.metric_meter().create_histogram_float(name, METRICS[name])
    made.record(waited.total_seconds(), {"kind": kind.value})


def count_intervention(message: str) -> None:
    """Count a message of a person that was accepted, by its name."""
    name = "tightloop_interventions"
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, {"message": message})


def count_episode(outcome: EpisodeOutcome, spent: Spent) -> None:
    """Count an episode that ends, and what it spent."""
    name, labels = "tightloop_episodes", {"outcome": outcome.value}
    workflow.metric_meter().create_counter(name, METRICS[name]).add(1, labels)
    values = {
        # A lower bound would pass for the whole.
        **({} if spent.unreported_calls else {"tightloop_episode_tokens": float(spent.tokens)}),
        **({} if spent.unpriced_calls else {"tightloop_episode_cost_usd": spent.cost_usd}),
        "tightloop_episode_minutes": spent.wall_time.total_seconds() / 60,
        "tightloop_episode_iterations": float(spent.iterations),
    }
    for name, value in values.items():
        workflow.metric_meter().create_histogram_float(name, METRICS[name]).record(value, labels)
