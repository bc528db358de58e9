"""The staffing activity: looks whether a task queue has workers, for a workflow whose step nobody took."""

from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity

from activities.staffing.port import Staff
from activities.workspace.scope import EpisodeScope
from tightloop.value import Value


class LookRequest(Value):
    """A task queue on which a step waits."""

    scope: EpisodeScope
    queue: str


class Staffing(Value):
    """Who works on it."""

    workers: int = 0
    patience: timedelta = timedelta(minutes=5)
    """How long a step may wait there before a person is asked."""


@dataclass(frozen=True)
class StaffingActivities:
    """Knows who works where, and how long to wait for them."""

    staff: Staff
    no_worker_wait: timedelta
    busy_wait: timedelta

    @activity.defn
    async def look_for_workers(self, request: LookRequest) -> Staffing:
        """Return who works on a task queue: a busy worker is not a missing one."""
        workers = await self.staff.count(request.queue)
        return Staffing(workers=workers, patience=self.busy_wait if workers else self.no_worker_wait)
