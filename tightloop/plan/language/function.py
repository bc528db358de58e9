"""Functions of expressions, and commands with references."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from pydantic_core import SchemaError, SchemaValidator, core_schema

from tightloop.errors import InvalidRequestError
from tightloop.plan.language.reference import Piece, pieces
from tightloop.safety.commands.effects import PLACEHOLDER, Found, Place, find_places
from tightloop.value import shorten

REGEX_CHARACTERS = 500
SEARCHED_CHARACTERS = 10_000
"""How much of a text `matches` looks at: its start."""
# `float` reads digits of any length; no command prints a number as long as this.
NUMBER_CHARACTERS = 100


class FunctionError(ValueError):
    """An argument is of the wrong kind; the text is a sentence without a full stop."""


def _length(value: Any) -> int:
    if isinstance(value, str | list | tuple | dict):
        return len(value)
    raise FunctionError(f"len needs a text, list or mapping, not {kind(value)}")


def _numbers(name: str, values: tuple[Any, ...]) -> list[Any]:
    items = _items(name, values[0]) if len(values) == 1 else list(values)
    ordered = name in ("min", "max") and all(isinstance(item, str) for item in items)
    if ordered or all(is_number(item) for item in items):
        return items
    raise FunctionError(f"{name} needs numbers, not {', '.join(sorted({kind(item) for item in items}))}")


def _items(name: str, value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    raise FunctionError(f"{name} needs a list, not {kind(value)}")


def _extreme(choose: Callable[[list[Any]], Any], name: str) -> Callable[..., Any]:
    def chosen(*values: Any) -> Any:
        items = _numbers(name, values)
        if not items:
            raise FunctionError(f"{name} of an empty list has no value")
        return choose(items)

    return chosen


def _rounded(value: Any, digits: Any = 0) -> Any:
    if not is_number(value) or not isinstance(digits, int) or not 0 <= digits <= 12:
        raise FunctionError("round needs a number, and 0 to 12 digits")
    try:
        return round(value, digits) if digits else round(value)
    except (OverflowError, ValueError):
        raise FunctionError(f"{value} cannot be rounded") from None


def _number(value: Any) -> Any:
    """Read a number from text, such as what a command printed."""
    if is_number(value):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text and len(text) <= NUMBER_CHARACTERS:
        # `int` first: a float has 53 bits, and large numbers such as ids would lose their last digits.
        for read in (int, float):
            try:
                return read(text)
            except ValueError:
                continue
    raise FunctionError(f"{str(value)[:40]!r} is not a number")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise FunctionError(f"{name} needs a text, not {kind(value)}")


def _matches(value: Any, pattern: Any) -> bool:
    """Return whether the pattern occurs. The engine takes time linear in the text; it has no look-around."""
    return pattern_of(_text("matches", pattern)).isinstance_python(_text("matches", value)[:SEARCHED_CHARACTERS])


# Compiled by pydantic's engine: one that backtracks, as `re` does, would let a pattern of a plan hang the worker.
@functools.lru_cache(maxsize=256)
def pattern_of(pattern: str) -> SchemaValidator:
    """Compile a pattern.

    Raises:
        FunctionError: it is too long or malformed.
    """
    if len(pattern) > REGEX_CHARACTERS:
        raise FunctionError(f"a pattern may have {REGEX_CHARACTERS} characters, this one has {len(pattern)}")
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError as error:
        cause = [line.strip() for line in str(error).splitlines() if line.strip().startswith("error:")]
        reason = cause[-1].removeprefix("error: ") if cause else "it is malformed"
        raise FunctionError(f"the pattern {pattern[:60]!r} cannot be used: {reason}") from None


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind(value: Any) -> str:
    """Return the word for the kind of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    if is_number(value):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list | tuple) else "a mapping"


FUNCTIONS: Mapping[str, tuple[int, int, Callable[..., Any]]] = {
    "len": (1, 1, _length),
    "min": (1, 20, _extreme(min, "min")),
    "max": (1, 20, _extreme(max, "max")),
    "sum": (1, 1, lambda value: sum(_numbers("sum", (value,)))),
    "any": (1, 1, lambda value: any(_items("any", value))),
    "all": (1, 1, lambda value: all(_items("all", value))),
    "abs": (1, 1, lambda value: abs(_numbers("abs", ([value],))[0])),
    "round": (1, 2, _rounded),
    "number": (1, 1, _number),
    "lower": (1, 1, lambda value: _text("lower", value).lower()),
    "trim": (1, 1, lambda value: _text("trim", value).strip()),
    "matches": (2, 2, _matches),
}
"""Name -> least and most arguments, and what it does. `exists` and `default` are done by the evaluation itself."""


_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
"""Not `010`, which a shell takes for 8."""
LARGEST = 2**63
"""Shells calculate with 64 bits."""
_START = re.compile(r"(?<!\$)\$\{")


class Placed(NamedTuple):
    """A part of a command, and where it stands."""

    piece: Piece
    found: Found
    offset: int = 0
    """Of a reference: where it begins in the text."""


def place_references(text: str) -> tuple[Placed, ...]:
    """Split a command into literals and references, each with its place.

    Raises:
        ExpressionError: a reference is malformed.
    """
    parts = pieces(text)
    places = find_places([None if part.is_reference else part.text for part in parts])
    starts = (found.start() for found in _START.finditer(text))
    return tuple(
        Placed(part, found, next(starts) if part.is_reference else 0) for part, found in zip(parts, places, strict=True)
    )


def with_placeholders(text: str) -> str:
    """Return a command with a word in place of each reference.

    Raises:
        ExpressionError: a reference is malformed.
    """
    return "".join(PLACEHOLDER if part.is_reference else part.text for part in pieces(text))


def find_place_faults(placed: Iterable[Placed]) -> Iterator[tuple[Placed, str, str]]:
    """Yield the references of a command that a shell would not replace, each with what is wrong and what to write."""
    for one in placed:
        if one.piece.is_reference and one.found.place is Place.LITERAL:
            said = f"a reference stands in a here-document whose delimiter {one.found.delimiter} is quoted, "
            yield one, said + "where the shell replaces nothing", "Remove the quotes of the delimiter"


def as_operand(value: Any) -> str | None:
    """Return a value as it stands in a shell's arithmetic; None: it is not a whole number of 64 bits."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _WHOLE.fullmatch(text := text.strip()) or abs(int(text)) >= LARGEST:
        return None
    # `2-${n}` would else become `2--3`, which decrements.
    return f"({text})" if text.startswith("-") else text


def operand(reference: str, value: Any) -> str:
    """Return the value of a reference as it stands in a shell's arithmetic.

    Raises:
        InvalidRequestError: it is not a whole number. A shell would take it for the name of a variable, and some
            run what is in it.
    """
    if (text := as_operand(value)) is None:
        said, hint = not_a_number(reference, value)
        raise InvalidRequestError(f"{said}. {hint}")
    return text


def not_a_number(reference: str, value: Any) -> tuple[str, str]:
    """Return what is wrong with a value in arithmetic, and what to do."""
    said = f"'${{{reference}}}' is {shorten(repr(value), 60)} where the shell calculates with whole numbers"
    return said, "Give a whole number without leading zeros, or put the reference outside of `$(( ))`"
