"""A worker that kills itself at moments of a project's plan, at each of them once.

python -m tests.support.dying_loop_worker <address> <task queue> <folder of notes> <moment> ...

A moment is the name of an activity and `before` or `after`, such as `settle_children.after`: before anything is done,
or when all is done and Temporal has not been told.
"""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from tests.support.loops import ObedientExecutor, ScriptedTaskPlanner, five_tasks, planner_of_goals
from tightloop.settings import parse_settings
from worker.build import build_adapters, build_workers
from worker.connect import connect


class Deaths(ClientInterceptor, Interceptor):
    """Kills this process at the moments that have not come yet."""

    def __init__(self, folder: Path, moments: tuple[str, ...]) -> None:
        self._folder, self._moments = folder, moments

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return Dying(next, self)

    def come(self, moment: str) -> None:
        """Die, if this is a moment to."""
        if moment not in self._moments:
            return
        try:
            # The marker comes first: the worker after this one must find it and go on.
            (self._folder / moment).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Dying(ActivityInboundInterceptor):
    """Passes the moments of each activity on."""

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


async def main(address: str, task_queue: str, folder: str, *moments: str) -> None:
    """Work until stopped."""
    settings = parse_settings(
        f"temporal: {{address: '{address}', task_queue: '{task_queue}', authenticate: false}}\n"
        # A worker that was killed keeps its workflows for so long.
        "worker: {sticky_timeout_s: 1}\nsandbox: {unsafe_local: true}\n",
        {},
    )
    connected = await connect(settings)
    client = Client(**{**connected.config(), "interceptors": [Deaths(Path(folder), moments)]})
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
