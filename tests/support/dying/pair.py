"""A worker and a gateway as processes of their own: when one dies, the other is killed too, and both start again."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

ROLES = ("tests.support.dying.worker", "tests.support.dying.gateway")


@asynccontextmanager
async def dying_pair(document: str, folder: Path) -> AsyncIterator[None]:
    """Keep a worker and a gateway with these settings alive.

    Args:
        document: their settings.
        folder: see `deaths.py`.
    """
    keeping = asyncio.create_task(_keep(document, folder))
    try:
        yield
        assert not keeping.done(), "a process ended by itself"
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def _keep(document: str, folder: Path) -> None:
    while True:
        running = [await _start(role, document, folder) for role in ROLES]
        try:
            waits = [asyncio.create_task(process.wait()) for process in running]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            ended = [process.returncode for process in running if process.returncode is not None]
            if set(ended) != {-signal.SIGKILL}:
                return  # it cannot work at all
        finally:
            for process in running:
                with suppress(ProcessLookupError):
                    process.kill()
            for process in running:
                await process.wait()


async def _start(role: str, document: str, folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", role, document, str(folder), start_new_session=True
    )
