"""Activity that counts the workers of a task queue."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from temporalio import activity

from activities.workspace.scope import EpisodeScope
from tightloop.episode.checkpoint import choose_successor
from tightloop.value import Value


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


class LookRequest(Value):
    """A task queue on which a step waits."""

    scope: EpisodeScope
    queue: str
    waited: timedelta = timedelta()


class Staffing(Value):
    """Who works on it."""

    workers: int = 0
    patience: timedelta = timedelta(minutes=5)
    """How long a step may wait there before a person is asked."""
    again: timedelta | None = None
    """When to look again, where the workflow need not decide that itself."""
    successor: str = ""
    """Task queue of the host that is to go on with the episode: its own has been silent for too long."""


class ChildRequest(Value):
    """An open workflow that has the id of a child to be started."""

    scope: EpisodeScope
    """Of the workflow that starts the child."""
    workflow_id: str


@dataclass(frozen=True)
class StaffingActivities:
    """Knows who works where, and how long to wait for them."""

    staff: Staff
    no_worker_wait: timedelta
    busy_wait: timedelta
    move_after: timedelta | None = None
    """How long a host may be silent before another one goes on with its episodes; None: until a person moves them."""

    @property
    def definitions(self) -> list[Callable[..., Any]]:
        """The activities that every worker with workflows registers."""
        return [self.look_for_workers, self.is_child]

    @activity.defn
    async def is_child(self, request: ChildRequest) -> bool:
        """Return whether the workflow that asks started the other one, in this run or an earlier one."""
        return await self.staff.parent_of(request.workflow_id) == request.scope.episode_id

    @activity.defn
    async def look_for_workers(self, request: LookRequest) -> Staffing:
        """Return who works on a task queue: a busy worker is not a missing one."""
        workers = await self.staff.count(request.queue)
        found = Staffing(workers=workers, patience=self.busy_wait if workers else self.no_worker_wait)
        is_home = request.queue == request.scope.home
        if self.move_after is None or not is_home or not request.scope.epoch:
            return found
        successor = choose_successor(request.scope.home, await self.staff.homes(), request.scope.episode_id)
        if not successor:
            return found
        seen = await self.staff.last_seen(request.queue)
        # It worked before the step began to wait, as far as anybody knows.
        silent = request.waited if seen is None else min(request.waited, datetime.now(UTC) - seen)
        if silent >= self.move_after:
            return found.evolve(successor=successor)
        left = self.move_after - silent
        return found.evolve(again=left, patience=max(found.patience, request.waited + left))
