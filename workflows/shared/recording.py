"""Recording: the ledger is told what people see of a workflow, beside whatever that does."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from activities.tracking.record import RecordActivities, RecordRequest
from activities.workspace.scope import EpisodeScope
from tightloop.ledger.model import TrailEvent, WorkflowSnapshot
from tightloop.value import shorten
from workflows.shared.activities import new_activity_id

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
        if not is_recording and self._see() != self._recorded and workflow.patched("record"):
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
