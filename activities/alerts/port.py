"""The ports of alerts: channels, and the memory of what was delivered."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from activities.workspace.scope import EpisodeScope
from tightloop.ledger.alert import Alert, AlertKind, Delivery, Notice


class NotDeliveredError(Exception):
    """A channel did not take a notice. The reason shows no secret, and no address that may be one."""

    def __init__(self, reason: str, *, again: bool, after: timedelta | None = None) -> None:
        """Take the reason, whether another try may help, and how long the other side asks to wait."""
        super().__init__(reason)
        self.reason, self.again, self.after = reason, again, after


class Channel(Protocol):
    """One way to a person."""

    @property
    def name(self) -> str:
        """The user's name for it."""
        ...

    @property
    def kinds(self) -> frozenset[AlertKind]:
        """Kinds that it takes; empty: all."""
        ...

    async def deliver(self, notice: Notice) -> None:
        """Deliver once, within 30 s. The receiver may see a notice twice and knows it by its id.

        Raises:
            NotDeliveredError: it was not taken.
        """


class Memory(Protocol):
    """Delivered alerts of each episode, kept across workers and runs. Never fails: without it alerts may repeat."""

    def delivered(self, scope: EpisodeScope, alert: Alert) -> tuple[Delivery, ...]:
        """Return the deliveries of this alert so far. Blocking, a few milliseconds."""
        ...

    def note(self, scope: EpisodeScope, alert: Alert, delivery: Delivery) -> None:
        """Keep what became of an alert on a channel. Blocking, a few milliseconds."""


@dataclass(frozen=True)
class Post:
    """Channels of alerts, and how much an alert may contain."""

    channels: tuple[Channel, ...] = ()
    ui_url: str = ""
    namespace: str = ""
    page_of: Callable[[str], str] = lambda _workflow_id: ""
    """Returns the address of an episode or plan on the page; empty: nobody serves it."""
    full: bool = False
    """With the reason and the goal."""
