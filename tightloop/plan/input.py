"""What starts a run of a plan: a request, or a request with the state that the run before it left."""

from typing import Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, model_validator

from tightloop.plan.request import RIGHT_PLAN_INPUT, PlanRequest
from tightloop.plan.state import PlanState
from tightloop.value import first_problem


class PlanInput(PlanRequest):
    """The input of the plan workflow."""

    state: PlanState | None = None
    """Of the run before."""
    problem: str = ""
    """Why the input could not be read; the workflow then fails with this sentence, instead of hanging."""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "PlanInput":
        try:
            read: PlanInput = handler(value)
        except ValidationError as error:
            return cls.model_construct(problem=f"{first_problem(error)}. A right input: {RIGHT_PLAN_INPUT}")
        return read

    @property
    def title(self) -> str:
        """What a person recognises the plan by, before it is read."""
        return self.goal or self.file or "a plan"

    def as_request(self) -> PlanRequest:
        """Return the request without the state."""
        return PlanRequest(**{name: getattr(self, name) for name in PlanRequest.model_fields})
