"""State that all kinds of runs share: kernel state that survives a restore, timeline, status and result."""

import hashlib
from abc import abstractmethod
from collections import deque
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.errors import followed_by
from tightloop.run.outcome import headline
from tightloop.run.question import Question, Questions
from tightloop.safety.approval import Approval
from tightloop.safety.drift import Drift, is_news, with_drift
from tightloop.safety.seal import MessageLog, Seal
from tightloop.value import ArtifactRef, CallerInput, Value, first_problem, unknown_fields
from tightloop.wording import work_text

LINES_LIMIT = 1_000
"""Maximum number of lines in memory. A run with 50 iterations writes about 150 lines of 500 bytes."""
PAGE_LINES = 200
OWN = -1
"""Value of a page cursor that stands for the first line that this Temporal run wrote itself."""


class TimelineLine(Value):
    """One event of a run."""

    at: datetime
    kind: str
    """Kind of event: `opened`, `iteration`, `completed`, `paused`, `limit`, `restored`, `reset`, `drift`, `closed` and
    others.
    """
    step: str = ""
    """Step of a plan. It is empty for events of the whole run."""
    text: str = ""


class TimelinePage(Value):
    """A page of a Temporal run's timeline. Lines are numbered from 0."""

    lines: tuple[TimelineLine, ...] = ()
    start: int = 0
    """Number of the first line in `lines`."""
    oldest: int = 0
    """Number of the oldest line that is still in memory."""
    end: int = 0
    """Number of lines that have been written so far."""


class RunTimeline:
    """The timeline of a Temporal run. Only the most recent lines are kept."""

    def __init__(self, limit: int = LINES_LIMIT) -> None:
        self._lines: deque[TimelineLine] = deque(maxlen=limit)
        # `_end` counts every line ever written, so cursors stay valid after the deque has dropped lines.
        self._end = self._own = 0

    def add(self, line: TimelineLine) -> None:
        """Append a line. If the timeline is full, drop the oldest line."""
        self._lines.append(line)
        self._end += 1

    def begin_own(self) -> None:
        """Mark all existing lines as belonging to the run before the reset."""
        self._own = self._end

    def page(self, after: int) -> TimelinePage:
        """Return a page of the timeline, skipping the first `after` lines.

        If `after` is `OWN`, the page starts at the first line of this run. Out-of-range values are clamped.
        """
        oldest = self._end - len(self._lines)
        # Clamped instead of refused: a cursor may belong to a previous Temporal run, or point at lines already dropped.
        start = min(max(self._own if after == OWN else after, oldest), self._end)
        lines = tuple(islice(self._lines, start - oldest, start - oldest + PAGE_LINES))
        return TimelinePage(lines=lines, start=start, oldest=oldest, end=self._end)


WHAT_CHARACTERS = 300
PROBLEM_CHARACTERS = 400


class Work(Value):
    """A description of the running work, which shows people that the run is still alive."""

    what: str = ""
    """Description, such as `check 2 of 3: pytest -q`."""
    since: datetime | None = None
    limit_s: float = 0.0
    """Time limit in seconds, or 0 if it is unknown."""
    spent_s: float = 0.0
    """Time in seconds that previous attempts have used. It counts towards the limit."""
    attempt: int = 1
    attempts: int = 0
    """Maximum number of attempts, or 0 if it is unknown."""
    problem: str = ""
    """Reason why the previous attempt failed."""
    answer_problem: str = ""
    """Error in the model's last response, if any."""
    next_attempt: datetime | None = None
    """Time of the next attempt, while the run is waiting for it."""
    ends_early: bool = False
    """True if a pause may interrupt the work. This only loses the time spent on it."""

    def describe(self, now: datetime | None = None) -> str:
        """Describe the work. Include its age if `now` is given, and its start time otherwise."""
        return work_text(self, now)


def wait_for_worker(since: datetime, queue: str) -> str:
    """Return the `waits_for` text for a step that is waiting for a worker."""
    return f"a worker with a free slot on task queue {queue!r} since {since:%Y-%m-%d %H:%M:%S} UTC"


class RunCore(Value):
    """The part of a run's state that all kinds of runs share. Restoring a checkpoint does not change it."""

    questions: Questions = Questions.model_construct()
    pause: Question | None = None
    """Pause that was requested but has not started yet."""
    cancel: str | None = None
    """Reason that a person gave when cancelling the run."""
    timeline: tuple[TimelineLine, ...] = ()
    drifts: tuple[Drift, ...] = ()
    """File changes on disk that were not made by the run. The last `DRIFTS_KEPT` are kept."""
    delivered: str = ""
    """Place of the result; see `RunStatus.delivered`."""
    worktree: str = ""
    forked_from: str = ""


def with_line(core: RunCore, line: TimelineLine, *, lines: int) -> RunCore:
    """Append a line to the timeline, keeping only the last `lines` lines."""
    return core.evolve(timeline=(*core.timeline, line)[-lines:])


def note_drift(core: RunCore, drift: Drift | None) -> tuple[RunCore, tuple[str, ...]]:
    """Record that files changed outside the run. Return the new state and the lines to log.

    If the same changes have been recorded before, they are not logged again.
    """
    if drift is None:
        return core, ()
    # Compared with the drifts before this one is added; afterwards every drift would look like a repetition.
    report = drift.report if is_news(core.drifts, drift) else ()
    return core.evolve(drifts=with_drift(core.drifts, drift)), report


ResultMode = Literal["auto", "branch", "commits", "tree"]
"""Form in which a result is delivered: one commit on a new branch, one commit for each task, or files only."""


def choose_result_mode(wanted: ResultMode, *, worktree: bool, nested: bool) -> ResultMode:
    """Return the result mode of a run.

    `auto` means `branch` for worktrees and `tree` otherwise. Nested runs always use `tree`.
    """
    if nested:
        return "tree"
    return ("branch" if worktree else "tree") if wanted == "auto" else wanted


class RunInput(CallerInput):
    """Fields that all run inputs have in addition to the request."""

    core: RunCore | None = None
    """State that was carried over from the previous Temporal run."""
    replace: bool = False
    """True if an earlier run with this ID may have ended. This run takes over its leftover data."""
    heard: MessageLog = MessageLog.model_construct()
    """Messages that have been processed by previous Temporal runs."""
    sealed_as: Seal | None = None
    """Seal of the input. It is set by the converter, which overwrites any value that was sent."""
    problem: str = ""
    """Error that occurred while parsing the input. It makes the workflow fail instead of hang."""
    unknown: str = ""
    """Warning about an unknown field in an input that was written by hand."""

    workflow_type: ClassVar[str]
    right_input: ClassVar[str] = "{}"
    """Valid input as JSON, for error messages."""

    @property
    def title(self) -> str:
        """Title of the run in lists."""
        raise NotImplementedError

    @property
    def executor_name(self) -> str:
        """Name of the executor to show in lists. Empty if each step has its own executor."""
        return ""

    @property
    def goes_on(self) -> bool:
        """True if an earlier run used the same ID."""
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
"""`TightloopStatus` of a run that was rejected when it started. It does not hide an earlier run, and its ID can be used
again.
"""


class Evidence(Value):
    """Facts that decide whether a success is proven."""

    files_changed: int | None = None
    """Number of files that differ from the initial tree. None if it is unknown."""
    seen_to_fail: bool = True
    """True if at least one check failed before it passed."""
    worked: bool = True
    """True if an executor, or a step of a plan, changed a file."""
    flaky: tuple[str, ...] = ()
    """Checks that failed once and passed when they were repeated without a change."""
    asked: tuple[str, ...] = ()
    """Sentences about changes that were only announced afterwards, each with the person, the change and the time."""
    scenarios: int = 0
    """Number of hidden scenarios that passed."""
    drafted: int = 0
    """Number of passed scenarios that were drafted by a model."""
    accepted_by: str = ""
    """Person who accepted the tree even though the proof has findings."""
    finding: str = ""
    """First finding of the proof that this person accepted."""


class RunResult(Value):
    """The result of a run. Each kind of run adds its own outcomes and fields."""

    outcome: str
    qualifier: str = ""
    """Reason why a success is not a plain success, such as `not proven: no check ever failed`; otherwise empty."""
    reason: str = ""
    files_changed: int | None = None
    """Number of files that differ from the initial tree. None if it is unknown."""
    tree: str = ""
    """Last tree that the run created or checked."""
    proof: ArtifactRef | None = None
    """Reference to the stored `Proof`, if there is one."""
    approvals: tuple[Approval, ...] = ()
    """People's answers about changes. An outer plan does not ask about the same changes again."""

    @property
    def headline(self) -> str:
        """One-line summary, such as `SUCCEEDED, not proven: no check ever failed (all checks pass: 3/3)`."""
        return headline(self.outcome, self.qualifier, self.reason)


class RunStatus(Value):
    """A snapshot of a run for people and programs. Each kind of run adds its own fields."""

    status: str = "running"
    """Status: `running`, `paused` or the outcome of the run. Temporal adds `terminated` and `timed_out`."""
    as_of: datetime | None = None
    """Time of the snapshot, if no worker responds and the data is read from storage. None means that the data is
    current.
    """
    workspace: str = ""
    questions: tuple[Question, ...] = ()
    """Open questions, oldest first."""
    waits_for: str = ""
    """Task queue on which a step is waiting for a worker or a free slot, and the time since when it has been waiting.
    """
    tree: str = ""
    qualifier: str = ""
    """Reason why a success is not a plain success; see `RunResult.qualifier`. Empty while the run is open."""
    reason: str = ""
    """Reason for the outcome."""
    files_changed: int | None = None
    """Number of files that differ from the initial tree. None if it is unknown, and while the run is open."""
    unattended: bool = False
    """True if stuck work leads to alerts instead of pauses."""
    worktree: str = ""
    """Worktree in which the run works. Empty if it works in the workspace."""
    forked_from: str = ""
    """Episode and checkpoint from which the run was forked."""
    delivered: str = ""
    """Branch with the result and the command to take it, or the reason why there is none. Empty if the result is in the
    working tree.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """Workflow ID."""

    @property
    def list_status(self) -> str:
        """Status to show in lists, one of `OPEN_STATUSES` or `CLOSED_STATUSES`."""
        return self.status

    @property
    def needs_person(self) -> bool:
        """True if the run cannot continue until a person acts."""
        return self.list_status == "paused"

    @abstractmethod
    def with_outcome(self, result: RunResult, status: str) -> Self:
        """Return a copy of this snapshot that includes the outcome of the run.

        Args:
            result: result recorded by the run or by Temporal.
            status: one of `CLOSED_STATUSES`.
        """


EPISODE_WORKFLOW_TYPE = "EpisodeWorkflow"
PLAN_WORKFLOW_TYPE = "PlanWorkflow"
LOOP_WORKFLOW_TYPE = "LoopWorkflow"
CODER_WORKFLOW_TYPE = "CoderWorkflow"
# Temporal's default is 10 s; an episode waits that long when its worker is killed in the middle of a task.
TASK_TIMEOUT = timedelta(seconds=5)
"""Timeout of a workflow task, including a replay."""
ABSENCE_S = 60.0
"""Default value of `temporal.absence_s`."""
Weight = Annotated[float, Field(ge=0.001, le=1000)]
"""Weight of a project when several projects compete. The limits are defined by Temporal."""


class Queues(CallerInput):
    """Task queues by capability.

    If a field is empty, its activities start eagerly on the episode's own task queue.
    """

    workspace: str = ""
    llm: str = ""
    executor: str = ""
    home: str = ""
    """Task queue of the host and state home that own the workspace, as printed by `tightloop doctor`. If empty, it is
    determined when the workspace is opened. If work arrives at another host, it is forwarded to this queue.
    """
    weight: Weight = 1.0
    """Fairness weight of the project. The value from the settings overrides the value of the request."""
    absence_s: float = ABSENCE_S
    """Time in seconds without Temporal after which running work is abandoned. The value from the settings overrides the
    value of the request.
    """


ATTENTION_SPAN = timedelta(minutes=10)
"""Time after a message during which we assume that the sender is waiting for it to take effect."""


class Urgency(IntEnum):
    """Temporal priority keys, shared by all projects. Lower values run first. The default is 3."""

    PERSON_WAITS = 1
    RUNNING = 3
    NEW = 5


def urgency(*, last_message_at: datetime | None, now: datetime, is_new: bool) -> Urgency:
    """Return the urgency of a workflow's steps.

    Args:
        last_message_at: time of the last message from a person in this run, or None if there was none.
        now: the current time.
        is_new: True if no work has been done yet.
    """
    if last_message_at is not None and now - last_message_at < ATTENTION_SPAN:
        return Urgency.PERSON_WAITS
    return Urgency.NEW if is_new else Urgency.RUNNING


def project_of(workspace: str) -> str:
    """Return the default name of a project, which is the name of its workspace folder."""
    return workspace.rstrip("/").rpartition("/")[2]


def fairness_key(project: str) -> str:
    """Return the fairness key of a project. The name is hashed because Temporal stores keys in plain text."""
    # "replace": a path with undecodable bytes holds lone surrogates, which strict UTF-8 refuses.
    return "project-" + hashlib.sha256(project.encode("utf-8", "replace")).hexdigest()[:12] if project else ""
