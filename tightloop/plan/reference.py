"""References in text, such as `${collect.sources}`, and the functions that expressions can use."""

import functools
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from pydantic_core import SchemaError, SchemaValidator, core_schema

from tightloop.errors import ExpressionError, InvalidRequestError, ReferenceMissingError
from tightloop.plan.step import RESERVED_IDS
from tightloop.safety.commands.effects import PLACEHOLDER, QuotingContext, ShellContext, find_places
from tightloop.value import format_count, shorten

Lookup = Callable[[str], Any]
"""Function that returns the value of a reference, which is given without `${` and `}`. It raises
`ReferenceMissingError` if there is none.
"""

REFERENCE_CHARACTERS = 300
# A `*` selects all instances of a template: `${look-*.answer}` is the list of their answers.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\*?(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_OPENING = re.compile(r"\$?\$\{")


class Segment(NamedTuple):
    """Part of a text: literal text or a reference."""

    text: str
    """Literal text, or the reference without `${` and `}`."""
    is_reference: bool = False


def split_segments(text: str) -> tuple[Segment, ...]:
    """Split text into literal parts and references.

    Raises:
        ExpressionError: a `${` is not terminated, or its content is not a reference.
    """
    parts: list[Segment] = []
    for part in scan(text):
        if isinstance(part, ExpressionError):
            raise part
        parts.append(part)
    return tuple(parts)


def scan(text: str) -> Iterator[Segment | ExpressionError]:
    """Yield the parts of a string, and an error for each malformed reference."""
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        start, end = opening.span()
        if opening.group().startswith("$$"):
            yield Segment(text[at:start] + "${")
            at = end
            continue
        if start > at:
            yield Segment(text[at:start])
        # 0 if there is no `}`.
        at = text.find("}", end) + 1
        yield _parse_reference(text, start, at)
        # Without the brace, the end of the reference is unknown.
        at = at or end
    if at < len(text):
        yield Segment(text[at:])


def _parse_reference(text: str, start: int, end: int) -> Segment | ExpressionError:
    """Parse a reference that starts with `${` at `start` and ends with `}` before `end`.

    If the `}` is missing, `end` is 0.
    """
    literal = "write $${ for a literal ${ or a shell variable"
    if end == 0:
        return ExpressionError(
            f"'{text[start : start + 20]}' is missing a closing brace", start + 1, f"add }}, or {literal}"
        )
    name = text[start + 2 : end - 1].strip()
    if len(name) > REFERENCE_CHARACTERS or not _NAME.fullmatch(name):
        return ExpressionError(
            f"'{text[start : min(end, start + 60)]}' is not a valid reference",
            start + 1,
            f"write a reference such as ${{step-id.output}} or ${{plan.name}}, or {literal}",
        )
    return Segment(name, is_reference=True)


def is_one_reference(text: str) -> bool:
    """Return True if a text consists of a single reference.

    Such a text resolves to the value itself, not to a string.
    """
    # `${a}${b}` also begins and ends like a single reference, hence the test for a `}` before the end.
    return text.strip().startswith("${") and "}" not in text.strip()[:-1] and text.strip().endswith("}")


def find_references(value: Any) -> tuple[str, ...]:
    """Return the distinct references in a text, list or mapping, in order of occurrence.

    Raises:
        ExpressionError: a reference is malformed. The column is relative to its text.
    """
    return tuple(dict.fromkeys(_within(value)))


def _within(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield from (piece.text for piece in split_segments(value) if piece.is_reference)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _within(name)
            yield from _within(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _within(item)


def resolve(value: Any, lookup: Lookup, quote: Callable[[str], str] | None = None) -> Any:
    """Resolve all references in a value.

    A string that consists of a single reference becomes the value itself. In other strings, values are formatted by
    `as_text`. If `quote` is set, a string always resolves to a string, and each value is quoted. A list of scalars
    becomes several quoted words.

    Raises:
        ExpressionError: a reference is malformed.
        ReferenceMissingError: raised by `lookup`.
    """
    if isinstance(value, str):
        return _resolve_text(value, lookup, quote)
    if isinstance(value, Mapping):
        return {as_text(resolve(name, lookup)): resolve(item, lookup, quote) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [resolve(item, lookup, quote) for item in value]
    return value


def _resolve_text(text: str, lookup: Lookup, quote: Callable[[str], str] | None) -> Any:
    parts = split_segments(text)
    if quote is None and len(parts) == 1 and parts[0].is_reference:
        return lookup(parts[0].text)

    def written(value: Any) -> str:
        if quote is None:
            return as_text(value)
        if isinstance(value, list | tuple) and all(_plain(item) for item in value):
            return " ".join(quote(as_text(item)) for item in value)
        return quote(as_text(value))

    return "".join(written(lookup(part.text)) if part.is_reference else part.text for part in parts)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def as_text(value: Any) -> str:
    """Convert a value to text. Strings are left unchanged, null becomes "", and other values become JSON."""
    if isinstance(value, str):
        return value
    # Not escaped to ASCII: the text goes into prompts, files and commands that people read.
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def head_of(name: str, known_ids: Container[str]) -> str:
    """Return the longest known ID at the start of a reference, or "". IDs may contain dots."""
    parts = name.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((head for head in heads if head in known_ids), "")


def split_reference(name: str, steps: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Split a reference into the first part and the names after it.

    The first part is a step, a template or a reserved word. Step IDs may contain dots, so the longest
    matching ID is used.

    Raises:
        ReferenceMissingError: the reference does not start with a step or a reserved word.
    """
    if head := head_of(name, frozenset(steps)) or head_of(name, RESERVED_IDS):
        path = name[len(head) + 1 :]
        return head, tuple(path.split(".")) if path else ()
    raise ReferenceMissingError(
        f"${{{name}}} is neither a step of the plan nor one of {', '.join(sorted(RESERVED_IDS))}. "
        "Fix the name, or write $${ for a literal ${"
    )


def follow(value: Any, path: Sequence[str], *, name: str) -> Any:
    """Return the value at a path inside another value.

    Each name selects a field of a mapping, an item of a list, or a field of all items of a list.

    Args:
        value: the value, as JSON.
        path: names. A number is the index of an item in a list, starting with 0.
        name: the whole reference, for the error message.

    Raises:
        ReferenceMissingError: there is no value at the path.
    """
    for depth, part in enumerate(path):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        # `isdecimal`, because `isdigit` accepts characters such as "²", which `int` refuses.
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, list | tuple) and not part.isdecimal():
            # A field of a list is the list of that field of its items.
            return [follow(item, path[depth:], name=name) for item in value]
        else:
            if isinstance(value, Mapping):
                why = f"it has no '{part}', only {', '.join(sorted(map(str, value))[:10]) or 'nothing'}"
            elif isinstance(value, list | tuple):
                why = f"the list has {format_count(len(value), 'item')}, counted from 0"
            else:
                why = f"there is no '{part}' in {'null' if value is None else f'a {type(value).__name__}'}"
            raise ReferenceMissingError(f"${{{name}}} has no value: {why}")
    return value


REGEX_CHARACTERS = 500
SEARCHED_CHARACTERS = 10_000
"""Number of characters at the start of a text that `matches` searches."""
# `float` accepts any number of digits; no command prints numbers as long as this.
NUMBER_CHARACTERS = 100


class FunctionError(ValueError):
    """An argument has the wrong type. The message is a sentence without a full stop."""


def _length(value: Any) -> int:
    if isinstance(value, str | list | tuple | dict):
        return len(value)
    raise FunctionError(f"len requires a string, a list or a mapping, not {kind(value)}")


def _numbers(name: str, values: tuple[Any, ...]) -> list[Any]:
    items = _items(name, values[0]) if len(values) == 1 else list(values)
    # Texts have an order, such as dates in ISO form, but no sum.
    ordered = name in ("min", "max") and all(isinstance(item, str) for item in items)
    if ordered or all(is_number(item) for item in items):
        return items
    raise FunctionError(f"{name} requires numbers, not {', '.join(sorted({kind(item) for item in items}))}")


def _items(name: str, value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    raise FunctionError(f"{name} requires a list, not {kind(value)}")


def _extreme(choose: Callable[[list[Any]], Any], name: str) -> Callable[..., Any]:
    def chosen(*values: Any) -> Any:
        items = _numbers(name, values)
        if not items:
            raise FunctionError(f"{name} requires a list with at least one item")
        return choose(items)

    return chosen


def _round(value: Any, digits: Any = 0) -> Any:
    if not is_number(value) or not isinstance(digits, int) or not 0 <= digits <= 12:
        raise FunctionError("round expects a number and the number of digits to keep, which must be between 0 and 12")
    try:
        # Without digits, `round` returns an int: `2`, not `2.0`, in a shell command or as an index.
        return round(value, digits) if digits else round(value)
    except (OverflowError, ValueError):
        raise FunctionError(f"{value} cannot be rounded") from None


def _number(value: Any) -> Any:
    """Parse a number from a text, such as the output of a command."""
    if is_number(value):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text and len(text) <= NUMBER_CHARACTERS:
        # `int` first: a float has 53 bits of precision, and large numbers such as ids would lose digits.
        for read in (int, float):
            try:
                return read(text)
            except ValueError:
                continue
    raise FunctionError(f"{str(value)[:40]!r} is not a number")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise FunctionError(f"{name} requires a string, not {kind(value)}")


def _matches(value: Any, pattern: Any) -> bool:
    """Return True if the pattern occurs in the text. Look-around is not supported.

    The time is linear in the length of the text.
    """
    # pydantic has no search function, but a text is valid if its pattern occurs anywhere in it.
    return pattern_of(_text("matches", pattern)).isinstance_python(_text("matches", value)[:SEARCHED_CHARACTERS])


# Compiled by pydantic's engine: a backtracking engine such as `re` would let a plan's pattern hang the worker.
@functools.lru_cache(maxsize=256)
def pattern_of(pattern: str) -> SchemaValidator:
    """Compile a regular expression for `matches`.

    Raises:
        FunctionError: the pattern is too long or malformed.
    """
    if len(pattern) > REGEX_CHARACTERS:
        raise FunctionError(f"a pattern must have at most {REGEX_CHARACTERS} characters, got {len(pattern)}")
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError as error:
        cause = [line.strip() for line in str(error).splitlines() if line.strip().startswith("error:")]
        reason = cause[-1].removeprefix("error: ") if cause else "it is malformed"
        raise FunctionError(f"{pattern[:60]!r} is not a valid pattern: {reason}") from None


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number. Booleans are not numbers."""
    # bool is a subclass of int.
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind(value: Any) -> str:
    """Return the name of a value's type for use in messages."""
    if value is None:
        return "null"
    # Before the numbers, because bool is a subclass of int.
    if isinstance(value, bool):
        return "a boolean"
    if is_number(value):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list | tuple) else "a mapping"


FUNCTIONS: Mapping[str, tuple[int, int, Callable[..., Any]]] = {
    "len": (1, 1, _length),
    "min": (1, 20, _extreme(min, "min")),
    "max": (1, 20, _extreme(max, "max")),
    "sum": (1, 1, lambda value: sum(_numbers("sum", (value,)))),
    "any": (1, 1, lambda value: any(_items("any", value))),
    "all": (1, 1, lambda value: all(_items("all", value))),
    "abs": (1, 1, lambda value: abs(_numbers("abs", ([value],))[0])),
    "round": (1, 2, _round),
    "number": (1, 1, _number),
    "lower": (1, 1, lambda value: _text("lower", value).lower()),
    "trim": (1, 1, lambda value: _text("trim", value).strip()),
    "matches": (2, 2, _matches),
}
"""Minimum and maximum number of arguments, and the implementation, by name. `exists` and `default` are handled by the
evaluation.
"""


_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
"""Pattern of whole numbers. It excludes `010`, which shells read as the octal number 8."""
LARGEST = 2**63
"""Limit for shell arithmetic, which uses 64 bits."""
# Not after another `$`: `$${` is a literal `${`.
_START = re.compile(r"(?<!\$)\$\{")


class CommandSegment(NamedTuple):
    """A part of a command, with its shell context."""

    piece: Segment
    context: ShellContext
    offset: int = 0
    """Start of a reference within the text."""


def place_references(text: str) -> tuple[CommandSegment, ...]:
    """Split a command into literal text and references, each with its shell context.

    Raises:
        ExpressionError: a reference is malformed.
    """
    parts = split_segments(text)
    places = find_places([None if part.is_reference else part.text for part in parts])
    # `pieces` does not report positions. Both skip `$${`, so the n-th start belongs to the n-th reference.
    starts = (match.start() for match in _START.finditer(text))
    return tuple(
        CommandSegment(part, context, next(starts) if part.is_reference else 0)
        for part, context in zip(parts, places, strict=True)
    )


def with_placeholders(text: str) -> str:
    """Replace each reference in a command with a placeholder word.

    Raises:
        ExpressionError: a reference is malformed.
    """
    return "".join(PLACEHOLDER if part.is_reference else part.text for part in split_segments(text))


def find_place_faults(placed: Iterable[CommandSegment]) -> Iterator[tuple[CommandSegment, str, str]]:
    """Yield the references that a shell would not expand, each with the problem and a suggestion."""
    for part in placed:
        if part.piece.is_reference and part.context.context is QuotingContext.LITERAL:
            message = "the shell does not expand references in a here-document with the quoted delimiter "
            yield part, message + part.context.delimiter, "Remove the quotes from the delimiter"


def as_operand(value: Any) -> str | None:
    """Return a value as an operand for shell arithmetic, or None if it is not a 64-bit integer."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _WHOLE.fullmatch(text := text.strip()) or abs(int(text)) >= LARGEST:
        return None
    # `2-${n}` would become `2--3`, which decrements.
    return f"({text})" if text.startswith("-") else text


def operand(reference: str, value: Any) -> str:
    """Return the value of a reference as an operand for shell arithmetic.

    Raises:
        InvalidRequestError: the value is not an integer. A shell would treat it as the name of a variable, and some
            shells execute the value of that variable.
    """
    if (text := as_operand(value)) is None:
        message, hint = not_a_number(reference, value)
        raise InvalidRequestError(f"{message}. {hint}")
    return text


def not_a_number(reference: str, value: Any) -> tuple[str, str]:
    """Return the problem and a suggestion for a value that is not a number in shell arithmetic."""
    message = f"'${{{reference}}}' is {shorten(repr(value), 60)}, but shell arithmetic requires a whole number"
    return message, "Use a whole number without leading zeros, or move the reference out of `$(( ))`"
