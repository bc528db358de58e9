"""What starts a project's plan: a request, with what its seal says."""

from typing import Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.errors import followed_by
from tightloop.loop.model import RIGHT_LOOP_INPUT, LoopRequest
from tightloop.safety.seal import Heard, Seal
from tightloop.value import first_problem
from tightloop.value.caller import unknown_fields


class LoopInput(LoopRequest):
    """The input of the loop workflow."""

    heard: Heard = Heard()
    sealed_as: Seal | None = None
    """What the input's seal says; set by the converter, whatever is sent."""
    problem: str = ""
    """Why the input could not be read; the workflow then fails with this sentence, instead of hanging."""
    unknown: str = ""
    """A misspelt name in an input that a person wrote, and the nearest right one."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "LoopInput":
        try:
            read: LoopInput = handler(value)
        except ValidationError as error:
            # Without validation: the input is known to be invalid, and raising would be retried forever by Temporal.
            return cls.model_construct(problem=f"{first_problem(error)}. A right input: {RIGHT_LOOP_INPUT}")
        # As in `EpisodeInput`.
        is_raw = isinstance(value, dict) and "sealed_as" not in value
        if is_raw and (unknown := next(unknown_fields(cls, value), "")):
            return read.evolve(unknown=followed_by(unknown, f"A right input: {RIGHT_LOOP_INPUT}"))
        return read
