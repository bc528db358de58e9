"""The ports of the inspection."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tightloop.loop.model import Packet

History = Callable[[Path], tuple[str, ...]]
"""Returns the last commits of a repository, the newest first, as `<id> <subject>`; blocking, without exceptions."""


class Packets(Protocol):
    """The packets of one project."""

    def keep(self, packet: Packet) -> None:
        """Keep a packet under its id. Idempotent."""
        ...

    def find(self, packet_id: str) -> Packet | None:
        """Return a packet; None: this project has none with this id."""
        ...


PacketStores = Callable[[Path], Packets]
"""Returns the packets of the project in a workspace."""
