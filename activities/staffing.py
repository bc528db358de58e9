"""Activities that look for the workers of a task queue."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from temporalio import activity

from activities.workspace.scope import EpisodeScope
from tightloop.episode.checkpoint import choose_successor
from tightloop.value import Value


class PollerRegistry(Protocol):
    """Workers of all hosts, as known to Temporal."""

    async def count(self, queue: str) -> int:
        """Return the number of workers on a task queue, including those with all slots busy."""
        ...

    async def last_seen(self, queue: str) -> datetime | None:
        """Return the last poll of any worker on a task queue; None if none is known."""
        ...

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started the newest run of another.

        "" if there is none, or it is unknown.
        """
        ...

    async def homes(self) -> tuple[str, ...]:
        """Return the task queues of the hosts with a workspace worker."""
        ...


class CheckWorkersRequest(Value):
    """Request to look for workers on the task queue of a waiting step."""

    scope: EpisodeScope
    queue: str
    waited: timedelta = timedelta()


class WorkerAvailability(Value):
    """Workers of a task queue, and how long to wait for them."""

    workers: int = 0
    patience: timedelta = timedelta(minutes=5)
    """Time that a step may wait before a person is asked."""
    again: timedelta | None = None
    """Time until the next look; None if the workflow decides."""
    successor: str = ""
    """Task queue of the host that takes over the episode, because its own has been silent for too long."""


class ChildRequest(Value):
    """Request about an open workflow that already has the id of a child to start."""

    scope: EpisodeScope
    """Scope of the workflow that starts the child."""
    workflow_id: str


@dataclass(frozen=True)
class WorkerCheckActivities:
    """Activities that know all workers, and how long to wait for them."""

    pollers: PollerRegistry
    no_worker_wait: timedelta
    busy_wait: timedelta
    move_after: timedelta | None = None
    """Silence of a host after which another takes over its episodes; None: only a person moves them."""

    @property
    def definitions(self) -> list[Callable[..., Any]]:
        """Activities that every worker with workflows registers."""
        return [self.look_for_workers, self.is_child]

    @activity.defn
    async def is_child(self, request: ChildRequest) -> bool:
        """Return whether the requesting workflow started the other one, in this run or an earlier one."""
        return await self.pollers.parent_of(request.workflow_id) == request.scope.episode_id

    @activity.defn
    async def look_for_workers(self, request: CheckWorkersRequest) -> WorkerAvailability:
        """Return the workers of a task queue and the time to wait; busy workers are not missing."""
        workers = await self.pollers.count(request.queue)
        result = WorkerAvailability(workers=workers, patience=self.busy_wait if workers else self.no_worker_wait)
        is_home = request.queue == request.scope.home
        if self.move_after is None or not is_home or not request.scope.epoch:
            return result
        successor = choose_successor(request.scope.home, await self.pollers.homes(), request.scope.episode_id)
        if not successor:
            return result
        last_seen = await self.pollers.last_seen(request.queue)
        # Only silence during this wait counts: a host that was off before did not delay the step.
        # Without data, assume that it worked until the step began to wait.
        silent = request.waited if last_seen is None else min(request.waited, datetime.now(UTC) - last_seen)
        if silent >= self.move_after:
            return result.evolve(successor=successor)
        left = self.move_after - silent
        return result.evolve(again=left, patience=max(result.patience, request.waited + left))
