"""How a step may fail, and what follows then."""

from enum import StrEnum

from pydantic import Field

from tightloop.value import Document


class FailureClass(StrEnum):
    """Why a step failed: it decides what follows."""

    TRANSIENT = "transient"
    """It may pass when tried again: a time limit, a network, a busy service."""
    LOGIC = "logic"
    """The work is wrong: the same again fails again."""
    POLICY = "policy"
    """A rule or a person refused it."""


class Recovery(StrEnum):
    """What follows a failure."""

    RETRY = "retry"
    ALTERNATE = "alternate"
    """Another step does the work instead; see `Step.on_failure`."""
    REPLAN = "replan"
    ASK = "ask"
    ABORT = "abort"
    SKIP = "skip"
    """Go on as if the step had been skipped."""


class Retry(Document):
    """How often, and after which wait, a transient failure is tried again. Wait = initial * factor^(n-1) <= maximum."""

    attempts: int = Field(default=3, ge=1, le=50)
    """All attempts, the first included."""
    initial_s: float = Field(default=1.0, ge=0)
    """Wait before the second attempt."""
    # An infinite factor of a wait of 0 s is not a number.
    factor: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    """By which each wait is longer than the one before."""
    maximum_s: float = Field(default=60.0, ge=0)
    """Longest wait."""


class Watchdog(Document):
    """What happens when a step takes long: an alert, a pause, or its end."""

    after_s: float = Field(gt=0)
    """Counted from the start of the attempt."""
    escalate: str = Field(default="alert", pattern="^(alert|pause|cancel)$")
    """`cancel` ends the attempt as a failure."""


class FailureMode(Document):
    """A known way to fail, how to recognise it, and what to do then."""

    name: str
    """Shown with the failure."""
    detect: str = ""
    """Expression over the step's own outputs, such as `"${exit_code} == 5"`; empty: any failure."""
    failure_class: FailureClass = FailureClass.LOGIC
    """`transient` is tried again, `policy` is never sent to a planner."""
    recover: Recovery = Recovery.ASK
    """What follows."""
    advice: str = ""
    """Prose for a person or a planner."""


class OnFailure(Document):
    """Which step is started when this one has failed for good."""

    to: str
    """Id of the step."""
    recovers: bool = True
    """If that step completes, this one counts as recovered, and those that need it go on."""
    compensate: tuple[str, ...] = ()
    """Steps to take back before, latest first whatever the order here; this step itself may be among them."""


class Compensation(Document):
    """How a step is taken back. By default a step that wrote files has exactly its own changes undone."""

    run: str = ""
    """Shell command; empty: undo the files."""
    step: str = ""
    """Id of a step of kind `compensation`."""
    none: bool = False
    """Nothing can or need be taken back."""
