"""Arguments of commands.

Temporal's Web UI sends a single JSON value and does not provide a form. Therefore, every command accepts plain text, an
object, or nothing.
"""

import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tightloop.errors import InvalidRequestError, followed_by
from tightloop.value import Document, first_problem, shorten, unknown_fields

TEXT_CHARACTERS = 4_000
M = TypeVar("M", bound=BaseModel)


class Remark(Document):
    """A reason or a message from a person."""

    text: str = ""
    by: str = "operator"
    resumes: bool = True
    """For messages to the planner: end a pause that does not require a decision, and plan once more before the run
    ends.
    """


class Amounts(Document):
    """Amounts to add to a budget. Each kind of run defines its limits in a subclass."""

    by: str = "operator"

    @property
    def amounts(self) -> dict[str, float]:
        """Return the amounts by name, including those that are zero."""
        return self.model_dump(exclude={"by"})

    def __str__(self) -> str:
        """Return the amounts and the author, such as `2 iterations, 2.5 cost_usd (by ada)`."""
        added = ", ".join(f"{amount:g} {name}" for name, amount in self.amounts.items() if amount)
        return f"{added} (by {shorten(self.by, 80)})"


A = TypeVar("A", bound=Amounts)


def read_argument(value: Any, kind: type[M], *, what: str, example: str) -> M:
    """Parse the argument of a command into a model.

    Raises:
        InvalidRequestError: a field is unknown or invalid. The message names the first such field and
            includes the example.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        message = next(unknown_fields(kind, value), "") or first_problem(error)
        # `from None`: Temporal sends the causes of a failure too, and pydantic's error quotes the whole argument.
        raise InvalidRequestError(f"{what}: {followed_by(message, f'Example: {example}')}") from None


def read_text(value: Any) -> Remark:
    """Parse text, or an object with the fields `text`, `by` and `resumes`.

    Raises:
        InvalidRequestError: a field is unknown or invalid, or the text is too long.
    """
    if value is None:
        return Remark()
    if isinstance(value, dict):
        value = dict(value)
        # People and agents guess the name of the only text that they can mean; refusing it would cost them a round.
        for other in ("reason", "note", "message"):
            if other in value:
                value["text"] = value.pop(other)
    else:
        # The Web UI sends whatever JSON was typed; a number is a remark too, and a signal could not report the refusal.
        value = {"text": value if isinstance(value, str) else shorten(repr(value), 200)}
    remark = read_argument(value, Remark, what="respond", example='"the reason" or {"text": "the reason", "by": "ada"}')
    text = remark.text.strip()
    if len(text) > TEXT_CHARACTERS:
        raise InvalidRequestError(
            f"the message is {len(text)} characters long, but the limit is {TEXT_CHARACTERS}. Put the text in a "
            "workspace file and refer to that file"
        )
    return Remark(text=text, by=shorten(remark.by, 80), resumes=remark.resumes)


def read_remark(value: Any) -> Remark:
    """Parse the argument of a signal.

    This function never fails, because a signal cannot return an error.
    """
    try:
        return read_text(value)
    except InvalidRequestError:
        text = value.get("text", value) if isinstance(value, dict) else value
        return Remark(text=shorten(str(text), TEXT_CHARACTERS))


def read_amounts(value: Any, kind: type[A], *, example: str) -> A:
    """Parse the argument of `top_up`. The fields of `kind` are the limits that can be raised.

    Raises:
        InvalidRequestError: a field is unknown, negative or not a number, or all amounts are 0.
    """
    if not isinstance(value, dict):
        excerpt = shorten(repr(value), 60)
        raise InvalidRequestError(f"top_up: expected an object, got {excerpt}. Example: {example}")
    for name, amount in value.items():
        # pydantic would read "5" as 5 and True as 1.
        if name != "by" and isinstance(amount, str | bool):
            raise InvalidRequestError(f"top_up: {name} must be a number, got {amount!r}. Example: {example}")
    addition = read_argument(value, kind, what="top_up", example=example)
    # NaN and infinity, which Python's JSON parser accepts, fail this comparison.
    amounts = addition.amounts.values()
    if any(not 0 <= amount < math.inf for amount in amounts) or not any(amounts):
        raise InvalidRequestError(f"top_up: at least one amount must be greater than 0. Example: {example}")
    return addition
