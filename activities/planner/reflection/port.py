"""The port of the reflector."""

from collections.abc import Callable
from typing import Protocol

from tightloop.episode.planning import ReflectionBriefing, ReflectorAnswer


class Reflector(Protocol):
    """Says why an iteration went as it did; always answers, with rules if no model does."""

    async def reflect(self, briefing: ReflectionBriefing) -> ReflectorAnswer:
        """Return a diagnosis and at least one action item."""
        ...


Reflectors = Callable[[str], Reflector]
"""Returns the reflector that fits a planner of this kind."""
