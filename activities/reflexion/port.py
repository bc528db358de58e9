"""The port of the reflector."""

from typing import Protocol

from tightloop.planning import ReflectionBriefing, ReflectorAnswer


class Reflector(Protocol):
    """Says why an iteration went as it did; always answers, with rules if no model does."""

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item."""
        ...


class Reflectors(Protocol):
    """Chooses the reflector that fits the episode's planner."""

    def __call__(self, planner: str, /) -> Reflector:
        """Return the reflector for a planner of this kind."""
        ...
