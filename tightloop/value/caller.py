"""What callers write: misspelt names and wrong types are refused with a sentence, the nearest name included."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tightloop.errors import InvalidRequestError, did_you_mean
from tightloop.value import Value, first_problem, shorten


class CallerInput(Value):
    """A value that callers make: in Python a misspelt or wrong argument is refused.

    What comes through Temporal is read like any other `Value`.
    """

    # Type checkers see the fields as arguments.
    if not TYPE_CHECKING:

        def __init__(self, *given: Any, **fields: Any) -> None:
            kind = type(self)
            if given:
                first = next(iter(kind.model_fields))
                raise InvalidRequestError(
                    f"{kind.__name__}: its fields are given by name, such as {kind.__name__}({first}={given[0]!r})"
                )
            if unknown := next(unknown_fields(kind, fields), ""):
                raise InvalidRequestError(f"{kind.__name__}: {unknown}")
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InvalidRequestError(f"{kind.__name__}: {first_problem(error)}") from None

        # Else pydantic would call it for what it reads, too.
        __init__.__pydantic_base_init__ = True


def json_size(value: BaseModel, fields: set[str] | None = None) -> int:
    """Return how many characters a value, or some of its fields, has as JSON.

    Raises:
        InvalidRequestError: it holds an object that JSON does not have.
    """
    try:
        return len(value.model_dump_json(include=fields))
    except ValueError as error:
        why = str(error).removeprefix("Error serializing to JSON: ")
        raise InvalidRequestError(
            f"the request cannot be sent as JSON: {shorten(why, 120)}. "
            "Give texts, numbers, True, False, None, lists and dicts"
        ) from None


def unknown_fields(model: type[BaseModel], document: Any, above: str = "") -> Iterator[str]:
    """Yield a sentence for each name in a document that the model, or one of its parts, does not have.

    Args:
        model: what the document is to be read as.
        document: as it was written; what is not a mapping has no names.
        above: dotted name of the document within another one.
    """
    if not isinstance(document, dict):
        return
    for name, value in document.items():
        field = model.model_fields.get(name)
        if field is None:
            place = f"{above}.{name}" if above else str(name)
            yield f"unknown field {place!r}. {did_you_mean(str(name), model.model_fields)}"
            continue
        if get_origin(field.annotation) is dict:  # its names are the caller's own
            continue
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                for item in value if isinstance(value, list | tuple) else (value,):
                    yield from unknown_fields(part, item, f"{above}.{name}" if above else name)
