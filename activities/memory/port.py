"""Memory interface for planners, reflectors and the coder."""

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
    # Planners and workflows use this module without SQLAlchemy.
    from tightloop.database.memory.store import MemoryStore


logger = logging.getLogger("tightloop")
FAILURE_PAUSE = timedelta(seconds=60)
"""Time after a failure during which the database is not used. With a broken network, each call takes 5 s to fail."""
T = TypeVar("T")


class BestEffortMemory:
    """A memory that never raises errors. If the backend fails, the memory is disabled and `problem` is set.

    The memory then stays disabled for the rest of the activity. Each activity creates its own instance.
    Calls block.
    """

    def __init__(
        self,
        project: str,
        open_memory: "Callable[[], MemoryStore] | None" = None,
        *,
        max_recollections: int = 3,
        problem: str = "",
        on_problem: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        """Set the project and its memory.

        Args:
            project: the project's id.
            open_memory: opens the memory. None disables the memory.
            max_recollections: maximum number of recollections in a briefing.
            problem: a known reason why the memory cannot be used.
            on_problem: called with the reason when a failure disables the memory.
        """
        self._project, self._open, self._on_problem = project, open_memory, on_problem
        self.max_recollections = max_recollections
        """Maximum number of recollections in a briefing."""
        self.problem = problem
        """Reason why the memory is unusable, with advice. Empty if the memory works or is disabled."""

    @property
    def is_enabled(self) -> bool:
        return self._open is not None

    def recall(self, query: Query) -> tuple[Recollection, ...]:
        """Return similar failures from the past and their solutions."""
        return self._with(lambda memory: memory.recall(self._project, query), ())

    def search(self, text: str, *, kind: Kind, limit: int = 5) -> tuple[Entry, ...]:
        """Return failures, patterns or facts that match a text."""
        return self._with(lambda memory: memory.search(self._project, text, kind=kind, limit=limit), ())

    def remember(self, fact: Fact) -> None:
        """Store a fact about the project."""
        self._with(lambda memory: memory.remember(self._project, fact), None)

    def record_failures(self, failures: Sequence[SeenFailure]) -> None:
        """Store failures as they occur."""
        self._with(lambda memory: memory.record_failures(self._project, failures), None)

    def record_solution(self, pattern: Pattern, outcomes: Sequence[Outcome]) -> None:
        """Store a pattern that fixed failing checks."""
        self._with(lambda memory: memory.record_solution(self._project, pattern, outcomes), None)

    def record_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Record whether reapplied patterns helped."""
        self._with(lambda memory: memory.record_outcomes(self._project, outcomes), None)

    def _with(self, use: "Callable[[MemoryStore], T]", otherwise: T) -> T:
        if self._open is None or self.problem:
            return otherwise
        try:
            return use(self._open())
        # A mistake of the caller, such as an empty key, which says nothing about the backend.
        except InvalidRequestError:
            raise
        except Exception as error:  # noqa: BLE001
            # Top level: no error of a database, driver or model may stop the episode.
            message = error.message if isinstance(error, TightloopError) else f"{type(error).__name__}: {error}"
            self.problem = f"cannot use the memory: {message}"
            logger.warning("%s", self.problem)
            self._on_problem(self.problem)
            return otherwise


Memories = Callable[[Path], BestEffortMemory]
"""Returns the memory of a workspace's project."""


def no_memories(_workspace: Path) -> BestEffortMemory:
    """Return a memory that stores and finds nothing."""
    return BestEffortMemory("")


class BestEffortMemories:
    """Opens memories. If the database fails, it is not used again for a while."""

    def __init__(
        self,
        open_memory: "Callable[[Path], MemoryStore]",
        project: Callable[[Path], str],
        *,
        max_recollections: int = 3,
    ) -> None:
        """Set up access to the memories of workspaces.

        Args:
            open_memory: opens the memory of a workspace.
            project: returns the project id of a workspace.
            max_recollections: maximum number of recollections in a briefing.
        """
        self._open, self._project, self._max_recollections = open_memory, project, max_recollections
        self._pause: tuple[float, str] = (0.0, "")
        """End of the pause on the monotonic clock, and the reason for the pause."""

    def __call__(self, workspace: Path) -> BestEffortMemory:
        """Open the memory of a workspace's project."""
        until, why = self._pause
        return BestEffortMemory(
            self._project(workspace),
            lambda: self._open(workspace),
            max_recollections=self._max_recollections,
            problem=why if time.monotonic() < until else "",
            on_problem=self._start_pause,
        )

    def _start_pause(self, problem: str) -> None:
        # For all projects, as they share the database.
        self._pause = (time.monotonic() + FAILURE_PAUSE.total_seconds(), problem)


def recall_solutions(memory: BestEffortMemory, report: CheckReport | None) -> tuple[Recollection, ...] | None:
    """Return earlier solutions, most reliable first. Return None if the memory was not queried.

    This call blocks.
    """
    check_queries = queries(report, memory.max_recollections) if memory.is_enabled else ()
    if not check_queries:
        return None
    return best_of(
        ((check, recollection) for check, query in check_queries for recollection in memory.recall(query)),
        memory.max_recollections,
    )


FEWEST_FACTS = 1


class TextMemory:
    """A project's memory as text for a model. Calls block and do not raise if the backend fails."""

    def __init__(self, memory: BestEffortMemory, source: str) -> None:
        """Set the memory, and the source that is recorded with new facts."""
        self._memory, self._source = memory, source

    def search(self, query: str, limit: int) -> list[str]:
        """Return failures with their solutions, followed by facts. Each group is sorted by relevance."""
        recall_query = Query(text=query, limit=limit, in_words=True)
        failures = [_describe_recollection(recollection) for recollection in self._memory.recall(recall_query)]
        facts = [_fact(entry) for entry in self._memory.search(query, kind=Kind.FACT, limit=limit)]
        # Facts are rare: the best one is worth more than one more failure.
        best_failures = failures[: max(limit - min(len(facts), FEWEST_FACTS), 0)]
        return [*best_failures, *facts[: limit - len(best_failures)]]

    def remember(self, key: str, text: str) -> None:
        """Store a fact under a key, replacing the previous one.

        Raises:
            InvalidRequestError: the key or the text is empty.
        """
        self._memory.remember(Fact(key=key, text=text, source=self._source))


def _describe_recollection(recollection: Recollection) -> str:
    pattern = recollection.pattern
    lines = [f"failure: {recollection.line} ({recollection.shown})"]
    if pattern is not None:
        lines += [f"what helped: {'; '.join(pattern.steps) or pattern.title}"]
        lines += [f"$ {' '.join(command)}" for command in pattern.commands]
        lines += [] if pattern.commands else [text for text in (pattern.code_template, pattern.test_template) if text]
    return "\n".join(lines)


def _fact(entry: Entry) -> str:
    return f"fact {entry.id}: {entry.text}"
