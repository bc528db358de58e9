"""The moment after a start, in which what was started may be refused."""

import contextlib
from collections.abc import AsyncGenerator, Callable

from tightloop.cli.session import within
from tightloop.client import TightloopClient
from tightloop.client.kind import StatusT
from tightloop.errors import InvalidRequestError, TightloopError

OPENING_SECONDS = 3.0


async def opened(
    client: TightloopClient,
    task_queue: str,
    new_id: str,
    changes: AsyncGenerator[StatusT],
    has_begun: Callable[[StatusT], bool],
) -> str:
    """Stay until an episode or a plan has begun; return a remark where no worker is there to take it.

    Args:
        client: the connection.
        task_queue: where it waits for a worker.
        new_id: its id.
        changes: its status, whenever it changes.
        has_begun: whether it cannot be refused any more.

    Raises:
        InvalidRequestError: it was refused; the message says why.
    """
    with contextlib.suppress(TightloopError):
        if not await client.pollers(task_queue):
            return f"no worker polls task queue {task_queue!r}: {new_id} waits for one. Start it: tightloop up"
    await within(OPENING_SECONDS, _begun(new_id, changes, has_begun))
    return ""


async def _begun(new_id: str, changes: AsyncGenerator[StatusT], has_begun: Callable[[StatusT], bool]) -> None:
    async with contextlib.aclosing(changes):
        async for status in changes:
            if has_begun(status):
                return
            if status.status == "failed":
                raise InvalidRequestError(f"{new_id} could not start: {status.reason}")
