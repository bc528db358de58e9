"""Keeps the database of several hosts up to date with the ledger of this one."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from tightloop.database.engine import postgres_database
from tightloop.database.forwarding import Forwarder
from tightloop.database.opening import local_database
from tightloop.errors import TightloopError
from tightloop.host.identity import host_identity
from tightloop.settings import Settings

logger = logging.getLogger("tightloop")

LOOK = timedelta(milliseconds=250)
LONGEST_WAIT = timedelta(seconds=30)
"""Between two tries, where the database does not answer."""
LAST_TRY = timedelta(seconds=5)
"""How long a worker that stops goes on bringing rows; the rest comes with the next start."""


@asynccontextmanager
async def forwarding(settings: Settings) -> AsyncIterator[None]:
    """Bring rows to `database.url` while this is open; without one nothing is done."""
    url = settings.database.url.get_secret_value()
    if not url:
        yield
        return
    target = postgres_database(url)
    forwarder = Forwarder(local_database(), target, host_identity(settings).names)
    task = asyncio.create_task(_keep_forwarding(forwarder, str(target)))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(TightloopError, TimeoutError):
            await asyncio.wait_for(_forward_all(forwarder), LAST_TRY.total_seconds())
        target.close()


async def _forward_all(forwarder: Forwarder) -> None:
    while await asyncio.to_thread(forwarder.forward):
        pass


async def _keep_forwarding(forwarder: Forwarder, name: str) -> None:
    failures = 0
    while True:
        try:
            await _forward_all(forwarder)
        except TightloopError as error:
            if not failures:
                logger.warning("%s; what is recorded on this host is kept and brought there later", error.message)
            failures += 1
        else:
            if failures:
                logger.info("the database %s is up to date again", name)
            failures = 0
        wait = LOOK if not failures else min(LOOK * 2**failures, LONGEST_WAIT)
        await asyncio.sleep(wait.total_seconds())
