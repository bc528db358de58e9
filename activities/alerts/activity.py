"""Alert activities, which build an alert, send it through the configured channels and record the deliveries."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.workspace.scope import EpisodeScope
from tightloop.ledger.alert import (
    ERROR_CHARACTERS,
    Alert,
    AlertKind,
    Delivery,
    Notice,
    delivery_line,
    episode_link,
    notice_of,
)
from tightloop.value import Value, shorten

if TYPE_CHECKING:
    from activities.alerts.channels import SentAlerts


class NotDeliveredError(Exception):
    """Raised if a channel did not accept a notice. The reason does not contain secrets or secret URLs."""

    def __init__(self, reason: str, *, retryable: bool, retry_delay: timedelta | None = None) -> None:
        """Store the reason, whether a retry may help, and the delay that the receiver requested."""
        super().__init__(reason)
        self.reason, self.retryable, self.retry_delay = reason, retryable, retry_delay


class Channel(Protocol):
    """A way to notify a person."""

    @property
    def name(self) -> str:
        """Channel name in the user's settings."""
        ...

    @property
    def kinds(self) -> frozenset[AlertKind]:
        """Kinds of notices that the channel accepts. If empty, all kinds are accepted."""
        ...

    async def deliver(self, notice: Notice) -> None:
        """Deliver a notice once, within 30 s.

        The receiver may get the same notice twice. It can recognise a duplicate by its ID.

        Raises:
            NotDeliveredError: the notice was not accepted.
        """


@dataclass(frozen=True)
class AlertDelivery:
    """The alert channels, and the content that an alert may include."""

    channels: tuple[Channel, ...] = ()
    ui_url: str = ""
    namespace: str = ""
    page_of: Callable[[str], str] = lambda _workflow_id: ""
    """Function that returns the web UI's URL of an episode or plan, or "" if the UI is not served."""
    full: bool = False
    """Include the reason and the goal."""


RECORD_TIMEOUT_S = 2.0
"""Maximum time that an alert waits until its delivery is recorded."""
# A channel may take 30 s (see `Channel`), and the delivery record is accessed twice.
RETRY_MARGIN = timedelta(seconds=40)
"""Minimum time that must remain for another attempt."""

logger = logging.getLogger("tightloop")


class SendAlertsRequest(Value):
    """Request to send one alert."""

    scope: EpisodeScope
    alert: Alert


class AlertsSent(Value):
    """The delivery result for each channel."""

    deliveries: tuple[Delivery, ...] = ()


@dataclass(frozen=True)
class AlertActivities:
    """Sends alerts. If a channel rejects an alert, Temporal retries only that channel."""

    post: AlertDelivery
    sent_alerts: "SentAlerts"

    @activity.defn
    async def send_alerts(self, request: SendAlertsRequest) -> AlertsSent:
        """Notify all subscribed channels. Channels that have already delivered the alert are skipped.

        Raises:
            ApplicationError: a channel may accept the alert later. Retryable after the delay that the channel
                requested.
        """
        channels = [item for item in self.post.channels if not item.kinds or request.alert.kind in item.kinds]
        # No retry for these: delivered by an earlier attempt or run, or permanently rejected.
        deliveries = [Delivery.model_validate(detail) for detail in activity.info().heartbeat_details]
        by_channel = {delivery.channel: delivery for delivery in deliveries}
        try:
            # In a thread: the ledger is SQLite, which would block the event loop.
            remembered = await asyncio.wait_for(
                asyncio.to_thread(self.sent_alerts.list_deliveries, request.scope, request.alert), RECORD_TIMEOUT_S
            )
        except TimeoutError:
            remembered = ()
        settled = {delivery.channel: delivery for delivery in remembered} | by_channel
        notice = notice_of(
            request.alert,
            link=episode_link(self.post.ui_url, self.post.namespace, request.alert.episode_id),
            page=self.post.page_of(request.alert.episode_id),
            full=self.post.full,
        )
        tries = [self._try(channel, notice, request) for channel in channels if channel.name not in settled]
        refused: list[tuple[str, NotDeliveredError]] = []
        # Concurrently, so that a slow channel does not delay the others.
        for name, ended in await asyncio.gather(*tries):
            if isinstance(ended, Delivery):
                settled[name] = ended
            else:
                refused.append((name, ended))
        wait = max((error.retry_delay for _, error in refused if error.retry_delay), default=None)
        if any(error.retryable for _, error in refused) and _may_retry(wait):
            # Permanent failures are settled as well, so that only the others are retried. The details of the last
            # heartbeat are all that one attempt of an activity can pass to the next.
            settled |= {name: _failed_delivery(name, error) for name, error in refused if not error.retryable}
            activity.heartbeat(*(delivery.model_dump(mode="json") for delivery in settled.values()))
            raise ApplicationError(
                "; ".join(f"{name}: {shorten(error.reason, ERROR_CHARACTERS)}" for name, error in refused),
                type="NotDeliveredError",
                next_retry_delay=wait,
            )
        settled |= {name: _failed_delivery(name, error) for name, error in refused}
        for delivery in settled.values():
            if delivery.at is None:
                await self._note(request, delivery)
        return AlertsSent(deliveries=tuple(settled[item.name] for item in channels if item.name in settled))

    async def _try(
        self, channel: Channel, notice: Notice, request: SendAlertsRequest
    ) -> tuple[str, Delivery | NotDeliveredError]:
        try:
            await channel.deliver(notice)
        except NotDeliveredError as error:
            logger.warning(
                "could not send alert %s for %s to %s: %s", notice.kind.value, notice.episode_id, channel.name, error
            )
            return channel.name, error
        now = datetime.now(UTC)
        delivery = Delivery(
            channel=channel.name,
            at=now,
            seconds=round(max((now - request.alert.at).total_seconds(), 0.0), 3),
            tries=activity.info().attempt,
        )
        await self._note(request, delivery)
        return channel.name, delivery

    async def _note(self, request: SendAlertsRequest, delivery: Delivery) -> None:
        logger.info("alert %s: %s", request.alert.episode_id, delivery_line(request.alert, delivery))
        try:
            await asyncio.wait_for(
                asyncio.to_thread(self.sent_alerts.record_delivery, request.scope, request.alert, delivery),
                RECORD_TIMEOUT_S,
            )
        except TimeoutError:
            logger.warning(
                "alert %s: the delivery could not be recorded in the timeline within %g s",
                request.alert.episode_id,
                RECORD_TIMEOUT_S,
            )


def _may_retry(wait: timedelta | None) -> bool:
    info = activity.info()
    policy, whole = info.retry_policy, info.schedule_to_close_timeout
    # Temporal drops the heartbeat details with the last attempt, so the result must be recorded now.
    if policy is not None and 0 < policy.maximum_attempts <= info.attempt:
        return False
    if whole is None:
        return True
    return datetime.now(UTC) + (wait or timedelta()) + RETRY_MARGIN <= info.scheduled_time + whole


def _failed_delivery(name: str, error: NotDeliveredError) -> Delivery:
    return Delivery(channel=name, error=shorten(error.reason, ERROR_CHARACTERS), tries=activity.info().attempt)
