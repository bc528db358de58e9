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
    """Usage of one model call. `None` means not reported, which is not zero."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    """Part of `input_tokens` that the provider served from its cache."""
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def known(self) -> bool:
        """True if tokens were reported."""
        return self.input_tokens is not None and self.output_tokens is not None


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum; a field is unknown if any of the calls did not report it."""
    all_usages = tuple(usages)
    values = {name: [getattr(usage, name) for usage in all_usages] for name in Usage.model_fields}
    return Usage(**{name: None if None in column else sum(column) for name, column in values.items()})


SUMMARY_CHARACTERS = 500
DENIED_LINES, DENIED_CHARACTERS = 10, 120
EPISODE_VARIABLE = "TIGHTLOOP_EPISODE"
"""Environment variable with the id of the episode that an agent's processes work for."""
# As the three strikes, from the seed "Plan-Execu Tight Loop".
BACKOFF_FIRST = timedelta(milliseconds=800)
BACKOFF_LONGEST = timedelta(seconds=60)
LIMIT_STRIKES = 3
"""Consecutive limits before a person is asked."""


class AgentMode(StrEnum):
    """Access of an agent to this host."""

    READ_ONLY = "read_only"
    WORKSPACE = "workspace"
    """Write access to the working tree and the agent's home only."""
    FULL = "full"
    """No sandbox. Only for a disposable host."""


class OnCrash(StrEnum):
    """Reaction to a delivery that was interrupted without a trace of its end."""

    ASK = "ask"
    """A person decides."""
    RETRY = "retry"
    """Deliver again if no file changed and the executor declares no effects outside the tree; otherwise as `verify`."""
    VERIFY = "verify"
    """Do not deliver again: the checks run on the files on disk, and the next plan learns of it."""


class ExecutorChoice(CallerInput):
    """Executor for the work, with its configuration.

    A plain string is the name: `"codex"`.
    """

    name: str = "command"
    fallback: tuple[str, ...] = ()
    """Executors to try, in this order, if one is unavailable (not installed, no key)."""
    model: str = ""
    """Model for an agent; empty: that of its settings. A fallback always uses its own."""
    mode: AgentMode = AgentMode.WORKSPACE
    permissions: Verdict = Verdict.ALLOW
    """Answer to an agent's permission requests, within `mode`.

    With `ask` the delivery ends, the episode waits for a person, and it continues from there with the answer.
    """
    on_crash: OnCrash = OnCrash.RETRY
    options: dict[str, Any] = Field(default_factory=dict)
    """Adapter options.

    `command`: `argv`, a template with `{plan_file}` and `{workspace}`; without it, the plan's own `run` steps are
    executed. `scripted`: `steps`, see `activities/executor/scripted.py`.
    """
    wall_limit_s: float = 3600.0
    # Agents print nothing during a long command, and some nothing while they wait for their provider, so minutes of
    # silence do not indicate a hang.
    idle_limit_s: float = 900.0
    """Maximum time without output, in seconds."""
    # Codex has no turn limit: an endless loop of tool calls made 109 requests in 20 s until it was killed.
    max_events: int = 20_000
    """Maximum number of events per delivery; an agent that exceeds it is considered looping and is stopped."""
    max_model_calls: int | None = None
    """Maximum number of model calls per delivery; enforced by the model gateway."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class ResumeToken(Value):
    """State that an executor needs to resume. Sessions are files on one host."""

    adapter: str
    session_id: str
    host: str = ""
    version: str = ""


class Grant(Value):
    """A person's answer to an agent's request."""

    fingerprint: str
    """Fingerprint of the request; see `tightloop/executor/asking.py`."""
    allowed: bool
    text: str = ""
    """Comment of the person, or the reply to a clarifying question."""


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
    """Permissions that a person granted or denied in this iteration."""


class ExecutorStatus(StrEnum):
    """Known end of a delivery."""

    COMPLETED = "completed"
    NO_CHANGE = "no_change"
    LIMIT_HIT = "limit_hit"
    REFUSED = "refused"
    FAILED = "failed"
    FATAL = "fatal"
    """Cannot work as configured (program missing, bad key); retrying is useless."""
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUTCOME_UNKNOWN = "outcome_unknown"
    """The delivery was interrupted: its result is unknown, and it was not delivered again."""
    NEEDS_PERSON = "needs_person"
    """A person has to act or decide first; see `question`."""
    PAUSED = "paused"
    """Stopped between two of its own steps on request; the next delivery continues from there."""
    DELEGATED = "delegated"
    """Claimed for an executor that is a workflow; the episode starts it and concludes the delivery."""


SUCCESSES = frozenset({ExecutorStatus.COMPLETED, ExecutorStatus.NO_CHANGE})


class ErrorKind(StrEnum):
    """Known cause of a failed delivery."""

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
    """Stopped after too many events or model calls."""


class EventKind(StrEnum):
    """Kinds of agent events, common to all agents."""

    STARTED = "started"
    SESSION = "session"
    """The session id is known, so it can be resumed from here."""
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
    """Event unknown to this version: kept in the transcript, never an error."""


class ExecutorEvent(Value):
    """Event reported by an agent."""

    kind: EventKind
    text: str = ""
    """Model prose or tool output, at most 500 characters; never searched for limits."""
    session_id: str = ""
    exit_code: int | None = None
    """Exit code of an ended tool."""


class Progress(Value):
    """Progress of a delivery: its heartbeat details, read by the next attempt after a crash."""

    events: int = 0
    """Number of events so far."""
    last: EventKind | None = None
    resume: ResumeToken | None = None
    pid: int | None = None


class LimitHit(Value):
    """Limit that stopped an executor."""

    kind: str = "rate_limited"
    retry_after: timedelta | None = None
    """Delay requested by the provider; overrides our own backoff."""
    evidence: str = ""
    source: str = ""
    """Source of the kind, see `LimitSource`; empty: unknown."""
    confidence: float = 1.0
    """From 0 to 1."""
    monthly: bool = False
    """True if a monthly quota is used up."""


class ExecutorResult(Value):
    """Result of a delivery, as reported by the executor and seen by the workflow."""

    status: ExecutorStatus
    summary: str = ""
    """Summary by the executor, at most `SUMMARY_CHARACTERS`."""
    exit_code: int | None = None
    usage: Usage | None = None
    """`None` if no model was involved; a `Usage` of `None`s if one was and did not report."""
    limit: LimitHit | None = None
    resume: ResumeToken | None = None
    error: str = ""
    error_kind: ErrorKind | None = None
    denied: tuple[str, ...] = ()
    """Denied permissions, at most `DENIED_LINES` of `DENIED_CHARACTERS`."""
    question: Question | None = None
    model: str = ""
    """Model that was used, if its name is known."""
    bandit_findings: int | None = None
    """New Bandit findings in the change; None: not measured."""
    coverage: float | None = None
    """Share of the changed executable lines covered by tests that can fail, 0 to 1; None: not measured."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the agent and the sandbox: `{"codex": "0.169.0", "fence": "own"}`."""
    cpu_s: float | None = None
    """CPU time of its processes on this host, in seconds; None: not measured."""


class ExecutorOutcome(ExecutorResult):
    """Return value of an adapter; the outbox stores it before anything else happens."""

    transcript: bytes = b""
    """Bounded output of the run, for the artifact store."""


class ExecutorReport(ExecutorResult):
    """Report on a delivery. The tree is authoritative about the work, not this text."""

    key: str
    transcript: ArtifactRef | None = None
    executor: str = ""
    """Fallback executor that did the work; empty: the requested one."""
    passed_over: tuple[str, ...] = ()
    """Reasons that the preceding executors were unavailable, one sentence each."""
    new_tree: str = ""
    drift: Drift | None = None
    """Drift found instead of the expected tree; it was saved and undone."""
    attempt: int = 1

    @property
    def succeeded(self) -> bool:
        """True if the executor reports success."""
        return self.status in SUCCESSES


def backoff(strike: int, limit: LimitHit | None = None) -> timedelta:
    """Return the wait after the `strike`-th consecutive limit (from 1): min(2^(n-1) * 0.8 s, 60 s).

    A delay given by the provider overrides it; a negative one becomes zero.
    """
    if limit is not None and limit.retry_after is not None:
        return max(limit.retry_after, timedelta())
    # Bound the exponent first: the number of strikes is unbounded, and so would be the power of two.
    exponent = min(max(strike - 1, 0), 10)
    return min(BACKOFF_FIRST * (1 << exponent), BACKOFF_LONGEST)
