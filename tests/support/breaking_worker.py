"""A worker whose executor kills it in the middle of the first delivery, and goes on with the second where it was.

python -m tests.support.breaking_worker <address> <task queue>
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from activities.executor.port import Control, Executor
from tests.support.doubles import ScriptedPlanner
from tightloop.executor.model import ExecutorOutcome, ExecutorStatus, Progress, ResumeToken, WorkOrder
from tightloop.settings import parse_settings
from worker.build import build_adapters, build_workers
from worker.connect import connect

DIES_WITHIN_S = 120.0
"""It dies when its state folder has a file `die`, so that a test can first see what it told."""
TOKEN = ResumeToken(adapter="breaking", session_id="session-of-the-dead")


class Breaking(Executor):
    """Leaves a process behind and dies; the next attempt writes down in which session it works."""

    def effects_outside(self, order: WorkOrder) -> str:
        """Return nothing."""
        del order
        return ""

    def execute(self, order: WorkOrder, control: Control, state_folder: Path) -> ExecutorOutcome:
        """Die, or go on."""
        if order.resume is not None:
            (Path(order.root) / "log.txt").write_text(order.resume.session_id)
            return ExecutorOutcome(status=ExecutorStatus.COMPLETED)
        left = subprocess.Popen(["sleep", "120"], start_new_session=True, stdout=subprocess.DEVNULL)
        control.own_process(left.pid)
        (state_folder / "left.pid").write_text(str(left.pid))
        control.progress(Progress(events=1, resume=TOKEN, pid=left.pid))
        until = time.monotonic() + DIES_WITHIN_S
        while not (state_folder / "die").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


async def main(address: str, task_queue: str) -> None:
    """Work until stopped."""
    settings = parse_settings(
        f"temporal: {{address: '{address}', task_queue: '{task_queue}', authenticate: false}}\n"
        "sandbox: {unsafe_local: true}\n",
        {},
    )
    client = await connect(settings)
    planner, executor = ScriptedPlanner(), Breaking()
    adapters = replace(
        build_adapters(client, settings), planners=lambda _kind: planner, executors=lambda _name: executor
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
