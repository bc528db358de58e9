"""Values for the inputs of a plan, compared with those that it has."""

from collections.abc import Collection

from tightloop.errors import InvalidRequestError, PlanError, did_you_mean
from tightloop.plan.text.reading import ReadPlan
from tightloop.plan.validation.validate import check_text


def check_inputs(given: Collection[str], known: Collection[str]) -> None:
    """Refuse a value for an input that the plan does not have.

    Raises:
        InvalidRequestError: with the nearest name.
    """
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or "The plan has no inputs: write them under `inputs:`"
            raise InvalidRequestError(f"the plan has no input {name!r}. {hint}")


def check_source(source: str, inputs: Collection[str]) -> ReadPlan:
    """Refuse a text that cannot run as a plan, or not with these inputs; a worker may refuse more.

    Raises:
        PlanError: the text is wrong; it holds all problems with their places.
        InvalidRequestError: the plan does not have an input.
    """
    read, problems = check_text(source)
    wrong = tuple(problem for problem in problems if problem.is_error)
    if read is None or wrong:
        raise PlanError(wrong)
    check_inputs(inputs, read.plan.inputs)
    return read
