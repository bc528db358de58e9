"""Alerts into the log of the worker."""

import logging

from tightloop.alert import AlertKind, Notice

logger = logging.getLogger("tightloop.alert")


class Log:
    """Writes a notice as one line of the log, as a warning."""

    def __init__(self, name: str, *, kinds: frozenset[AlertKind] = frozenset()) -> None:
        """Take the kinds that it is for; none: all."""
        self.name = name
        self.kinds = kinds

    async def deliver(self, notice: Notice) -> None:
        """Write it; see the port."""
        logger.warning("%s", " ".join(notice.text.split()))
