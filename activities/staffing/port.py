"""The port of staffing: who works on a task queue, and who started a workflow."""

from datetime import datetime
from typing import Protocol


class Staff(Protocol):
    """The workers of all hosts, as Temporal knows them."""

    async def count(self, queue: str) -> int:
        """Return how many workers a task queue has, also such as are busy with all their slots."""
        ...

    async def last_seen(self, queue: str) -> datetime | None:
        """Return when a worker of a task queue was last heard of; None: nobody knows one."""
        ...

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started the newest run of another; empty if none did, or none is known."""
        ...

    async def homes(self) -> tuple[str, ...]:
        """Return the task queues of the hosts that have a worker for workspaces."""
        ...
