"""Executor models: choice, work order, report."""

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
    """What one call to a model cost. `None` means that it was not reported, which is not zero."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that the provider served from its cache."""
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def known(self) -> bool:
        """Whether tokens were reported."""
        return self.input_tokens is not None and self.output_tokens is not None


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum; a field that one of them did not report is unknown."""
    known = tuple(usages)
    values = {name: [getattr(usage, name) for usage in known] for name in Usage.model_fields}
    return Usage(**{name: None if None in column else sum(column) for name, column in values.items()})


SUMMARY_CHARACTERS = 500
DENIED_LINES, DENIED_CHARACTERS = 10, 120
EPISODE_VARIABLE = "TIGHTLOOP_EPISODE"
"""Tells an agent's processes which episode they work for: of whatever they connect to, they are its agent."""
# These and the three strikes are those of the seed "Plan-Execu Tight Loop".
BACKOFF_FIRST = timedelta(milliseconds=800)
BACKOFF_LONGEST = timedelta(seconds=60)
LIMIT_STRIKES = 3
"""Limits in a row before a person is asked."""


class AgentMode(StrEnum):
    """What an agent may do to this host."""

    READ_ONLY = "read_only"
    WORKSPACE = "workspace"
    """Write in the working tree and in its own home, nowhere else."""
    FULL = "full"
    """No fence of ours. Only for a host that is itself a throw-away."""


class OnCrash(StrEnum):
    """What is done about a delivery that broke off, where its traces do not tell how it ended."""

    ASK = "ask"
    """A person decides."""
    RETRY = "retry"
    """It is delivered again if no file changed and the executor declares that it has no effects outside the tree;
    else as `verify`."""
    VERIFY = "verify"
    """It is not delivered again: the checks look at what is on disk, and the next plan is told."""


class ExecutorChoice(CallerInput):
    """Which executor does the work, and how it is set up.

    A plain string is taken as the name: `"codex"`.
    """

    name: str = "command"
    fallback: tuple[str, ...] = ()
    """Executors to use, in this order, where one cannot be used at all (not installed, no key)."""
    model: str = ""
    """Model for an agent; empty: that of its settings. A fallback always uses its own."""
    mode: AgentMode = AgentMode.WORKSPACE
    permissions: Verdict = Verdict.ALLOW
    """The answer when an agent asks before it acts, within what `mode` permits. On `ask` the delivery ends, the episode
    waits for a person, and continues from there with the answer."""
    on_crash: OnCrash = OnCrash.RETRY
    options: dict[str, Any] = Field(default_factory=dict)
    """Adapter options. `command`: `argv`, a template with `{plan_file}` and `{workspace}`; without it
    the plan's own `run` steps are executed. `scripted`: `steps`, see `activities/executor/scripted.py`."""
    wall_limit_s: float = 3600.0
    # Agents print nothing during a long command, and some nothing while they wait for their provider: minutes of
    # silence are not yet a hang.
    idle_limit_s: float = 900.0
    """Longest time without any output."""
    # Codex has no cap on turns: an endless loop of tool calls made 109 requests in 20 s until it was killed.
    max_events: int = 20_000
    """Maximum of events of one delivery: an agent that exceeds it runs in circles and is stopped."""
    max_model_calls: int | None = None
    """Of one delivery; kept by the model gateway."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class ResumeToken(Value):
    """What an executor needs to go on where it was stopped. Sessions are files on one host."""

    adapter: str
    session_id: str
    host: str = ""
    version: str = ""


class Grant(Value):
    """A person's answer to what an agent asked for."""

    fingerprint: str
    """Of the permission request; see `tightloop/executor/asking.py`."""
    allowed: bool
    text: str = ""
    """What the person said; the answer itself where a question was asked."""


class WorkOrder(Value):
    """One delivery to an executor; stored as an artifact, referenced by its key."""

    key: str
    """Unique per delivery: episode, run, iteration and try. The outbox delivers a key once."""
    episode_id: str
    iteration: int
    root: str
    """Absolute path of the working tree."""
    plan: PlanMessage
    prompt: str
    """The rendered plan message."""
    executor: ExecutorChoice = ExecutorChoice.model_construct()
    resume: ResumeToken | None = None
    grants: tuple[Grant, ...] = ()
    """What a person allowed or denied in this iteration."""


class ExecutorStatus(StrEnum):
    """How a delivery ended, as far as it is known."""

    COMPLETED = "completed"
    NO_CHANGE = "no_change"
    LIMIT_HIT = "limit_hit"
    REFUSED = "refused"
    FAILED = "failed"
    FATAL = "fatal"
    """Cannot work at all as set up (program missing, bad key): trying again is useless."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUTCOME_UNKNOWN = "outcome_unknown"
    """The delivery broke off: what was done is not known, and it was not delivered again."""
    NEEDS_PERSON = "needs_person"
    """A person has to do or to decide something first; `question` says what."""
    PAUSED = "paused"
    """It stopped between two steps of its own because somebody asked for a pause; the next delivery goes on there."""
    DELEGATED = "delegated"
    """It was claimed for an executor that is a workflow; the episode starts that, and concludes the delivery."""


SUCCESSES = frozenset({ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE})


class ErrorKind(StrEnum):
    """Why a delivery did not do what it should, where that is known."""

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
    """Too many events or model calls: it was ended."""


class EventKind(StrEnum):
    """What happened in an agent, in one vocabulary for all of them."""

    STARTED = "started"
    SESSION = "session"
    """Its session id is known: from here on it can be resumed."""
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
    """An event that this version does not know: kept in the transcript, never an error."""


class ExecutorEvent(Value):
    """One thing that an agent reported."""

    kind: EventKind
    text: str = ""
    """At most 500 characters; model prose or tool output, never read for limits."""
    session_id: str = ""
    exit_code: int | None = None
    """Of a tool that ended."""


class Progress(Value):
    """Where a delivery is: the details of its heartbeats, read by the attempt after a crash."""

    events: int = 0
    """How many came so far."""
    last: EventKind | None = None
    resume: ResumeToken | None = None
    pid: int | None = None


class LimitHit(Value):
    """A limit that stopped an executor."""

    kind: str = "rate_limited"
    retry_after: timedelta | None = None
    """What the provider asks for; it wins over our own back-off."""
    evidence: str = ""
    source: str = ""
    """Where the kind was read, see `LimitSource`; empty: unknown."""
    confidence: float = 1.0
    """From 0 to 1."""
    monthly: bool = False
    """Whether the quota of a month is used up."""


class ExecutorResult(Value):
    """How a delivery ended: what the executor says and the workflow learns."""

    status: ExecutorStatus
    summary: str = ""
    """In the executor's words, at most `SUMMARY_CHARACTERS`."""
    exit_code: int | None = None
    usage: Usage | None = None
    """`None` where no model was involved; a `Usage` of `None`s where it was and did not report."""
    limit: LimitHit | None = None
    resume: ResumeToken | None = None
    error: str = ""
    error_kind: ErrorKind | None = None
    denied: tuple[str, ...] = ()
    """What the agent was not allowed to do, at most `DENIED_LINES` of `DENIED_CHARACTERS`."""
    question: Question | None = None
    model: str = ""
    """The model that it used, where its name is known."""
    bandit_findings: int | None = None
    """New findings of Bandit in the change; None: not looked for."""
    coverage: float | None = None
    """Share of the changed lines that tests execute which can fail, from 0 to 1; None: not measured."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the agent, and what fenced it: `{"codex": "0.169.0", "fence": "own"}`."""
    cpu_s: float | None = None
    """Processor time of its processes on this host; None where nobody measured it."""


class ExecutorOutcome(ExecutorResult):
    """What an adapter returns; the outbox keeps it before anything else happens."""

    transcript: bytes = b""
    """Bounded output of the run; goes to the artifact store."""


class ExecutorReport(ExecutorResult):
    """What the workflow learns of a delivery. The truth about the work is the tree, not this text."""

    key: str
    transcript: ArtifactRef | None = None
    executor: str = ""
    """Who did it, where a fallback stood in; empty: who was asked for."""
    passed_over: tuple[str, ...] = ()
    """Why the executors before it could not be used, a sentence each."""
    new_tree: str = ""
    drift: Drift | None = None
    """What was found instead of the expected tree; it was saved and undone."""
    attempt: int = 1

    @property
    def succeeded(self) -> bool:
        """Whether the executor says that it did what it could."""
        return self.status in SUCCESSES


def backoff(strike: int, limit: LimitHit | None = None) -> timedelta:
    """Return how long to wait after the `strike`-th limit in a row (from 1): min(2^(n-1) * 0.8 s, 60 s).

    A time given by the provider wins, unless it lies in the past.
    """
    if limit is not None and limit.retry_after is not None:
        return max(limit.retry_after, timedelta())
    # Bounded before the shift: the number of strikes is not, and neither would be the power of two.
    exponent = min(max(strike - 1, 0), 10)
    return min(BACKOFF_FIRST * (1 << exponent), BACKOFF_LONGEST)
