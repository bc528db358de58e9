"""Retention activity."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from temporalio import activity

from tightloop.value import Value


class Collected(Value):
    """What one collection freed, over all projects of a host."""

    workflows: int = 0
    artifacts: int = 0
    trees: int = 0
    files: int = 0
    rows: int = 0
    """Of the ledger and the outbox."""
    failures: int = 0
    """Of the memory."""
    size_bytes: int = 0
    """Of all but rows and failures."""
    marked: int = 0
    """Workflows that a person keeps."""
    busy: int = 0
    """Projects that were being worked on: their trees, rows and plans are left for the next run."""
    used_share: float = 0.0
    """How much of the nearer bound of the disk is used afterwards; 0 without bounds."""

    def __add__(self, other: "Collected") -> "Collected":
        """Return both together; the share is the later one's."""
        counts = {
            name: value + getattr(other, name) for name, value in self if name not in ("used_share", "marked", "busy")
        }
        return other.evolve(**counts)


@dataclass(frozen=True)
class RetentionActivities:
    """Collects on the host where it runs."""

    collect: Callable[[], Awaitable[Collected]]
    """Asks Temporal what is open, and frees what the settings of this host allow."""

    @activity.defn
    async def collect_leftovers(self) -> Collected:
        """Free what no open or kept workflow needs. Idempotent; takes nothing: the settings of the host say all.

        Raises:
            ServiceUnavailableError: Temporal cannot be asked; nothing was freed. Retryable.
        """
        return await self.collect()
