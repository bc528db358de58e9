"""Kernel state of a run: what never goes back, and is carried from one Temporal run to the next."""

from typing import Any, ClassVar, Self

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.errors import followed_by
from tightloop.run.question import Question, Questions
from tightloop.run.timeline import TimelineLine
from tightloop.safety.drift import Drift, is_news, with_drift
from tightloop.safety.seal import Heard, Seal
from tightloop.value import Value, first_problem
from tightloop.value.caller import CallerInput, unknown_fields


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
