"""A worker that can do nothing for some seconds while SIGUSR1 keeps its event loop busy.

python -m tests.support.blocked_worker <address> <task queue> <seconds>
"""

import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace

from tests.support.doubles import ScriptedPlanner
from tightloop.settings import parse_settings
from worker.build import build_adapters, build_workers
from worker.connect import connect


async def main(address: str, queue: str, seconds: float) -> None:
    settings = parse_settings(
        f"temporal: {{address: '{address}', task_queue: '{queue}', authenticate: false}}\n"
        "worker: {heartbeat_interval_s: 1, graceful_shutdown_s: 1}\nsandbox: {unsafe_local: true}\n",
        {},
    )
    client = await connect(settings)
    adapters = replace(build_adapters(client, settings), planners=lambda _kind: ScriptedPlanner())
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, seconds)
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        print("works", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
