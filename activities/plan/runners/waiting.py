"""Waiting for a network call that a cancelled activity or a time limit ends."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
# An activity in a thread can only ask whether it is cancelled, so a cancellation is noticed this much later.
CANCEL_POLL_S = 0.5


async def run_until(call: Coroutine[Any, Any, T], cancelled: Callable[[], bool], limit_s: float = math.inf) -> T:
    """Return what a call returns; it is ended once nobody wants it.

    Raises:
        TimeoutError: it was cancelled, or did not end within `limit_s`.
    """
    going = asyncio.ensure_future(call)
    deadline = time.monotonic() + limit_s
    try:
        while not going.done():
            left = deadline - time.monotonic()
            if left <= 0 or cancelled():
                raise TimeoutError
            await asyncio.wait({going}, timeout=min(left, CANCEL_POLL_S))
        return going.result()
    finally:
        going.cancel()
        # `asyncio.run` closes the loop next: the call has to close its connections before.
        await asyncio.gather(going, return_exceptions=True)
