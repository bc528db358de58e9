"""Open work that waits for a host of which no worker polls."""

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass

from tightloop.client.calls import Calls
from tightloop.client.installation.staffing import queues_with, workers_on
from tightloop.episode.model import Queues
from tightloop.errors import TightloopError
from tightloop.settings import Settings
from tightloop.value import Value

ASKED_MOST = 100
ASKED_AT_ONCE = 10
ASK_SECONDS = 15.0


@dataclass(frozen=True)
class Unserved:
    """A host without a worker, and the open work that only it can do."""

    queue: str
    """Its task queue."""
    ids: tuple[str, ...]


class _Asked(Value):
    """What matters here of the request of an episode, a plan or a project's plan."""

    queues: Queues = Queues()


async def find_unserved(calls: Calls, settings: Settings) -> tuple[Unserved, ...]:
    """Return the hosts whose open work stands still, among the `ASKED_MOST` that Temporal lists first.

    A workflow itself knows its host; those that do not answer within `ASK_SECONDS` are left out.

    Raises:
        ServiceUnavailableError: Temporal does not answer.
    """
    main = settings.temporal.task_queue
    ids: list[str] = []
    async with contextlib.aclosing(calls.listing.executions(only_open=True)) as found:
        async for run in found:
            if run.task_queue == main and not run.frozen:
                ids.append(run.id)
            if len(ids) == ASKED_MOST:
                break
    homes: defaultdict[str, list[str]] = defaultdict(list)
    free = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(workflow_id: str) -> None:
        async with free:
            with contextlib.suppress(TightloopError):
                asked = await calls.query(workflow_id, "request", _Asked)
                homes[asked.queues.home].append(workflow_id)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ASK_SECONDS):
            await asyncio.gather(*map(ask, ids))
    homes.pop("", None)
    served = await queues_with(calls, f"{main}-workspace-")
    return tuple(
        [
            Unserved(queue, tuple(sorted(waiting)))
            for queue, waiting in sorted(homes.items())
            if queue not in served and not await workers_on(calls, queue)
        ]
    )
