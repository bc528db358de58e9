"""Bounds all attempts at one plan together: a model that never has a usable answer ends before a person."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

from activities.model import telling
from tightloop.episode.work import span
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.value import counted

T = TypeVar("T")


async def in_time(ask: Callable[[], Awaitable[T]], limit: timedelta, planner: str) -> T:
    """Return what `ask` answers, within what earlier attempts left of the limit.

    Raises:
        PlannerError: the time is up; the message says what was wrong with the last answer. Not retryable.
        PlannerUnavailableError: the service is busy or down, and there is time for another attempt.
    """
    begun = telling.begin(f"asks planner {planner!r}", limit)
    start = time.monotonic()

    def left() -> float:
        return limit.total_seconds() - begun.spent_s - (time.monotonic() - start)

    try:
        async with asyncio.timeout(left()):
            return await ask()
    except TimeoutError:
        raise PlannerError(_too_late(limit)) from None
    except PlannerUnavailableError as error:
        telling.leave(limit - timedelta(seconds=left()), error.message)
        if left() <= 0:
            raise PlannerError(_too_late(limit)) from error
        raise


def _too_late(limit: timedelta) -> str:
    why = telling.trouble().rstrip(". ") or "the model had not answered yet"
    tries = counted(activity.info().attempt, "attempt")
    return (
        f"no plan after {span(limit.total_seconds())} and {tries} (planner.plan_timeout_s): {why}. "
        "Choose a faster or stronger model (planner.models), give it more time, or work without one: "
        f"tightloop amend {activity.info().workflow_id} --planner heuristic"
    )
