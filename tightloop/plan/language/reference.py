"""References in texts, such as `${collect.sources}`: finding them, and putting values in their place.

Forms: `${inputs.x}`, `${plan.x}`, `${item}` and `${item.field}`, `${step-id.output}` and `${step-id.output.field}`, the
step's own results `${outputs.x}`, `${exit_code}`, `${status}`, besides `${hypotheses.H1}` and `${seed}`. `$${` is a
literal `${`.
"""

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tightloop.errors import ExpressionError, ReferenceMissingError
from tightloop.plan.document.step import RESERVED_IDS
from tightloop.value import counted

Lookup = Callable[[str], Any]
"""Returns the value of one reference, given without `${` and `}`; raises `ReferenceMissingError`."""

REFERENCE_CHARACTERS = 300
# A `*` stands for all steps of a template: `${look-*.answer}` is the list of their answers.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\*?(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_OPENING = re.compile(r"\$?\$\{")


class Piece(NamedTuple):
    """A part of a text."""

    text: str
    """Literal text, or the reference without `${` and `}`."""
    is_reference: bool = False


def pieces(text: str) -> tuple[Piece, ...]:
    """Split a text into literals and references.

    Raises:
        ExpressionError: a `${` has no end, or what is in it is not a reference.
    """
    found: list[Piece] = []
    for one in scan(text):
        if isinstance(one, ExpressionError):
            raise one
        found.append(one)
    return tuple(found)


def scan(text: str) -> Iterator[Piece | ExpressionError]:
    """Yield the parts of a text; an error in place of a reference that is malformed."""
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        start, end = opening.span()
        if opening.group().startswith("$$"):
            yield Piece(text[at:start] + "${")
            at = end
            continue
        if start > at:
            yield Piece(text[at:start])
        at = text.find("}", end) + 1
        yield _checked(text, start, at)
        # Without its brace nothing tells where it ends.
        at = at or end
    if at < len(text):
        yield Piece(text[at:])


def _checked(text: str, start: int, end: int) -> Piece | ExpressionError:
    """Return the reference between `${` at `start` and `}` before `end`; 0 says that the `}` is missing."""
    literal = "write $${ where the shell's own or a literal ${ is meant"
    if end == 0:
        return ExpressionError(f"'{text[start : start + 20]}' has no closing brace", start + 1, f"add }}, or {literal}")
    name = text[start + 2 : end - 1].strip()
    if len(name) > REFERENCE_CHARACTERS or not _NAME.fullmatch(name):
        return ExpressionError(
            f"'{text[start : min(end, start + 60)]}' is not a reference",
            start + 1,
            f"a right one is ${{step-id.output}} or ${{plan.name}}; {literal}",
        )
    return Piece(name, is_reference=True)


def is_one_reference(text: str) -> bool:
    """Return whether a text is one reference and nothing else, so that it becomes the value itself."""
    return text.strip().startswith("${") and "}" not in text.strip()[:-1] and text.strip().endswith("}")


def find_references(value: Any) -> tuple[str, ...]:
    """Return the references in a text, list or mapping, each once, in the order in which they occur.

    Raises:
        ExpressionError: a text holds a malformed one; the column counts within that text.
    """
    return tuple(dict.fromkeys(_within(value)))


def _within(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield from (piece.text for piece in pieces(value) if piece.is_reference)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _within(name)
            yield from _within(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _within(item)


def resolve(value: Any, lookup: Lookup, quote: Callable[[str], str] | None = None) -> Any:
    """Return a value with all references in it replaced.

    A text that is one reference and nothing else becomes the value itself; within other text a value is written as
    by `as_text`. With `quote` the result of a text is always text, and each value in it is quoted; a list of plain
    values becomes several quoted words.

    Raises:
        ExpressionError: a reference is malformed.
        ReferenceMissingError: by `lookup`.
    """
    if isinstance(value, str):
        return _resolved(value, lookup, quote)
    if isinstance(value, Mapping):
        return {as_text(resolve(name, lookup)): resolve(item, lookup, quote) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [resolve(item, lookup, quote) for item in value]
    return value


def _resolved(text: str, lookup: Lookup, quote: Callable[[str], str] | None) -> Any:
    parts = pieces(text)
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
    """Return a value as it is written within a text: text as it is, nothing for null, everything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def head_of(name: str, known: Container[str]) -> str:
    """Return the longest known id that a reference begins with, as ids may contain dots; else empty."""
    parts = name.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((head for head in heads if head in known), "")


def split_reference(name: str, steps: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the step (or template, or reserved word such as `plan`) of a reference, and the names below it.

    Step ids may contain dots, so the longest known id that fits is meant.

    Raises:
        ReferenceMissingError: it names neither a step nor a reserved word.
    """
    if head := head_of(name, frozenset(steps)) or head_of(name, RESERVED_IDS):
        path = name[len(head) + 1 :]
        return head, tuple(path.split(".")) if path else ()
    raise ReferenceMissingError(
        f"${{{name}}} names neither a step of the plan nor one of {', '.join(sorted(RESERVED_IDS))}. "
        "Correct the name, or write $${ for a literal ${"
    )


def follow(value: Any, path: Sequence[str], *, name: str) -> Any:
    """Return what lies below a value: a field of a mapping, a place of a list, a field of all items of a list.

    Args:
        value: JSON.
        path: names; a number is a place in a list, counted from 0.
        name: the whole reference, for the message.

    Raises:
        ReferenceMissingError: the value has no such field or place.
    """
    for depth, part in enumerate(path):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, list | tuple) and not part.isdecimal():
            # A field of a list is the list of the fields of its items.
            return [follow(item, path[depth:], name=name) for item in value]
        else:
            if isinstance(value, Mapping):
                why = f"it has no '{part}', only {', '.join(sorted(map(str, value))[:10]) or 'nothing'}"
            elif isinstance(value, list | tuple):
                why = f"the list has {counted(len(value), 'item')}, counted from 0"
            else:
                why = f"'{part}' cannot be below {'nothing' if value is None else f'a {type(value).__name__}'}"
            raise ReferenceMissingError(f"${{{name}}} has no value: {why}")
    return value
