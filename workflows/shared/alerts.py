"""Alerts: people are told beside whatever the workflow does."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from activities.alerts.activity import AlertActivities, AlertsSent, SendAlertsRequest
from activities.workspace.scope import EpisodeScope
from tightloop.ledger.alert import Alert, delivery_line
from tightloop.safety.seal import RefusedPayload
from workflows.shared.activities import found_no_worker, new_activity_id

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
