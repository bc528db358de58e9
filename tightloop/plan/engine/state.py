"""Where the steps of a plan stand, in the codes that one run of its workflow hands to the next."""

from datetime import datetime
from typing import Final

from pydantic import Field

from tightloop.plan.document.step import StepKind
from tightloop.plan.result import StepStatus
from tightloop.value import Value

# One letter for each step: 10 000 of them cross from run to run in 10 kB.
PENDING: Final = "p"
AGAIN: Final = "q"
"""Ready to go on with the same attempt: a person answered, or the run before was cut off."""
LATER: Final = "l"
"""Waits for its next attempt."""
RUNNING: Final = "r"
WAITING: Final = "w"
EXPANDED: Final = "x"
"""A template whose steps are under way."""
COMPLETED: Final = "c"
SKIPPED: Final = "s"
FAILED: Final = "f"
FAILED_OVER: Final = "F"
"""Failed, and the step that does the work instead may start."""
RECOVERED: Final = "v"
BLOCKED: Final = "b"
COMPENSATED: Final = "u"
ABANDONED: Final = "a"

STATUS_OF = {
    PENDING: StepStatus.PENDING,
    AGAIN: StepStatus.PENDING,
    LATER: StepStatus.PENDING,
    RUNNING: StepStatus.RUNNING,
    WAITING: StepStatus.WAITING,
    EXPANDED: StepStatus.RUNNING,
    COMPLETED: StepStatus.COMPLETED,
    SKIPPED: StepStatus.SKIPPED,
    FAILED: StepStatus.FAILED,
    FAILED_OVER: StepStatus.FAILED,
    RECOVERED: StepStatus.RECOVERED,
    BLOCKED: StepStatus.BLOCKED,
    COMPENSATED: StepStatus.COMPENSATED,
    ABANDONED: StepStatus.ABANDONED,
}
"""The codes of `ScheduleState.codes`. They are in histories: none is ever given another meaning."""


class PlanEvent(Value):
    """One line of a plan's timeline."""

    at: datetime
    event: str
    """`opened`, `completed`, `failed`, `waits`, `approved`, `paused`, `revised`, `compensated`, `closed` ..."""
    step: str = ""
    detail: str = ""
    """At most 600 characters."""

    @property
    def text(self) -> str:
        """The line without its time and event."""
        return f"{self.step}: {self.detail}" if self.step and self.detail else self.step or self.detail


class UndoEntry(Value):
    """One attempt that left something which can be taken back."""

    step: str
    template: str = ""
    item: int | None = None
    attempt: int = 1


class ScheduleState(Value):
    """Where all steps of a plan stand, as one schedule saves it for the next."""

    codes: str = ""
    """One of `STATUS_OF` for each node in the order of the graph, then for each step made from a template."""
    tries: str = ""
    """Attempts so far, one character for each of `codes`: `chr(ord("0") + attempts)`."""
    expansions: tuple[tuple[int, int], ...] = ()
    """Template's index and number of steps, in the order in which they were made."""
    lengths: dict[str, int] = Field(default_factory=dict)
    """`<step>.<output>` -> length, of those that templates wait for."""
    chosen: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Decision or gate -> steps that it let start."""


def initial_code(kind: StepKind) -> str:
    """Return the code with which a step begins: one that takes another back is not part of the way forward."""
    return SKIPPED if kind is StepKind.COMPENSATION else PENDING


def encode_tries(attempts: list[int]) -> str:
    """Return the attempts as `ScheduleState.tries`."""
    # Attempts are bounded by `Retry.attempts` (50) and reopened by hand: far below where `chr` meets surrogates.
    return "".join(chr(48 + number) for number in attempts)


def decode_tries(tries: str) -> list[int]:
    """Read `ScheduleState.tries`."""
    return [ord(letter) - 48 for letter in tries]
