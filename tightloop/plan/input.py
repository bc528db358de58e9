"""What starts a run of a plan: a request, with the progress that the run before it made."""

from typing import Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.errors import followed_by
from tightloop.plan.progress import PlanProgress
from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanRequest
from tightloop.safety.seal import Heard, Seal
from tightloop.value import first_problem
from tightloop.value.caller import unknown_fields


class PlanInput(PlanRequest):
    """The input of the plan workflow."""

    progress: PlanProgress | None = None
    """Of the run before."""
    replace: bool = False
    """A plan with this id may have ended before; what it has done is taken over."""
    heard: Heard = Heard()
    """Messages that the runs before have taken."""
    sealed_as: Seal | None = None
    """What the input's seal says; set by the converter, whatever is sent."""
    problem: str = ""
    """Why the input could not be read; the workflow then fails with this sentence, instead of hanging."""
    unknown: str = ""
    """A misspelt name in an input that a person wrote, and the nearest right one."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "PlanInput":
        try:
            read: PlanInput = handler(value)
        except ValidationError as error:
            # Without validation: the input is known to be invalid, and raising would be retried forever by Temporal.
            return cls.model_construct(problem=f"{first_problem(error)}. A right input: {RIGHT_PLAN_INPUT}")
        # As in `EpisodeInput`.
        is_raw = isinstance(value, dict) and "sealed_as" not in value
        if is_raw and (unknown := next(unknown_fields(cls, value), "")):
            return read.evolve(unknown=followed_by(unknown, f"A right input: {RIGHT_PLAN_INPUT}"))
        return read

    @property
    def title(self) -> str:
        """What a person recognises the plan by, before it is read."""
        return self.goal or self.file or "a plan"
