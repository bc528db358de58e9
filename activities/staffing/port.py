"""The port of staffing: who works on a task queue."""

from typing import Protocol


class Staff(Protocol):
    """The workers of all hosts, as Temporal knows them."""

    async def count(self, queue: str) -> int:
        """Return how many workers a task queue has, also such as are busy with all their slots."""
        ...
