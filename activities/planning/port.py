"""The port of the planner."""

from typing import Protocol

from tightloop.planning import Briefing, PlannerAnswer


class Planner(Protocol):
    """Decides what comes next. A bad answer of a model is data (a verdict), not an exception."""

    async def plan(self, briefing: Briefing) -> PlannerAnswer:
        """Answer a briefing.

        Raises:
            PlannerError: the service refuses; trying again is useless.
            PlannerUnavailableError: the service is busy or down; retryable.
        """
        ...


class Planners(Protocol):
    """Chooses the planner that an episode asked for."""

    def __call__(self, kind: str, /) -> Planner:
        """Return the planner of this kind: `openai`, `heuristic` or `auto`.

        Raises:
            PlannerError: there is no such planner, or it lacks its key.
        """
        ...
