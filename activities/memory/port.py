"""Memory as planners, reflectors and the coder use it."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tightloop.episode.check import CheckReport
from tightloop.episode.planning import best_of, queries
from tightloop.errors import InvalidRequestError, TightloopError
from tightloop.memory import Entry, Fact, Kind, Outcome, Pattern, Query, Recollection, SeenFailure

if TYPE_CHECKING:
    # Planners and workflows need this module without SQLAlchemy.
    from tightloop.database.memory.store import MemoryStore


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
        open_memory: "Callable[[], MemoryStore] | None" = None,
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

    def _with(self, use: "Callable[[MemoryStore], T]", otherwise: T) -> T:
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
        self, open_memory: "Callable[[Path], MemoryStore]", project: Callable[[Path], str], *, shown: int = 3
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


def recalled(memory: SparedMemory, report: CheckReport | None) -> tuple[Recollection, ...] | None:
    """Return what helped before, the surest first; None: nobody asked. Blocking."""
    asked = queries(report, memory.shown) if memory.wanted else ()
    if not asked:
        return None
    return best_of(((check, one) for check, query in asked for one in memory.recall(query)), memory.shown)


FEWEST_FACTS = 1


class ToldMemory:
    """What is remembered of one project, told in texts. Blocking; what is wrong with it costs the memory only."""

    def __init__(self, memory: SparedMemory, source: str) -> None:
        """Take the memory, and who writes to it."""
        self._memory, self._source = memory, source

    def search(self, query: str, limit: int) -> list[str]:
        """Return failures with what solved them, then facts, the best of each first."""
        asked = Query(text=query, limit=limit, in_words=True)
        failures = [_told(one) for one in self._memory.recall(asked)]
        facts = [_fact(one) for one in self._memory.search(query, kind=Kind.FACT, limit=limit)]
        # Facts are few: the best one is worth more than one failure more.
        kept = failures[: max(limit - min(len(facts), FEWEST_FACTS), 0)]
        return [*kept, *facts[: limit - len(kept)]]

    def remember(self, key: str, text: str) -> None:
        """Keep a fact under a name, in place of what is there.

        Raises:
            InvalidRequestError: it has no key or no text.
        """
        self._memory.remember(Fact(key=key, text=text, source=self._source))


def _told(found: Recollection) -> str:
    pattern = found.pattern
    lines = [f"failure: {found.line} ({found.shown})"]
    if pattern is not None:
        lines += [f"what helped: {'; '.join(pattern.steps) or pattern.title}"]
        lines += [f"$ {' '.join(command)}" for command in pattern.commands]
        lines += [] if pattern.commands else [text for text in (pattern.code_template, pattern.test_template) if text]
    return "\n".join(lines)


def _fact(found: Entry) -> str:
    return f"fact {found.id}: {found.text}"
