"""Failure modes of a step and the reactions to them."""

from enum import StrEnum

from pydantic import Field

from tightloop.value import Document


class FailureClass(StrEnum):
    """Class of a failure; it determines the default reaction."""

    TRANSIENT = "transient"
    """A retry may succeed: a timeout, a network error, a busy service."""
    LOGIC = "logic"
    """The work is wrong; the same attempt would fail again."""
    POLICY = "policy"
    """Refused by a rule or a person."""


class Recovery(StrEnum):
    """Reaction to a failure."""

    RETRY = "retry"
    ALTERNATE = "alternate"
    """Another step does the work; see `Step.on_failure`."""
    REPLAN = "replan"
    ASK = "ask"
    ABORT = "abort"
    SKIP = "skip"
    """Treat the step as skipped and continue."""


class Retry(Document):
    """Retries of transient failures. The wait after attempt n is initial * factor^(n-1), at most maximum."""

    attempts: int = Field(default=3, ge=1, le=50)
    """Total number of attempts, including the first."""
    initial_s: float = Field(default=1.0, ge=0)
    """Wait before the second attempt, in seconds."""
    # An infinite factor times an initial wait of 0 s would be NaN.
    factor: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    """Growth factor of the wait after each attempt."""
    maximum_s: float = Field(default=60.0, ge=0)
    """Maximum wait, in seconds."""


class Watchdog(Document):
    """Reaction to a slow step: an alert, a pause, or cancellation."""

    after_s: float = Field(gt=0)
    """Seconds since the start of the attempt."""
    escalate: str = Field(default="alert", pattern="^(alert|pause|cancel)$")
    """Reaction; `cancel` ends the attempt as a failure."""


class FailureMode(Document):
    """A known failure, its detection and its reaction."""

    name: str
    """Name shown with the failure."""
    detect: str = ""
    """Expression over the step's own outputs, such as `"${exit_code} == 5"`; empty: any failure."""
    failure_class: FailureClass = FailureClass.LOGIC
    """`transient` is retried, `policy` never goes to a planner."""
    recover: Recovery = Recovery.ASK
    """Reaction to the failure."""
    advice: str = ""
    """Advice in prose for a person or a planner."""


class OnFailure(Document):
    """Step to start after this one has failed for good."""

    to: str
    """Id of the step."""
    recovers: bool = True
    """If that step completes, this one counts as recovered and its dependents continue."""
    compensate: tuple[str, ...] = ()
    """Steps to compensate first, always latest first; may include this step."""


class Compensation(Document):
    """Compensation of a step. By default, exactly the file changes of the step are undone."""

    run: str = ""
    """Shell command; empty: undo the file changes."""
    step: str = ""
    """Id of a step of kind `compensation`."""
    none: bool = False
    """No compensation is possible or needed."""
