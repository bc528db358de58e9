"""Models for executors: choice, work order and report."""

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from tightloop.executor.message import PlanMessage
from tightloop.run.question import Question
from tightloop.safety.drift import Drift
from tightloop.safety.rubric import Verdict
from tightloop.value import ArtifactRef, CallerInput, Value


class Usage(Value):
    """Usage of one model call. `None` means that the value was not reported."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    """Number of `input_tokens` that the provider served from its cache."""
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def known(self) -> bool:
        """True if token counts were reported."""
        return self.input_tokens is not None and self.output_tokens is not None


def total(usages: Iterable[Usage]) -> Usage:
    """Add up the usage of several calls.

    If any call did not report a value, the total of that value is unknown.
    """
    all_usages = tuple(usages)
    values = {name: [getattr(usage, name) for usage in all_usages] for name in Usage.model_fields}
    return Usage(**{name: None if None in column else sum(column) for name, column in values.items()})


SUMMARY_CHARACTERS = 500
DENIED_LINES, DENIED_CHARACTERS = 10, 120
EPISODE_VARIABLE = "TIGHTLOOP_EPISODE"
"""Environment variable that contains the ID of the episode for which an agent's processes work."""
AT_ONCE_S = 60.0
"""A delivery that ends in an error within this time and changes no file has failed at once."""
BACKOFF_FIRST = timedelta(seconds=10)
BACKOFF_LONGEST = timedelta(minutes=15)
ALERT_AFTER = 3
"""Number of consecutive failed deliveries after which people are alerted."""


class AgentMode(StrEnum):
    """The level of access that an agent has to this host."""

    READ_ONLY = "read_only"
    WORKSPACE = "workspace"
    """Write access only to the working tree and the agent's home."""
    FULL = "full"
    """No sandbox. Only use this on a disposable host."""


class OnCrash(StrEnum):
    """The reaction to a delivery that was interrupted before its end was recorded."""

    ASK = "ask"
    """Let a person decide."""
    RETRY = "retry"
    """Deliver again if no file has changed and the executor declares no effects outside the tree. Otherwise, behave
    like `verify`.
    """
    VERIFY = "verify"
    """Do not deliver again. Run the checks on the current files, and let the next plan take the result into account."""


class ExecutorChoice(CallerInput):
    """Executor to use, with its configuration.

    A plain string, such as `"codex"`, is treated as the name.
    """

    name: str = "command"
    fallback: tuple[str, ...] = ()
    """Executors to try in this order if one is unavailable because it is not installed or has no API key."""
    model: str = ""
    """Model for an agent. If empty, the model from the agent's settings is used. A fallback always uses its own model.
    """
    mode: AgentMode = AgentMode.WORKSPACE
    permissions: Verdict = Verdict.ALLOW
    """Response to an agent's permission requests, within the limits of `mode`. With `ask`, the delivery ends, and the
    episode waits for a person. It then continues from that point with the person's answer.
    """
    on_crash: OnCrash = OnCrash.RETRY
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the adapter. `command` accepts `argv`, a template with `{plan_file}` and `{workspace}`. Without it,
    the `run` steps of the plan are executed. `scripted` accepts `steps`, see `activities/executor/scripted.py`.
    """
    wall_limit_s: float = 3600.0
    # Agents print nothing during a long command, and some nothing while they wait for their provider, so minutes of
    # silence do not indicate a hang.
    idle_limit_s: float = 900.0
    """Maximum time without output, in seconds."""
    retries: int = Field(default=12, ge=1)
    """Number of consecutive deliveries that may fail at once or hit a limit before a person is asked."""
    retry_for_s: float = Field(default=7200.0, gt=0)
    """Maximum time to wait between such deliveries before a person is asked, in seconds. Waits until a time that the
    provider named do not count.
    """
    # Codex has no turn limit: an endless loop of tool calls made 109 requests in 20 s until it was killed.
    max_events: int = 20_000
    """Maximum number of events per delivery. An agent that exceeds it is assumed to be looping and is stopped."""
    max_model_calls: int | None = None
    """Maximum number of model calls per delivery. The model gateway enforces it."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class ResumeToken(Value):
    """Data for resuming an executor's session. The session files exist only on one host."""

    adapter: str
    session_id: str
    host: str = ""
    version: str = ""


class Grant(Value):
    """A person's response to an agent's request."""

    fingerprint: str
    """Fingerprint of the request; see `tightloop/executor/asking.py`."""
    allowed: bool
    text: str = ""
    """Comment by the person, or the reply to a clarifying question."""


class WorkOrder(Value):
    """A delivery to an executor. It is stored as an artifact and referenced by its key."""

    key: str
    """Key that is unique for each delivery. It identifies the episode, run, iteration and attempt. The outbox delivers
    each key once.
    """
    episode_id: str
    iteration: int
    root: str
    """Absolute path of the working tree."""
    folder: str = ""
    """Folder of the project, relative to `root`. Empty for `root` itself."""
    plan: PlanMessage
    prompt: str
    """The plan message as Markdown."""
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """Permissions that a person has granted or denied in this iteration."""


class ExecutorStatus(StrEnum):
    """Final status of a delivery."""

    COMPLETED = "completed"
    NO_CHANGE = "no_change"
    LIMIT_HIT = "limit_hit"
    REFUSED = "refused"
    FAILED = "failed"
    FATAL = "fatal"
    """The executor cannot run with this configuration, for example because a program is missing or a key is invalid.
    Retrying does not help.
    """
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUTCOME_UNKNOWN = "outcome_unknown"
    """The delivery was interrupted. Its result is unknown, and it was not repeated."""
    NEEDS_PERSON = "needs_person"
    """A person has to act or decide first. See `question`."""
    PAUSED = "paused"
    """The executor was asked to pause and stopped between two of its own steps. The next delivery continues from there.
    """
    DELEGATED = "delegated"
    """The delivery was claimed for an executor that is a workflow. The episode starts this workflow and completes the
    delivery.
    """


SUCCESSES = frozenset({ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE})


class ErrorKind(StrEnum):
    """Cause of a failed delivery."""

    AUTH = "auth"
    QUOTA = "quota"
    RATE = "rate"
    USAGE_WINDOW = "usage_window"
    OVERLOADED = "overloaded"
    CONTEXT_FULL = "context_full"
    CONFIG = "config"
    MISSING_PROGRAM = "missing_program"
    SANDBOX = "sandbox"
    PROTOCOL = "protocol"
    CRASHED = "crashed"
    OFFLINE = "offline"
    TIMEOUT = "timeout"
    BUDGET = "budget"
    """The executor was stopped after too many events or model calls."""
    STEP = "step"
    """A command of the plan failed. A new plan can fix it."""


class EventKind(StrEnum):
    """Kind of agent event. The kinds are the same for all agents."""

    STARTED = "started"
    SESSION = "session"
    """The session ID is known. From now on, the session can be resumed."""
    MESSAGE = "message"
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    FILE_CHANGE = "file_change"
    PERMISSION = "permission"
    USAGE = "usage"
    RETRYING = "retrying"
    LIMIT = "limit"
    WARNING = "warning"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    """The event is unknown to this version. It is kept in the transcript and never treated as an error."""


class ExecutorEvent(Value):
    """An event that an agent reported during a delivery."""

    kind: EventKind
    text: str = ""
    """Text from the model or output from a tool, at most 500 characters. It is never searched for limits."""
    session_id: str = ""
    exit_code: int | None = None
    """Exit code of a tool that has ended."""


class Progress(Value):
    """The progress of a delivery, stored in the heartbeat details.

    After a crash, the next attempt reads this progress.
    """

    events: int = 0
    """Number of events so far."""
    last: EventKind | None = None
    resume: ResumeToken | None = None
    pid: int | None = None


class LimitHit(Value):
    """Limit that stopped an executor."""

    kind: str = "rate_limited"
    retry_after: timedelta | None = None
    """Delay that the provider requested. It takes precedence over our own backoff."""
    evidence: str = ""
    source: str = ""
    """Source of the kind, see `LimitSource`. It is empty if unknown."""
    confidence: float = 1.0
    """Confidence from 0 to 1."""
    monthly: bool = False
    """True if a monthly quota is used up."""


class ExecutorResult(Value):
    """Result of a delivery, as reported by the executor."""

    status: ExecutorStatus
    summary: str = ""
    """The executor's summary, at most `SUMMARY_CHARACTERS` long."""
    exit_code: int | None = None
    usage: Usage | None = None
    """Token usage. `None` means that no model was used. If a model was used but did not report its usage, the fields of
    `Usage` are `None`.
    """
    limit: LimitHit | None = None
    resume: ResumeToken | None = None
    error: str = ""
    error_kind: ErrorKind | None = None
    denied: tuple[str, ...] = ()
    """Denied permission requests, at most `DENIED_LINES` lines of `DENIED_CHARACTERS` characters."""
    question: Question | None = None
    model: str = ""
    """Name of the model that was used, if it is known."""
    bandit_findings: int | None = None
    """Number of new Bandit findings in the change, or None if they were not counted."""
    coverage: float | None = None
    """Fraction of the changed executable lines that are covered by tests that can fail, from 0 to 1. None if it was not
    measured.
    """
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the agent and sandbox, such as `{"codex": "0.169.0", "fence": "own"}`."""
    cpu_s: float | None = None
    """CPU time that its processes used on this host, in seconds. None if it was not measured."""


class ExecutorOutcome(ExecutorResult):
    """The result that an adapter returns. It is saved in the outbox before any other processing."""

    transcript: bytes = b""
    """Output of the run, truncated to a maximum size, for the artifact store."""


class ExecutorReport(ExecutorResult):
    """A report on a delivery. The work that was actually done is shown by the tree, not by the report."""

    key: str
    transcript: ArtifactRef | None = None
    executor: str = ""
    """Name of the fallback executor that did the work. It is empty if the requested executor did it."""
    passed_over: tuple[str, ...] = ()
    """Reasons why the preceding executors were unavailable, one sentence each."""
    new_tree: str = ""
    drift: Drift | None = None
    """Drift that was found instead of the expected tree. The drift was saved and undone."""
    attempt: int = 1
    failed_at_once: bool = False
    """True if the delivery ended in an error within `AT_ONCE_S` and changed no file. It is repeated and does not count
    as an iteration.
    """

    @property
    def succeeded(self) -> bool:
        """True if the executor reports success."""
        return self.status in SUCCESSES


def backoff(failures: int) -> timedelta:
    """Return how long to wait after a number of consecutive failed deliveries.

    The wait starts at 10 s and doubles with each failure, up to 15 min.
    """
    # Bound the exponent first: the number of failures is unbounded, and so would be the power of two.
    exponent = min(max(failures - 1, 0), 10)
    return min(BACKOFF_FIRST * (1 << exponent), BACKOFF_LONGEST)
