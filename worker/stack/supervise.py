"""Keeps processes beside the workers alive: the Temporal server, the sign-in before its Web UI."""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from tightloop.errors import ServiceUnavailableError

logger = logging.getLogger("tightloop")

STOP_SECONDS = 10.0
RESTARTS = 20
"""Maximum restarts of a process that died, for one `up`."""


Launch = Callable[[], Awaitable[Process]]


@asynccontextmanager
async def supervised(launches: Mapping[str, Launch]) -> AsyncIterator[None]:
    """Run processes while the block runs; start one again if it dies.

    Args:
        launches: by a name for the log, what starts a process in a session of its own and waits until it works; if
            not, it leaves none behind. All start at once.

    Raises:
        ServiceUnavailableError: one does not start.
    """
    starting = [asyncio.ensure_future(launch()) for launch in launches.values()]
    try:
        processes = await asyncio.gather(*starting)
    except BaseException:
        for task in starting:
            task.cancel()
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(outcome, Process):
                await end(outcome)
        raise
    watches = [
        asyncio.create_task(_keep_alive(name, launch, process))
        for (name, launch), process in zip(launches.items(), processes, strict=True)
    ]
    try:
        yield
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _keep_alive(name: str, launch: Launch, process: Process) -> None:
    try:
        for _ in range(RESTARTS):
            await process.wait()
            logger.warning("%s ended with code %s; starting it again", name, process.returncode)
            try:
                process = await launch()
            except ServiceUnavailableError as error:
                logger.error("%s", error.message)
                await asyncio.sleep(1)
        await process.wait()
    finally:
        await end(process)


async def end(process: Process) -> None:
    """End a process and its children, and wait for that."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
