"""Status and result of a run, whatever its kind."""

from abc import abstractmethod
from datetime import datetime
from typing import Self

from tightloop.run.question import Question
from tightloop.value import Value
from tightloop.value.artifact import ArtifactRef

REFUSED = "refused"
"""`TightloopStatus` of a run that ended before it began: it hides no earlier one, and its id is free."""


class RunResult(Value):
    """What a run leaves behind. Each kind names its outcomes, and adds what only it has."""

    outcome: str
    reason: str = ""
    tree: str = ""
    """The last tree that the run made or checked."""
    proof: ArtifactRef | None = None
    """The stored `Proof`, if one was made."""


class RunStatus(Value):
    """A snapshot of a run, for people and programs. Each kind adds what only it has."""

    status: str = "running"
    """`running`, `paused`, or how the run ended; from Temporal also `terminated` and `timed_out`."""
    as_of: datetime | None = None
    """Time of the snapshot if no worker answers and it comes from storage; None: now."""
    workspace: str = ""
    questions: tuple[Question, ...] = ()
    """What waits for a person, oldest first."""
    waits_for: str = ""
    """The task queue on which a step waits for a worker or a free slot, and since when."""
    tree: str = ""
    reason: str = ""
    """Why the run ended."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Workflow id."""

    @property
    def word(self) -> str:
        """The status as lists show it: one of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
        return self.status

    @property
    def needs_person(self) -> bool:
        """Whether the run cannot continue until a person acts."""
        return self.word == "paused"

    @abstractmethod
    def ended(self, result: RunResult, word: str) -> Self:
        """Return this last snapshot with how the run ended.

        Args:
            result: as the run, or Temporal, recorded it.
            word: one of `CLOSED_STATUSES`.
        """
