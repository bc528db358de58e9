"""The functions of expressions. Each accepts all JSON values, or says in a `FunctionError` what it needs."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from pydantic_core import SchemaError, SchemaValidator, core_schema

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
