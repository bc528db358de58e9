"""Activities that look up the workers of a task queue."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from temporalio import activity

from activities.workspace.scope import EpisodeScope
from tightloop.episode.checkpoint import choose_successor
from tightloop.value import Value


class PollerRegistry(Protocol):
    """Looks up the workers on all hosts, as listed by Temporal."""

    async def count(self, queue: str) -> int:
        """Return the number of workers on a task queue, including busy workers."""
        ...

    async def last_seen(self, queue: str) -> datetime | None:
        """Return the time of the last poll of a task queue, or None if no poll is known."""
        ...

    async def parent_of(self, workflow_id: str) -> str:
        """Return the id of the workflow that started the latest run of another workflow.

        Return "" if the other workflow is unknown or has no parent.
        """
        ...

    async def homes(self) -> tuple[str, ...]:
        """Return the task queues of all hosts that have a workspace worker."""
        ...


class CheckWorkersRequest(Value):
    """Request to look for workers on the task queue of a waiting step."""

    scope: EpisodeScope
    queue: str
    waited: timedelta = timedelta()


class WorkerAvailability(Value):
    """The number of workers on a task queue, and the time to wait for them."""

    workers: int = 0
    patience: timedelta = timedelta(minutes=5)
    """Maximum time that a step waits before a person is asked."""
    again: timedelta | None = None
    """Time until the next check. None if the workflow decides."""
    successor: str = ""
    """Task queue of the host that takes over the episode because its own host has been silent for too long."""


class ChildRequest(Value):
    """Request to check whether an open workflow is a child of the requesting workflow."""

    scope: EpisodeScope
    """Scope of the workflow that wants to start the child."""
    workflow_id: str


@dataclass(frozen=True)
class WorkerCheckActivities:
    """Activities that check which workers are available and how long to wait for them."""

    pollers: PollerRegistry
    no_worker_wait: timedelta
    busy_wait: timedelta
    move_after: timedelta | None = None
    """Time that a host may be silent before another one takes over its episodes. If None, only a person moves them."""

    @property
    def definitions(self) -> list[Callable[..., Any]]:
        """Return the activities to register in every worker that runs workflows."""
        return [self.look_for_workers, self.is_child]

    @activity.defn
    async def is_child(self, request: ChildRequest) -> bool:
        """Return whether the requesting workflow started the other workflow, in this run or an earlier one."""
        return await self.pollers.parent_of(request.workflow_id) == request.scope.episode_id

    @activity.defn
    async def look_for_workers(self, request: CheckWorkersRequest) -> WorkerAvailability:
        """Count the workers on a task queue, and return how long to wait for them.

        Busy workers are included in the count.
        """
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
