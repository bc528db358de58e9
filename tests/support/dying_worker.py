"""A worker that kills itself at one place of its first delivery, and never again.

python -m tests.support.dying_worker <address> <task queue> <folder of notes> <place>
"""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from activities.executor.outbox import Outbox
from activities.executor.port import Control, Executor
from tests.support.doubles import ScriptedPlanner
from tightloop.executor.model import ExecutorOutcome, ExecutorReport, ExecutorStatus, WorkOrder
from tightloop.settings import parse_settings
from worker.build import build_adapters, build_workers
from worker.connect import connect


class Place(StrEnum):
    """Where it dies."""

    CLAIMED = "claimed"
    """Between the claim in the outbox and the start of the executor."""
    STARTED = "started"
    """Between the start of the executor's process and its first write."""
    WRITTEN = "written"
    """After the first write."""
    ENDED = "ended"
    """After the end of the executor, before its report is recorded."""


@dataclass(frozen=True)
class Death:
    """Kills this process, once."""

    folder: Path
    place: Place

    def come(self, place: Place) -> None:
        """Die, if this is the place and it has not happened yet."""
        if place is not self.place:
            return
        with suppress(FileExistsError):
            # The marker comes first: the worker after this one must find it and go on.
            (self.folder / "died").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Writing(Executor):
    """Notes each delivery outside the tree, starts a process, and writes `done` and its number into the tree."""

    death: Death

    def effects_outside(self, order: WorkOrder) -> str:
        """Return what the order's options say."""
        return str(order.executor.options.get("effects", ""))

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Work."""
        del state_folder
        with (self.death.folder / "calls").open("a") as calls:
            calls.write(order.key.partition("/")[2] + "\n")
        # Its own session, so that it outlives a worker that is killed.
        child = subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL)
        control.own_process(child.pid)
        self.death.come(Place.STARTED)
        with (Path(order.root) / "log.txt").open("a") as log:
            log.write("done\n")
        self.death.come(Place.WRITTEN)
        child.kill()
        child.wait(10)
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED)


class DyingOutbox:
    """The outbox, with death before and after."""

    def __init__(self, outbox: Outbox, death: Death) -> None:
        self._outbox, self._death = outbox, death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    def claim(self, key: str, base_tree: str) -> None:
        """Claim, and die."""
        self._outbox.claim(key, base_tree)
        self._death.come(Place.CLAIMED)

    def report(self, key: str, report: ExecutorReport) -> None:
        """Die, or report."""
        self._death.come(Place.ENDED)
        self._outbox.report(key, report)


async def main(address: str, task_queue: str, folder: str, place: str) -> None:
    """Work until stopped."""
    settings = parse_settings(
        f"temporal: {{address: '{address}', task_queue: '{task_queue}', authenticate: false}}\n"
        # A worker that was killed keeps its workflows for so long.
        "worker: {sticky_timeout_s: 2}\nsandbox: {unsafe_local: true}\n",
        {},
    )
    client = await connect(settings)
    planner, death = ScriptedPlanner(), Death(Path(folder), Place(place))
    adapters = build_adapters(client, settings)
    real = adapters.outboxes
    adapters = replace(
        adapters,
        planners=lambda _kind: planner,
        executors=lambda _name: Writing(death),
        outboxes=lambda workspace: DyingOutbox(real(workspace), death),
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
