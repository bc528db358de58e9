"""Checks the texts of plans aside, one at a time: a large one takes seconds, and holds up nothing else."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# More threads would only take turns at the interpreter's lock, and everything else would wait for each of them.
_ONE_AT_A_TIME = ThreadPoolExecutor(1, "plan-checking")


async def check_aside(check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a check of a text returns; raise what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_ONE_AT_A_TIME, partial(check, *args, **kwargs))
