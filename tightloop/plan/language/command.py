"""References in commands: what a shell makes of a value depends on where in the script it stands."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tightloop.errors import InvalidRequestError
from tightloop.plan.language.reference import Piece, pieces
from tightloop.safety.commands.places import PLACEHOLDER, Found, Place, find_places
from tightloop.value import shorten

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
