"""One worker of the benchmark `scale`, in a process of its own: production's, but for a planner that needs no model.

python -m tests.benchmarks.scale_worker SETTINGS [QUEUE]: with a queue, for bare workflows there.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from activities.artifacts.stores import close_idle
from tests.benchmarks.stage import InstantPlanner, bare_worker
from tightloop.settings import parse_settings
from worker.build import PRODUCTION_RUNNER, build_adapters, build_workers
from worker.connect import connect
from worker.hosting.startup import give_memory_back
from worker.up import collect_less_often, stop_event


async def main(settings_file: str, bare_queue: str = "") -> None:
    """Work until stopped."""
    settings = parse_settings(Path(settings_file).read_text(), {})
    collect_less_often()
    stopped = stop_event()
    # It ends with the benchmark, also where that is killed.
    asyncio.get_running_loop().add_reader(sys.stdin, stopped.set)
    client = await connect(settings)
    planner = InstantPlanner()
    adapters = replace(build_adapters(client, settings), planners=lambda _kind: planner)
    workers = build_workers(client, settings, adapters=adapters, runner=PRODUCTION_RUNNER)
    if bare_queue:
        workers = [bare_worker(workers[0], bare_queue)]
    async with AsyncExitStack() as stack:
        stack.callback(close_idle)
        for worker in workers:
            await stack.enter_async_context(worker)
        giving = asyncio.create_task(give_memory_back())
        await stopped.wait()
        giving.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
