"""Writes alerts to the log of the worker."""

import logging
from dataclasses import dataclass

from tightloop.ledger.alert import AlertKind, Notice

logger = logging.getLogger("tightloop.ledger.alert")


@dataclass(frozen=True)
class Log:
    """Writes a notice as one line of the log: a warning, unless it is a digest."""

    name: str
    kinds: frozenset[AlertKind] = frozenset()

    async def deliver(self, notice: Notice) -> None:
        """Write it; see the port."""
        level = logging.INFO if notice.kind is AlertKind.DIGEST else logging.WARNING
        logger.log(level, "%s", " ".join(notice.text.split()))
