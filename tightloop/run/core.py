"""State shared by all kinds of runs: kernel state that a restore keeps, timeline, status and result."""

from abc import abstractmethod
from collections import deque
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Self

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.errors import followed_by
from tightloop.run.question import Question, Questions
from tightloop.safety.drift import Drift, is_news, with_drift
from tightloop.safety.seal import MessageLog, Seal
from tightloop.value import ArtifactRef, CallerInput, Value, first_problem, unknown_fields
from tightloop.wording import work_text

LINES_LIMIT = 1_000
"""Maximum number of lines in memory. A run of 50 iterations writes about 150 lines of 500 bytes."""
PAGE_LINES = 200
OWN = -1
"""Page cursor for the first line that this Temporal run wrote itself."""


class TimelineLine(Value):
    """One event of a run."""

    at: datetime
    kind: str
    """`opened`, `iteration`, `completed`, `paused`, `limit`, `restored`, `reset`, `drift`, `closed` ..."""
    step: str = ""
    """Step of a plan; empty for an event of the whole run."""
    text: str = ""


class TimelinePage(Value):
    """Page of the lines of one Temporal run, numbered from 0."""

    lines: tuple[TimelineLine, ...] = ()
    start: int = 0
    """Number of the first of `lines`."""
    oldest: int = 0
    """Number of the oldest line still in memory."""
    end: int = 0
    """Number of lines written so far."""


class RunTimeline:
    """Timeline of one Temporal run, bounded."""

    def __init__(self, limit: int = LINES_LIMIT) -> None:
        self._lines: deque[TimelineLine] = deque(maxlen=limit)
        # `_end` counts every line ever written, so cursors stay valid after the deque has dropped lines.
        self._end = self._own = 0

    def add(self, line: TimelineLine) -> None:
        """Append a line; drop the oldest one at the limit."""
        self._lines.append(line)
        self._end += 1

    def begin_own(self) -> None:
        """Mark a reset: the lines so far belong to the run that this one was reset from."""
        self._own = self._end

    def page(self, after: int) -> TimelinePage:
        """Return the lines after the first `after` ones, or after `OWN`; an out-of-range number is clamped."""
        oldest = self._end - len(self._lines)
        # Clamped instead of refused: a cursor may belong to a previous Temporal run, or point at lines already dropped.
        start = min(max(self._own if after == OWN else after, oldest), self._end)
        lines = tuple(islice(self._lines, start - oldest, start - oldest + PAGE_LINES))
        return TimelinePage(lines=lines, start=start, oldest=oldest, end=self._end)


WHAT_CHARACTERS = 300
PROBLEM_CHARACTERS = 400


class Work(Value):
    """Running work, for a person who checks whether the run is alive."""

    what: str = ""
    """Description, such as `check 2 of 3: pytest -q`."""
    since: datetime | None = None
    limit_s: float = 0.0
    """Time limit; 0 if unknown."""
    spent_s: float = 0.0
    """Seconds of the limit used by previous attempts."""
    attempt: int = 1
    attempts: int = 0
    """Maximum number of attempts; 0 if unknown."""
    problem: str = ""
    """Failure of the previous attempt."""
    answer_problem: str = ""
    """Error in the last model response."""
    next_attempt: datetime | None = None
    """Time of the next attempt while the run waits for it."""
    ends_early: bool = False
    """True if a pause may interrupt the work; only its time is lost."""

    def describe(self, now: datetime | None = None) -> str:
        """Describe the work, with its age if `now` is given, otherwise with its start time."""
        return work_text(self, now)


def wait_for_worker(since: datetime, queue: str) -> str:
    """Return the `waits_for` text of a step: task queue and start of the wait."""
    return f"a worker with a free slot on task queue {queue!r} since {since:%Y-%m-%d %H:%M:%S} UTC"


class RunCore(Value):
    """Kernel state of a run. Restoring a checkpoint replaces the policy state and keeps this."""

    questions: Questions = Questions.model_construct()
    pause: Question | None = None
    """Requested pause that has not started yet."""
    cancel: str | None = None
    """Reason of a person's cancellation."""
    timeline: tuple[TimelineLine, ...] = ()
    drifts: tuple[Drift, ...] = ()
    """File changes found on disk that the run did not make; the last `DRIFTS_KEPT`."""


def with_line(core: RunCore, line: TimelineLine, *, lines: int) -> RunCore:
    """Append a timeline line and keep the last `lines`."""
    return core.evolve(timeline=(*core.timeline, line)[-lines:])


def note_drift(core: RunCore, drift: Drift | None) -> tuple[RunCore, tuple[str, ...]]:
    """Record a drift. Return the new state and the lines to log, which are empty for a known drift."""
    if drift is None:
        return core, ()
    # Compared with the drifts before this one is added; afterwards every drift would look like a repetition.
    report = drift.report if is_news(core.drifts, drift) else ()
    return core.evolve(drifts=with_drift(core.drifts, drift)), report


class RunInput(CallerInput):
    """Input common to all runs, besides the request."""

    core: RunCore | None = None
    """State carried over from the previous Temporal run."""
    replace: bool = False
    """True if a run with this id may have ended before; its leftovers are taken over."""
    heard: MessageLog = MessageLog.model_construct()
    """Messages that previous Temporal runs have processed."""
    sealed_as: Seal | None = None
    """Seal of the input. Set by the converter; a sent value is overwritten."""
    problem: str = ""
    """Parse error of the input. The workflow fails with it instead of hanging."""
    unknown: str = ""
    """Warning about an unknown field in a hand-written input."""

    workflow_type: ClassVar[str]
    right_input: ClassVar[str] = "{}"
    """Valid input as JSON, for error messages."""

    @property
    def title(self) -> str:
        """Title of the run in lists."""
        raise NotImplementedError

    @property
    def executor_name(self) -> str:
        """Executor name shown in lists; empty if each step has its own."""
        return ""

    @property
    def goes_on(self) -> bool:
        """True if the id was used before."""
        return self.replace

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Self:
        # An exception here would fail the workflow task, which Temporal retries forever.
        try:
            read: Self = handler(value)
        except ValidationError as error:
            # Without validation, so that there is an object at all: the workflow fails with `problem` at once.
            return cls.model_construct(problem=f"{first_problem(error)}. Valid input: {cls.right_input}")
        # tightloop always sends all fields, and a newer version also sends fields that this worker does not know.
        is_raw = isinstance(value, dict) and "sealed_as" not in value
        if is_raw and (unknown := next(unknown_fields(cls, value), "")):
            return read.evolve(unknown=followed_by(unknown, f"Valid input: {cls.right_input}"))
        return read


REFUSED = "refused"
"""`TightloopStatus` of a run rejected at its start: it hides no earlier run, and its id stays free."""


class RunResult(Value):
    """Result of a run. Each kind defines its outcomes and adds its own fields."""

    outcome: str
    reason: str = ""
    tree: str = ""
    """Last tree that the run made or checked."""
    proof: ArtifactRef | None = None
    """Reference to the stored `Proof`, if there is one."""


class RunStatus(Value):
    """Snapshot of a run for people and programs. Each kind adds its own fields."""

    status: str = "running"
    """`running`, `paused` or the outcome; Temporal adds `terminated` and `timed_out`."""
    as_of: datetime | None = None
    """Snapshot time if no worker answers and the data comes from storage; None means now."""
    workspace: str = ""
    questions: tuple[Question, ...] = ()
    """Open questions, oldest first."""
    waits_for: str = ""
    """Task queue on which a step waits for a worker or a free slot, and the start of the wait."""
    tree: str = ""
    reason: str = ""
    """Reason of the outcome."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Workflow id."""

    @property
    def list_status(self) -> str:
        """Status for lists: one of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
        return self.status

    @property
    def needs_person(self) -> bool:
        """True if the run cannot continue until a person acts."""
        return self.list_status == "paused"

    @abstractmethod
    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return this snapshot, completed with the outcome of the run.

        Args:
            result: as recorded by the run or by Temporal.
            status: one of `CLOSED_STATUSES`.
        """
