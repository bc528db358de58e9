"""JSON text into data with positions."""

import json
import re
from bisect import bisect_right
from typing import Any

from tightloop.errors import Position
from tightloop.plan.text.located import HALF_PAIR, Map, Seq, TextError

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def parse_json(text: str, *, depth_limit: int) -> Any:
    """Return the data of a JSON text.

    Raises:
        TextError: it is not JSON, is nested too deeply, or has a key twice.
    """
    try:
        # First by `json`, for its messages; it would accept NaN and Infinity, which JSON does not have.
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise TextError(f"not JSON: {error.msg}", Position(error.lineno, error.colno)) from error
    except (ValueError, RecursionError) as error:
        raise TextError(f"not JSON: {error}") from error
    return _Reader(text, depth_limit).read()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class _Reader:
    """Walks over a text that is known to be JSON: `json` itself does not tell where a value stood."""

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
        found = _SPACE.match(self._text, offset)
        return found.end() if found else offset

    def _value(self, offset: int, depth: int) -> tuple[Any, int]:
        if depth > self._depth_limit:
            raise TextError(f"nested deeper than {self._depth_limit} levels", self._position(offset))
        if self._text[offset] not in "{[":
            return self._scalar(offset)
        made = Map(self._position(offset)) if self._text[offset] == "{" else Seq(self._position(offset))
        offset = self._skip(offset + 1)
        while self._text[offset] not in "}]":
            key, key_at = "", self._position(offset)
            if isinstance(made, Map):
                key, offset = self._scalar(offset)
                offset = self._skip(self._skip(offset) + 1)
            # Behind a quote, so that columns within a text can be counted from it.
            at = self._position(offset + (self._text[offset] == '"'))
            value, offset = self._value(offset, depth + 1)
            if isinstance(made, Map):
                made.put_new(key, value, at=at, key_at=key_at)
            else:
                made.add(value, at)
            offset = self._skip(offset)
            if self._text[offset] == ",":
                offset = self._skip(offset + 1)
        return made, offset + 1

    def _scalar(self, offset: int) -> tuple[Any, int]:
        value, end = _DECODER.raw_decode(self._text, offset)
        try:
            str(value).encode()
        except UnicodeEncodeError as error:
            raise TextError(HALF_PAIR, self._position(offset)) from error
        return value, end
