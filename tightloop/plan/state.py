"""What of a running plan is carried to the run that follows it: everything but the graph, which is stored."""

from datetime import datetime
from typing import Final

from pydantic import Field

from tightloop.artifact import ArtifactRef
from tightloop.plan.model import PlanBudget, StepKind
from tightloop.plan.request import PlanPhase, PlanSpent, WaitingGate
from tightloop.plan.result import Belief, PersonDecision, StepFailure, StepStatus
from tightloop.value import Value

TIMELINE_LIMIT = 200
"""Entries that are kept; the ledger and the records hold all."""

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
"""Failed, and the step that does the work instead was let go."""
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
"""The codes of `PlanState.codes`. They are in histories: none is ever given another meaning."""


class PlanEvent(Value):
    """One line of a plan's timeline."""

    at: datetime
    event: str
    """`opened`, `completed`, `failed`, `waits`, `approved`, `paused`, `revised`, `compensated`, `closed` ..."""
    step: str = ""
    detail: str = ""
    """At most 200 characters."""

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


class PlanPause(Value):
    """Why a plan starts nothing new until a person says so."""

    reason: str
    advice: str = ""
    by: str = ""
    since: datetime | None = None
    step: str = ""
    """The failed step that the person is asked about."""
    kind: str = ""
    """A `PauseKind`."""
    also: "PlanPause | None" = None
    """What an operator asked for meanwhile; it goes on where this one ends by itself."""


class PlanState(Value):
    """A plan between two runs of its workflow."""

    plan: ArtifactRef | None = None
    revision: int = 1
    phase: PlanPhase = PlanPhase.OPENING
    base_tree: str = ""
    tree: str = ""
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
    undo: tuple[UndoEntry, ...] = ()
    """In the order of their ends."""
    first_starts: dict[str, datetime] = Field(default_factory=dict)
    """When the first attempt of an unsettled step with a time box began."""
    due: dict[str, datetime] = Field(default_factory=dict)
    """When the next attempt of a step that backs off begins."""
    failures: dict[str, StepFailure] = Field(default_factory=dict)
    """Last failure of steps that have not completed since; at most 500."""
    waiting: tuple[WaitingGate, ...] = ()
    asked: tuple[str, ...] = ()
    """Failed steps that a person is asked about."""
    replans: dict[str, int] = Field(default_factory=dict)
    """How often a planner was asked because of a step; at most 500."""
    wanted: tuple[str, ...] = ()
    """Steps that a person wants started next, also in a pause."""
    step_spent: dict[str, tuple[float, int]] = Field(default_factory=dict)
    """USD and tokens of unsettled steps that have a budget."""
    decisions: dict[str, tuple[PersonDecision, ...]] = Field(default_factory=dict)
    """What people said about steps that still wait, or run with the answer."""
    beliefs: tuple[Belief, ...] = ()
    spent: PlanSpent = PlanSpent()
    budget: PlanBudget | None = None
    """With what people added; None: the plan's own."""
    pause: PlanPause | None = None
    timeline: tuple[PlanEvent, ...] = ()
    """At most `TIMELINE_LIMIT`, the newest."""
    runs: int = 1
    """Runs of the workflow so far, this one included."""
    reason: str = ""
    """Why the plan is about to fail, where it compensates before it ends."""
    adopt: bool = False
    """Edits that a person made during a pause are still to be kept."""
    cancel: str | None = None
    """Why a person cancelled the plan while the run was giving way."""


def first(kind: StepKind) -> str:
    """Return the code with which a step begins: one that takes another back is no part of the way forward."""
    return SKIPPED if kind is StepKind.COMPENSATION else PENDING


def encode_tries(attempts: list[int]) -> str:
    """Return the attempts as `PlanState.tries`."""
    return "".join(chr(48 + number) for number in attempts)


def decode_tries(tries: str) -> list[int]:
    """Read `PlanState.tries`."""
    return [ord(letter) - 48 for letter in tries]


def with_event(timeline: tuple[PlanEvent, ...], event: PlanEvent) -> tuple[PlanEvent, ...]:
    """Return the timeline with one more line, the oldest dropped where it is full."""
    return (*timeline, event)[-TIMELINE_LIMIT:]
