"""Worker processes that kill themselves where the id of an episode says so, once for each episode and moment.

The process that has `crash-before-claim` episodes dies at that moment of their first delivery, and so on. The
parent only starts another worker for each one that died; it forks, so that a new one is there at once.
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from activities.executor.outbox import Outbox, open_outbox
from activities.executor.port import OutboxEntry
from tests.support.doubles import ScriptedPlanner
from tightloop.executor.model import ExecutorReport
from tightloop.host import load_settings
from tightloop.value import ArtifactRef
from worker.build import build_adapters, build_workers
from worker.connect import connect
from worker.up import stop_event

MOMENTS = ("before-claim", "after-claim", "before-report", "after-report")


class CrashingOutbox:
    """The real outbox, in a process that dies around its calls."""

    def __init__(self, outbox: Outbox, folder: Path) -> None:
        self._outbox = outbox
        self._folder = folder

    def add(self, key: str, episode_id: str, iteration: int, order: ArtifactRef) -> None:
        self._outbox.add(key, episode_id, iteration, order)

    def get(self, key: str) -> OutboxEntry | None:
        return self._outbox.get(key)

    def claim(self, key: str, base_tree: str) -> None:
        self._die(key, "before-claim")
        self._outbox.claim(key, base_tree)
        self._die(key, "after-claim")

    def break_off(self, key: str, reason: str) -> None:
        self._outbox.break_off(key, reason)

    def report(self, key: str, report: ExecutorReport) -> None:
        self._die(key, "before-report")
        self._outbox.report(key, report)
        self._die(key, "after-report")

    def deliveries(self, episode_id: str) -> tuple[OutboxEntry, ...]:
        return self._outbox.deliveries(episode_id)

    def _die(self, key: str, moment: str) -> None:
        delivery = self._outbox.get(key)
        if delivery is None or f"crash-{moment}" not in delivery.episode_id:
            return
        mark = self._folder / f"{delivery.episode_id}.{moment}.died"
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


async def work() -> None:
    """Work until stopped, or until killed."""
    stopped = stop_event()
    settings = load_settings()
    marks = Path(os.environ["FAULT_MARKS"])
    client = await connect(settings)
    adapters = replace(
        build_adapters(client, settings),
        outboxes=lambda workspace: CrashingOutbox(open_outbox(workspace), marks),
        planners=lambda _kind: ScriptedPlanner(),
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        await stopped.wait()


def keep(count: int) -> None:
    """Keep so many workers alive until a signal ends this process; they end with it."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    living: set[int] = set()
    while not stopped:
        while len(living) < count and not stopped:
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                asyncio.run(work())
                os._exit(0)
            living.add(child)
        try:
            ended, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            ended = 0
        living.discard(ended)
        time.sleep(0.02)
    for child in living:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    keep(int(sys.argv[1]))
