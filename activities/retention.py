"""Retention activity."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from temporalio import activity

from tightloop.value import Value


class CollectionTotals(Value):
    """The amount of data freed by one collection across all projects on a host."""

    workflows: int = 0
    artifacts: int = 0
    trees: int = 0
    files: int = 0
    rows: int = 0
    """Number of ledger and outbox rows."""
    failures: int = 0
    """Number of failures removed from the memory."""
    size_bytes: int = 0
    """Number of bytes freed, excluding rows and failures."""
    marked: int = 0
    """Number of workflows that a person marked to keep."""
    busy: int = 0
    """Number of projects in use, whose trees, rows and plans are left for the next run."""
    used_share: float = 0.0
    """Used share of the tighter disk limit after the collection. 0 if there are no limits."""

    def __add__(self, other: "CollectionTotals") -> "CollectionTotals":
        """Add two totals.

        The values of `used_share`, `marked` and `busy` are taken from the later total.
        """
        # Every collection counts marked and busy ones again, so a sum would count them several times.
        counts = {
            name: value + getattr(other, name) for name, value in self if name not in ("used_share", "marked", "busy")
        }
        return other.evolve(**counts)


@dataclass(frozen=True)
class RetentionActivities:
    """Activities that free up space by deleting data on the host where they run."""

    collect: Callable[[], Awaitable[CollectionTotals]]
    """Asks Temporal for open workflows and frees the data that the host's settings allow."""

    @activity.defn
    async def collect_leftovers(self) -> CollectionTotals:
        """Free data that no open or kept workflow needs. Idempotent.

        The host's settings determine which data is freed.

        Raises:
            ServiceUnavailableError: Temporal is unreachable. Nothing was freed. Retryable.
        """
        return await self.collect()
