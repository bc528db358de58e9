"""State of a run, whatever its kind: what never goes back, its timeline, status and result."""

from abc import abstractmethod
from collections import deque
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Self

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.errors import followed_by
from tightloop.run.question import Question, Questions
from tightloop.safety.drift import Drift, is_news, with_drift
from tightloop.safety.seal import Heard, Seal
from tightloop.value import ArtifactRef, CallerInput, Value, first_problem, unknown_fields
from tightloop.wording import work_text

LINES_LIMIT = 1_000
"""Lines kept in memory. A run of 50 iterations writes about 150; a line takes some 500 bytes."""
PAGE_LINES = 200
OWN = -1
"""In place of a number of lines: start with the first line that this Temporal run wrote itself."""


class TimelineLine(Value):
    """One event of a run."""

    at: datetime
    kind: str
    """`opened`, `iteration`, `completed`, `paused`, `limit`, `restored`, `reset`, `drift`, `closed` ..."""
    step: str = ""
    """Step of a plan; empty where the event is about the whole run."""
    text: str = ""


class TimelinePage(Value):
    """Part of the lines of one Temporal run, which are numbered from 0."""

    lines: tuple[TimelineLine, ...] = ()
    start: int = 0
    """Number of the first of `lines`."""
    oldest: int = 0
    """Number of the oldest line that is still kept."""
    end: int = 0
    """Number of lines written so far."""


class RunTimeline:
    """The lines of one Temporal run, up to a limit."""

    def __init__(self, limit: int = LINES_LIMIT) -> None:
        self._lines: deque[TimelineLine] = deque(maxlen=limit)
        self._end = self._own = 0

    def add(self, line: TimelineLine) -> None:
        """Add a line. The oldest one is dropped at the limit."""
        self._lines.append(line)
        self._end += 1

    def begin_own(self) -> None:
        """Mark a reset: all lines so far belong to the run that this one was reset from."""
        self._own = self._end

    def page(self, after: int) -> TimelinePage:
        """Return the lines after the first `after` ones, or `OWN`; a wrong number means the nearest valid one."""
        oldest = self._end - len(self._lines)
        start = min(max(self._own if after == OWN else after, oldest), self._end)
        lines = tuple(islice(self._lines, start - oldest, start - oldest + PAGE_LINES))
        return TimelinePage(lines=lines, start=start, oldest=oldest, end=self._end)


WHAT_CHARACTERS = 300
PROBLEM_CHARACTERS = 400


class Work(Value):
    """What runs now, for a person who wonders whether it still does."""

    what: str = ""
    """Such as `check 2 of 3: pytest -q`."""
    since: datetime | None = None
    limit_s: float = 0.0
    """It is ended after this time; 0: not known here."""
    spent_s: float = 0.0
    """Seconds that the attempts before this one took of the limit."""
    attempt: int = 1
    attempts: int = 0
    """Maximum number of attempts; 0: not known here."""
    problem: str = ""
    """Why the attempt before this one failed."""
    answer_problem: str = ""
    """What was wrong with the last answer of a model."""
    next_attempt: datetime | None = None
    """When it is tried again, where it waits for that."""
    ends_early: bool = False
    """A pause may end it: nothing is lost but its time."""

    def told(self, now: datetime | None = None) -> str:
        """Return it in words; with its age where the time is given, else with the time at which it began."""
        return work_text(self, now)


def wait_for_worker(since: datetime, queue: str) -> str:
    """Return where and since when a step waits, as the status shows it."""
    return f"a worker with a free slot on task queue {queue!r} since {since:%Y-%m-%d %H:%M:%S} UTC"


class RunCore(Value):
    """Kernel state of a run. Going back to a checkpoint replaces the state of the policy and keeps this."""

    questions: Questions = Questions.model_construct()
    pause: Question | None = None
    """A pause that was requested and has not begun."""
    cancel: str | None = None
    """Why a person cancelled the run."""
    timeline: tuple[TimelineLine, ...] = ()
    drifts: tuple[Drift, ...] = ()
    """Changes found on disk that the run had not made; the last `DRIFTS_KEPT`."""


def with_line(core: RunCore, line: TimelineLine, *, lines: int) -> RunCore:
    """Add a line to the timeline, which keeps the last `lines`."""
    return core.evolve(timeline=(*core.timeline, line)[-lines:])


def note_drift(core: RunCore, drift: Drift | None) -> tuple[RunCore, tuple[str, ...]]:
    """Keep a drift. Returns the lines to log, too: none for one that is known."""
    if drift is None:
        return core, ()
    report = drift.report if is_news(core.drifts, drift) else ()
    return core.evolve(drifts=with_drift(core.drifts, drift)), report


class RunInput(CallerInput):
    """What the input of every run has besides the request."""

    core: RunCore | None = None
    """From the previous Temporal run."""
    replace: bool = False
    """A run with this id may have ended before; what it left is taken over."""
    heard: Heard = Heard.model_construct()
    """Messages that previous Temporal runs have taken."""
    sealed_as: Seal | None = None
    """The seal of the input. The converter sets it, whatever was sent."""
    problem: str = ""
    """Why the input could not be read. The workflow then fails with this sentence instead of hanging."""
    unknown: str = ""
    """A sentence on a misspelt field in an input that a person wrote."""

    workflow_type: ClassVar[str]
    right_input: ClassVar[str] = "{}"
    """A valid input as JSON, for error messages."""

    @property
    def title(self) -> str:
        """Text by which a person recognises the run in a list."""
        raise NotImplementedError

    @property
    def executor_name(self) -> str:
        """Name of the executor that lists show; empty: each step has its own."""
        return ""

    @property
    def goes_on(self) -> bool:
        """Whether the id was used before."""
        return self.replace

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Self:
        # An exception here would fail the workflow task, which Temporal retries for ever.
        try:
            read: Self = handler(value)
        except ValidationError as error:
            return cls.model_construct(problem=f"{first_problem(error)}. A right input: {cls.right_input}")
        # tightloop writes all fields, and unknown ones where it is newer than this worker.
        is_raw = isinstance(value, dict) and "sealed_as" not in value
        if is_raw and (unknown := next(unknown_fields(cls, value), "")):
            return read.evolve(unknown=followed_by(unknown, f"A right input: {cls.right_input}"))
        return read


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
