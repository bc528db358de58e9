"""Remembers delivered alerts in the trail of the project."""

import logging
from dataclasses import dataclass
from pathlib import Path

from activities.workspace.folders import state_folder_of
from activities.workspace.scope import EpisodeScope
from activities.workspace.trail import Call, Ledgers, this_call
from tightloop.errors import TightloopError
from tightloop.ledger.alert import Alert, Delivery, delivery_line
from tightloop.ledger.model import TrailEvent

logger = logging.getLogger("tightloop")

DELIVERED = "alert"
NOT_DELIVERED = "alert_failed"


@dataclass(frozen=True)
class TrailMemory:
    """Keeps deliveries as events of the ledger, where the workspace is on this host and was opened."""

    ledgers: Ledgers

    def delivered(self, scope: EpisodeScope, alert: Alert) -> tuple[Delivery, ...]:
        """Return what was delivered; see the port."""
        start, events = f"{DELIVERED}/{alert.key}/", tuple[TrailEvent, ...]()
        try:
            if state_folder_of(scope).is_dir():
                events = self.ledgers(Path(scope.workspace)).events(scope.episode_id)
        except (TightloopError, OSError) as error:
            logger.warning("alert %s: the trail cannot be read: %s", scope.episode_id, error)
        return tuple(
            Delivery(channel=event.key.removeprefix(start), at=event.at, known=True)
            for event in events
            if event.kind == DELIVERED and event.key.startswith(start)
        )

    def note(self, scope: EpisodeScope, alert: Alert, delivery: Delivery) -> None:
        """Keep it; see the port."""
        event = delivery_event(alert, delivery, this_call())
        try:
            if state_folder_of(scope).is_dir():
                self.ledgers(Path(scope.workspace)).add_event(event)
        except (TightloopError, OSError) as error:
            # A full disk is a reason to alert, not one to be silent.
            logger.warning("alert %s: not in the trail: %s", alert.episode_id, error)


def delivery_event(alert: Alert, delivery: Delivery, call: Call) -> TrailEvent:
    """Return the line of the trail about a delivery, or a failure."""
    kind = NOT_DELIVERED if delivery.at is None else DELIVERED
    return TrailEvent(
        episode_id=alert.episode_id,
        kind=kind,
        key=f"{kind}/{alert.key}/{delivery.channel}",
        text=delivery_line(alert, delivery),
        at=delivery.at or call.scheduled,
    )
