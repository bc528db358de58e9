"""Reads the options that a request gives to an executor."""

from typing import TypeVar

from pydantic import ValidationError

from tightloop.errors import ExecutorError
from tightloop.executor.model import AgentMode, ExecutorChoice
from tightloop.executor.options import option_problem
from tightloop.safety.verdict import Verdict
from tightloop.value import Document

Options = TypeVar("Options", bound=Document)


def read_options(model: type[Options], choice: ExecutorChoice, name: str) -> Options:
    """Return the options of a choice.

    Raises:
        ExecutorError: one is unknown or wrong; the message names those that `name` knows.
    """
    try:
        return model.model_validate(choice.options)
    except ValidationError as error:
        raise ExecutorError(option_problem(error, model, name)) from None


def refuse_questions(choice: ExecutorChoice, name: str) -> None:
    """Refuse the permission rule `ask` for an agent that cannot ask; one that only reads need not.

    Raises:
        ExecutorError: a person has to be asked.
    """
    if choice.permissions is Verdict.ASK and choice.mode is not AgentMode.READ_ONLY:
        raise ExecutorError(
            f"{name} cannot ask a person before it acts. Use an executor that can, such as claude or opencode, or "
            "permissions allow or deny"
        )
