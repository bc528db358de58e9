"""Moments at which a process kills itself with SIGKILL: each that was asked for, once.

A moment is the name of an activity, of an update, or `start`, and `before` or `after`: `settle_children.after` is when
all is done and Temporal has not been told, `dispatch.after` when the plan has taken it and the sender was not answered.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import (
    Interceptor as ClientInterceptor,
)
from temporalio.client import (
    OutboundInterceptor,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


def ask_for_death(folder: Path, moment: str) -> None:
    """Have the process die that comes to this moment first."""
    (folder / f"{moment}.asked").touch()


def died_at(folder: Path) -> list[str]:
    """Return the moments at which a process died."""
    return [path.stem for path in sorted(folder.glob("*.died"))]


class Deaths(ClientInterceptor, Interceptor):
    """Kills this process at the moments that are asked for in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _DyingClient(next, self)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _DyingActivities(next, self)

    def come(self, moment: str) -> None:
        """Die, if this is a moment to."""
        with suppress(FileNotFoundError):
            # The mark goes first: the process after this one must go on.
            (self._folder / f"{moment}.asked").rename(self._folder / f"{moment}.died")
            os.kill(os.getpid(), signal.SIGKILL)


class _DyingActivities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, deaths: Deaths) -> None:
        super().__init__(next)
        self._deaths = deaths

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """Run the activity between two moments."""
        name = activity.info().activity_type
        self._deaths.come(f"{name}.before")
        result = await self.next.execute_activity(input)
        self._deaths.come(f"{name}.after")
        return result


class _DyingClient(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, deaths: Deaths) -> None:
        super().__init__(next)
        self._deaths = deaths

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        """Start between two moments."""
        self._deaths.come("start.before")
        handle = await super().start_workflow(input)
        self._deaths.come("start.after")
        return handle

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
        """Send an update between two moments."""
        self._deaths.come(f"{input.update}.before")
        handle = await super().start_workflow_update(input)
        self._deaths.come(f"{input.update}.after")
        return handle
