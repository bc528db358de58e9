"""A worker of the project's plan that dies when it is asked to.

python -m tests.support.dying.worker <settings> <folder of moments>
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from temporalio.client import Client

from tests.support.dying.deaths import Deaths
from tests.support.loops import ObedientExecutor, ScriptedTaskPlanner, five_tasks, planner_of_goals
from tightloop.settings import parse_settings
from worker.build import build_adapters, build_workers
from worker.connect import connect


async def main(document: str, folder: str) -> None:
    """Work until stopped."""
    settings = parse_settings(document, {})
    connected = await connect(settings)
    client = Client(**{**connected.config(), "interceptors": [Deaths(Path(folder))]})
    planner, tasks = planner_of_goals(), ScriptedTaskPlanner(*five_tasks())
    adapters = replace(
        build_adapters(client, settings),
        planners=lambda _kind: planner,
        executors=lambda _name: ObedientExecutor(),
        task_planners=lambda _kind, _model: tasks,
    )
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
