"""Keeps activities on the host and in the state home that have their workspace."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.plan.requests import OpenedPlan
from activities.remote.copies import Copies, need_copies
from activities.workspace.requests import Opened
from activities.workspace.scope import EpisodeScope
from tightloop.errors import WorkspaceElsewhereError

ANYWHERE = frozenset({"send_alerts", "look_for_workers"})
OPENING = frozenset({"open_workspace", "open_plan"})
FENCED = frozenset({"hand_off", "execute", "track_iteration"})
"""What a host must not do any more once another one has taken the episode over; `copy_checkpoint` looks itself."""
LOOKS, LOOK_SECONDS = 10, 0.5


@dataclass(frozen=True)
class Home:
    """The home of a worker: what it may take of the work that comes over task queues that other hosts share."""

    queues: tuple[str, ...]
    """Task queues of this host, its own first; see `tightloop.host.identity`."""
    has_workspaces: bool
    """Whether this worker does what workspaces need; False where it only runs workflows."""
    others: Callable[[], Awaitable[tuple[str, ...]]]
    """Returns the task queues of all hosts that have workspaces."""
    copies: Copies | None = None
    """None: the settings name no remote store."""

    async def check(self, activity_type: str, scope: EpisodeScope) -> None:
        """Refuse what belongs to another host.

        Raises:
            WorkspaceElsewhereError: it does; the workflow then asks there.
        """
        if activity_type in ANYWHERE:
            return
        if scope.home and (scope.home not in self.queues or not self.has_workspaces):
            raise WorkspaceElsewhereError(
                f"the workspace {scope.workspace} belongs to the host of task queue {scope.home!r}, and this worker "
                f"is that of {self.queues[0]!r}"
            )
        if scope.home or not (activity_type in OPENING or not self.has_workspaces):
            return
        if not self.has_workspaces:
            raise WorkspaceElsewhereError("this worker only runs workflows", await self._find_others())
        if await asyncio.to_thread(Path(scope.workspace).is_dir):
            return
        if others := tuple(queue for queue in await self.others() if queue not in self.queues):
            raise WorkspaceElsewhereError(
                f"the worker of {self.queues[0]!r} has no workspace {scope.workspace}", others
            )

    async def _find_others(self) -> tuple[str, ...]:
        """Return who has workspaces; a worker that has just started is not known for some seconds."""
        for _ in range(LOOKS):
            if found := await self.others():
                return found
            await asyncio.sleep(LOOK_SECONDS)
        return ()

    async def check_epoch(self, activity_type: str, scope: EpisodeScope) -> None:
        """Refuse to deliver and to record where another host goes on with the episode.

        Raises:
            FencedError: one does.
            SettingsError: this worker cannot look.
            ServiceUnavailableError: the remote store does not answer. Retryable.
        """
        if scope.epoch and activity_type in FENCED:
            await asyncio.to_thread(need_copies(self.copies).check, scope)

    def bind(self, result: Any) -> Any:
        """Return the result of an activity; one that opened a workspace says where that was."""
        if isinstance(result, Opened):
            return result.evolve(home=self.queues[0], copied=self.copies is not None)
        return result.evolve(home=self.queues[0]) if isinstance(result, OpenedPlan) else result
