"""The workers of all hosts, for activities that look who is there."""

from dataclasses import dataclass
from datetime import datetime

from temporalio.client import Client

from tightloop.client.calls import Calls
from tightloop.client.installation import staffing


@dataclass(frozen=True)
class TemporalStaff:
    """Asks Temporal."""

    client: Client
    main_queue: str
    version: str = ""
    """Of the workers of this process, and so of the workflows that ask."""

    async def count(self, queue: str) -> int:
        """Return how many workers a task queue has that Temporal would give the step of such a workflow."""
        workers = await staffing.workers_on(Calls(self.client), queue)
        return sum(one.gets_new_work or one.version == self.version for one in workers)

    async def last_seen(self, queue: str) -> datetime | None:
        """Return when a worker of a task queue was last heard of."""
        workers = await staffing.workers_on(Calls(self.client), queue)
        return max((worker.last_seen for worker in workers if worker.last_seen), default=None)

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started the newest run of another; empty if none did, or none is known."""
        return await Calls(self.client).parent_of(workflow_id)

    async def homes(self) -> tuple[str, ...]:
        """Return the task queues of the hosts that have a worker for workspaces."""
        return await staffing.queues_with(Calls(self.client), f"{self.main_queue}-workspace-")
