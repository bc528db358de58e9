"""The workers of all hosts, for activities that look who is there."""

from dataclasses import dataclass

from temporalio.client import Client

from tightloop.client.calls import Calls
from tightloop.client.installation import staffing


@dataclass(frozen=True)
class TemporalStaff:
    """Asks Temporal."""

    client: Client
    main_queue: str

    async def count(self, queue: str) -> int:
        """Return how many workers a task queue has."""
        return len(await staffing.workers_on(Calls(self.client), queue))

    async def homes(self) -> tuple[str, ...]:
        """Return the task queues of the hosts that have a worker for workspaces."""
        return await staffing.queues_with(Calls(self.client), f"{self.main_queue}-workspace-")
