"""The notation of a text delta: that of diff-match-patch, for any string of Python.

A delta is a list of steps with tabs between them: `=n` keeps n units (of UTF-16) of the old text, `-n` drops them,
`+text` adds text, percent-encoded. See https://github.com/google/diff-match-patch/wiki/Unidiff. Surrogates without a
partner, which the library refuses, are encoded as their three bytes.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote, unquote_to_bytes

DELETE, INSERT, EQUAL = -1, 1, 0
SAFE = "!~*'();/?:@&=+$,# "
"""What stays readable in an added text, besides letters, digits and `_.-~`."""

_CHUNK = 1 << 20
_QUOTED_CHUNK = 1 << 14
"""Encoding one chunk holds the GIL."""


class DeltaError(ValueError):
    """A delta does not fit its text, or is damaged."""


def encoded(text: str) -> bytes:
    """Return UTF-8, for surrogates without a partner, too."""
    return text.encode("utf-8", "surrogatepass")


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(encoded(text)).hexdigest()


def written(steps: Iterable[tuple[int, str]]) -> str:
    """Write a delta from steps of diff-match-patch."""
    return "\t".join(_written(kind, text) for kind, text in steps if text)


def applied(old: str, delta: str) -> str:
    """Return what a delta makes of `old`.

    Raises:
        DeltaError: it was not made for a text of this length, or is damaged.
    """
    source = old.encode("utf-16-le", "surrogatepass")
    total = len(source) // 2
    parts = []
    position = 0
    for sign, value in _steps(delta):
        if sign == "+":
            parts.append(_decoded(value))
            continue
        count = int(value) if value.isascii() and value.isdigit() else -1
        if count < 0 or sign not in "=-" or position + count > total:
            raise DeltaError(f"the step {sign + value[:40]!r} at position {position} of {total} does not fit")
        if sign == "=":
            parts.append(_text(source[2 * position : 2 * (position + count)]))
        position += count
    if position != total:
        raise DeltaError(f"it covers {position} of {total} units of the old text")
    return "".join(parts)


def common_ends(old: str, new: str) -> tuple[int, int]:
    """Return how many characters are equal at the beginning and, of the rest, at the end."""
    shorter = min(len(old), len(new))
    start = _common(shorter, lambda a, b: old[a:b] == new[a:b])
    ends = len(old), len(new)
    end = _common(shorter - start, lambda a, b: old[ends[0] - b : ends[0] - a] == new[ends[1] - b : ends[1] - a])
    return start, end


def one_block(old: str, new: str) -> str:
    """Return the delta that replaces all between the common beginning and the common end.

    Two surrogates that belong together, but are two characters of Python, become one; then all is replaced.
    """
    start, end = common_ends(old, new)
    middle, fresh = old[start : len(old) - end], new[start : len(new) - end]
    delta = written(((EQUAL, old[:start]), (DELETE, middle), (INSERT, fresh), (EQUAL, old[len(old) - end :])))
    return delta if applied(old, delta) == new else written(((DELETE, old), (INSERT, new)))


def _written(kind: int, text: str) -> str:
    if kind == INSERT:
        return "+" + "".join(_quoted(text[at : at + _QUOTED_CHUNK]) for at in range(0, len(text), _QUOTED_CHUNK))
    return f"{'=' if kind == EQUAL else '-'}{_units(text)}"


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _text(units: bytes) -> str:
    try:
        return units.decode("utf-16-le", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DeltaError(f"a step ends inside of a character: {error}") from None


def _quoted(text: str) -> str:
    return quote(encoded(text), SAFE)


def _decoded(value: str) -> str:
    try:
        return unquote_to_bytes(value).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DeltaError(f"an added text is damaged: {error}") from None


def _steps(delta: str) -> Iterator[tuple[str, str]]:
    return ((step[0], step[1:]) for step in delta.split("\t") if step)


def _common(limit: int, equal: Callable[[int, int], bool]) -> int:
    """Return the length up to which two texts are equal: chunks first, then halves of the chunk that differs."""
    low = 0
    while low < limit and equal(low, min(low + _CHUNK, limit)):
        low = min(low + _CHUNK, limit)
    high = min(low + _CHUNK, limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if equal(low, middle) else (low, middle - 1)
    return low
