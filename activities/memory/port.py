"""The port of the memory. Every method takes the project, and nothing of another one is ever seen."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from tightloop.memory.model import (
    Details,
    Entry,
    Fact,
    Kind,
    MemoryStats,
    Outcome,
    Pattern,
    Query,
    Recollection,
    SeenFailure,
)


class Memory(Protocol):
    """Keeps what went wrong in a project and what helped; blocking.

    Secrets and personal data are taken out before anything is written. What is written again is there once.

    All methods raise:
        StorageFullError: no room is left.
        ServiceUnavailableError: the database does not answer. Retryable.
        WorkspaceError: it is damaged, or at another migration than this code.
    """

    def record_failures(self, project: str, seen: Sequence[SeenFailure]) -> None:
        """Keep failures as they appeared; the same iteration counts once."""

    def record_solution(self, project: str, pattern: Pattern, outcomes: Sequence[Outcome]) -> None:
        """Keep what made checks turn green, for the failures that it solved."""

    def record_outcomes(self, project: str, outcomes: Sequence[Outcome]) -> None:
        """Note what came of patterns that were used again."""

    def recall(self, project: str, query: Query) -> tuple[Recollection, ...]:
        """Return failures like this one, with what solved them: the same signature first, then the most alike."""
        ...

    def search(self, project: str, text: str, *, kind: Kind, limit: int = 5) -> tuple[Entry, ...]:
        """Return failures, patterns or facts about some words, the most alike first."""
        ...

    def remember(self, project: str, fact: Fact) -> None:
        """Keep a fact; a newer text under the same key replaces it.

        Raises:
            InvalidRequestError: it has no key or no text.
        """

    def facts(self, project: str) -> tuple[Fact, ...]:
        """Return all facts, by key."""
        ...

    def entries(self, project: str, kind: Kind | None = None, limit: int = 50) -> tuple[Entry, ...]:
        """Return what is kept, the newest first."""
        ...

    def show(self, project: str, entry_id: str) -> Details:
        """Return everything about an entry.

        Raises:
            InvalidRequestError: no entry has this id.
        """
        ...

    def forget(self, project: str, ids: Collection[str] | None = None) -> int:
        """Remove entries with what belongs to them, or everything of a project; return how many there were."""
        ...

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield all rows, without their vectors."""
        ...

    def stats(self, project: str) -> MemoryStats:
        """Return how much is kept, and how useful it was."""
        ...
