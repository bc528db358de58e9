"""Keeps a process beside the workers alive: the Temporal server, the codec server."""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from tightloop.errors import ServiceUnavailableError

logger = logging.getLogger("tightloop")

STOP_SECONDS = 10.0
RESTARTS = 20
"""Maximum restarts of a process that died, for one `up`."""


@asynccontextmanager
async def supervised(name: str, launch: Callable[[], Awaitable[Process]]) -> AsyncIterator[None]:
    """Run a process while the block runs; start it again if it dies.

    Args:
        name: for the log.
        launch: starts the process in a session of its own and waits until it works; if not, it leaves none behind.

    Raises:
        ServiceUnavailableError: it does not start.
    """
    watch = asyncio.create_task(_keep_alive(name, launch, await launch()))
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _keep_alive(name: str, launch: Callable[[], Awaitable[Process]], process: Process) -> None:
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
