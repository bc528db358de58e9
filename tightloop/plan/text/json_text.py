"""JSON text into data with positions."""

import json
import re
from bisect import bisect_right
from typing import Any

from tightloop.plan.problem import Position
from tightloop.plan.text.marked import Map, Seq

_SPACE = re.compile(r"[ \t\n\r]*")
_BLANK = frozenset(" \t\n\r")
_DECODER = json.JSONDecoder()


class TextError(ValueError):
    """A text that cannot be read as data."""

    def __init__(self, message: str, position: Position = Position(), suggestion: str = "") -> None:
        """Keep what, where and what to do."""
        super().__init__(message)
        self.message, self.position, self.suggestion = message, position, suggestion


def parse_json(text: str, *, depth_limit: int) -> Any:
    """Return the data of a JSON text.

    Raises:
        TextError: it is not JSON, is nested too deeply, or has a key twice.
    """
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise TextError(f"not JSON: {error.msg}", Position(error.lineno, error.colno)) from error
    except (ValueError, RecursionError) as error:
        raise TextError(f"not JSON: {error}") from error
    return _Reader(text, depth_limit).read()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


class _Reader:
    """Walks over a text that is known to be JSON."""

    def __init__(self, text: str, depth_limit: int) -> None:
        self._text = text
        self._depth_limit = depth_limit
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def read(self) -> Any:
        return self._value(self._skip(0), 0)[0]

    def _position(self, offset: int) -> Position:
        line = bisect_right(self._lines, offset)
        return Position(line, offset - self._lines[line - 1] + 1)

    def _skip(self, offset: int) -> int:
        if self._text[offset : offset + 1] not in _BLANK:
            return offset
        found = _SPACE.match(self._text, offset)
        return found.end() if found else offset

    def _value(self, offset: int, depth: int) -> tuple[Any, int]:
        if depth > self._depth_limit:
            raise TextError(f"nested deeper than {self._depth_limit} levels", self._position(offset))
        first = self._text[offset]
        if first == "{":
            return self._map(offset, depth)
        if first == "[":
            return self._seq(offset, depth)
        if first == '"':
            return self._string(offset)
        return _DECODER.raw_decode(self._text, offset)

    def _string(self, offset: int) -> tuple[str, int]:
        text, end = _DECODER.raw_decode(self._text, offset)
        if text.isascii():
            return text, end
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError("a text with half of a surrogate pair is no Unicode", self._position(offset)) from error
        return text, end

    def _map(self, offset: int, depth: int) -> tuple[Map, int]:
        made = Map(self._position(offset))
        offset = self._skip(offset + 1)
        while self._text[offset] != "}":
            key_at = self._position(offset)
            key, offset = self._string(offset)
            if key in made:
                first = made.keys_at[key].line
                raise TextError(f"field '{key}' twice in one mapping (first in line {first})", key_at, "Remove one")
            start = self._skip(self._skip(offset) + 1)
            value, offset = self._value(start, depth + 1)
            made.put(key, value, at=self._content(start), key_at=key_at)
            offset = self._next(offset)
        return made, offset + 1

    def _seq(self, offset: int, depth: int) -> tuple[Seq, int]:
        made = Seq(self._position(offset))
        offset = self._skip(offset + 1)
        while self._text[offset] != "]":
            start = offset
            value, offset = self._value(start, depth + 1)
            made.add(value, self._content(start))
            offset = self._next(offset)
        return made, offset + 1

    def _content(self, offset: int) -> Position:
        return self._position(offset + (self._text[offset] == '"'))

    def _next(self, offset: int) -> int:
        offset = self._skip(offset)
        return self._skip(offset + 1) if self._text[offset] == "," else offset
