"""The memory of one project, in which nothing can go wrong for its callers."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from activities.memory.port import Memory
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.memory.model import (
    Entry,
    Fact,
    Kind,
    Outcome,
    Pattern,
    Query,
    Recollection,
    SeenFailure,
)

logger = logging.getLogger("tightloop")
REST = timedelta(seconds=60)
"""After a failure nobody waits for the database again for so long: a network that is cut answers after 5 s."""
T = TypeVar("T")


class SparedMemory:
    """What is wrong with the memory costs the memory only: calls find nothing, or keep nothing, and `problem` says why.

    Blocking; made for one activity.
    """

    def __init__(
        self,
        project: str,
        open_memory: Callable[[], Memory] | None = None,
        *,
        shown: int = 3,
        problem: str = "",
        on_problem: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        """Take the project, and what opens its memory.

        Args:
            project: whose it is.
            open_memory: opens it; None where the memory is off.
            shown: how much of it a briefing gets.
            problem: why it is not used, where that is known already.
            on_problem: is told why it is not used any more.
        """
        self._project, self._open, self._on_problem = project, open_memory, on_problem
        self.shown = shown
        """How much of it a briefing gets."""
        self.problem = problem
        """Why the memory is not used, and what to do; empty: it works, or nobody wants it."""

    @property
    def wanted(self) -> bool:
        """Whether there is a memory."""
        return self._open is not None

    def recall(self, query: Query) -> tuple[Recollection, ...]:
        """Return failures like this one, with what solved them."""
        return self._with(lambda memory: memory.recall(self._project, query), ())

    def search(self, text: str, *, kind: Kind, limit: int = 5) -> tuple[Entry, ...]:
        """Return failures, patterns or facts about some words."""
        return self._with(lambda memory: memory.search(self._project, text, kind=kind, limit=limit), ())

    def remember(self, fact: Fact) -> None:
        """Keep a fact."""
        self._with(lambda memory: memory.remember(self._project, fact), None)

    def record_failures(self, seen: Sequence[SeenFailure]) -> None:
        """Keep failures as they appeared."""
        self._with(lambda memory: memory.record_failures(self._project, seen), None)

    def record_solution(self, pattern: Pattern, outcomes: Sequence[Outcome]) -> None:
        """Keep what made checks turn green."""
        self._with(lambda memory: memory.record_solution(self._project, pattern, outcomes), None)

    def record_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Note what came of patterns that were used again."""
        self._with(lambda memory: memory.record_outcomes(self._project, outcomes), None)

    def _with(self, use: Callable[[Memory], T], otherwise: T) -> T:
        if self._open is None or self.problem:
            return otherwise
        try:
            return use(self._open())
        except InvalidRequestError:
            raise
        except Exception as error:  # noqa: BLE001
            # An edge: whatever a database, a driver or a model does, the episode goes on.
            said = error.message if isinstance(error, TightloopError) else f"{type(error).__name__}: {error}"
            self.problem = f"the memory is not used: {said}"
            logger.warning("%s", self.problem)
            self._on_problem(self.problem)
            return otherwise


Memories = Callable[[Path], SparedMemory]
"""Returns the memory of the project in a workspace."""


def no_memories(_workspace: Path) -> SparedMemory:
    """Return a memory that keeps nothing and finds nothing."""
    return SparedMemory("")


class SparedMemories:
    """Opens memories; after a failure it lets the database rest."""

    def __init__(
        self, open_memory: Callable[[Path], Memory], project: Callable[[Path], str], *, shown: int = 3
    ) -> None:
        """Take what opens the memory for a workspace, what names its project, and how much a briefing gets."""
        self._open, self._project, self._shown = open_memory, project, shown
        self._resting: tuple[float, str] = (0.0, "")
        """Until when, and why."""

    def __call__(self, workspace: Path) -> SparedMemory:
        """Return the memory of the project in a workspace."""
        until, why = self._resting
        return SparedMemory(
            self._project(workspace),
            lambda: self._open(workspace),
            shown=self._shown,
            problem=why if time.monotonic() < until else "",
            on_problem=self._rest,
        )

    def _rest(self, problem: str) -> None:
        self._resting = (time.monotonic() + REST.total_seconds(), problem)
