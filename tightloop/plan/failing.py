"""Failure modes of a step, and the reactions to them."""

from enum import StrEnum

from pydantic import Field

from tightloop.value import Document


class FailureClass(StrEnum):
    """Class of a failure. The class determines the default reaction."""

    TRANSIENT = "transient"
    """A retry may succeed. Examples are a timeout, a network error or a busy service."""
    LOGIC = "logic"
    """The work is wrong. Another attempt would fail in the same way."""
    POLICY = "policy"
    """The step was refused by a rule or a person."""


class Recovery(StrEnum):
    """Reaction to a failure."""

    RETRY = "retry"
    ALTERNATE = "alternate"
    """Let another step do the work. See `Step.on_failure`."""
    REPLAN = "replan"
    ASK = "ask"
    ABORT = "abort"
    SKIP = "skip"
    """Treat the step as skipped, together with the steps that need it."""
    CONTINUE = "continue"
    """Leave the step failed, and start the steps that need it as if it had completed."""


class Retry(Document):
    """Settings for retries after transient failures.

    The wait after attempt n is initial * factor^(n-1), up to the maximum.
    """

    attempts: int = Field(default=3, ge=1, le=50)
    """Maximum number of attempts, including the first one."""
    initial_s: float = Field(default=1.0, ge=0)
    """Wait before the second attempt, in seconds."""
    # An infinite factor times an initial wait of 0 s would be NaN.
    factor: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    """Factor by which the wait grows after each attempt."""
    maximum_s: float = Field(default=60.0, ge=0)
    """Maximum wait, in seconds."""


class Watchdog(Document):
    """Reaction to a slow step: raise an alert, pause the plan or cancel the step."""

    after_s: float = Field(gt=0)
    """Time since the start of the attempt, in seconds."""
    escalate: str = Field(default="alert", pattern="^(alert|pause|cancel)$")
    """Reaction. `cancel` ends the attempt as a failure."""


class FailureMode(Document):
    """A known failure, with an expression that detects it and the reaction to it."""

    name: str
    """Name to show with the failure."""
    detect: str = ""
    """Expression that uses the step's own outputs, such as `"${exit_code} == 5"`. If empty, any failure matches."""
    failure_class: FailureClass = FailureClass.LOGIC
    """Class of the failure. `transient` failures are retried, and `policy` failures are never passed to a planner."""
    recover: Recovery = Recovery.ASK
    """Reaction to the failure."""
    advice: str = ""
    """Advice for a person or a planner, written as prose."""


class OnFailure(Document):
    """The step to start when this step has failed and will not be retried."""

    to: str
    """ID of the step to start."""
    recovers: bool = True
    """If that step completes, treat this step as recovered and continue with its dependents."""
    compensate: tuple[str, ...] = ()
    """Steps to compensate first, in reverse order of completion. The list may include this step."""


class Compensation(Document):
    """Compensation of a step. By default, only the file changes of the step are undone."""

    run: str = ""
    """Shell command. If empty, the file changes are undone."""
    step: str = ""
    """ID of a step of kind `compensation`."""
    none: bool = False
    """Do not compensate the step because it is not possible or not necessary."""
