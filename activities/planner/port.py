"""The port of the planner."""

from collections.abc import Callable
from typing import Protocol

from tightloop.episode.planning import Briefing, PlannerAnswer


class Planner(Protocol):
    """Decides what comes next. A bad answer of a model is data (a verdict), not an exception."""

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer a briefing.

        Raises:
            PlannerError: the service refuses; trying again is useless.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        ...


Planners = Callable[[str], Planner]
"""Returns the planner of this kind: `openai`, `heuristic` or `auto`.

Raises `PlannerError` where the planner is unknown, or lacks its key.
"""
