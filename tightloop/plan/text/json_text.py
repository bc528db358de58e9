"""JSON text into data with positions. Slips that leave no doubt are noted, and reading goes on behind them."""

import json
import re
from bisect import bisect_right
from typing import Any

from tightloop.errors import Position
from tightloop.plan.text.located import HALF_PAIR, Map, Seq, TextError
from tightloop.value.yaml_reading import DEPTH_LIMIT

_SPACE = re.compile(r"[ \t\n\r]*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_WORD = re.compile(r"[^\s,:\]}\"]+")
_SINGLE = re.compile(r"'((?:[^'\\\n]|\\.)*)'")
_PYTHON = {"True": True, "False": False, "None": None}
_DECODER = json.JSONDecoder()


def parse_json(text: str, *, slips: list[TextError]) -> Any:
    """Return the data of a JSON text.

    Args:
        text: with an object or a list.
        slips: takes what is wrong but can be read: commas, comments, quotes.

    Raises:
        TextError: it cannot be read, is nested too deeply, or has a key twice.
    """
    return _Reader(text, slips).read()


class _Reader:
    """Walks over a text: `json` tells neither where a value stands, nor more than the first thing that is wrong."""

    def __init__(self, text: str, slips: list[TextError]) -> None:
        self._text = text
        self._slips = slips
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def read(self) -> Any:
        value, offset = self._value(self._skip(0), 0)
        if (rest := self._skip(offset)) < len(self._text):
            raise TextError("there is more behind the end of the JSON", self._position(rest), "Remove it")
        return value

    def _position(self, offset: int) -> Position:
        line = bisect_right(self._lines, offset)
        return Position(line, offset - self._lines[line - 1] + 1)

    def _slip(self, message: str, offset: int, suggestion: str) -> None:
        self._slips.append(TextError(message, self._position(offset), suggestion))

    def _skip(self, offset: int) -> int:
        while True:
            blank = _SPACE.match(self._text, offset)
            offset = blank.end() if blank else offset
            comment = _COMMENT.match(self._text, offset)
            if comment is None:
                return offset
            self._slip("JSON has no comments", offset, "Remove it, or write the plan as YAML")
            offset = comment.end()

    def _peek(self, offset: int) -> str:
        return self._text[offset : offset + 1]

    def _value(self, offset: int, depth: int) -> tuple[Any, int]:
        if depth > DEPTH_LIMIT:
            raise TextError(f"nested deeper than {DEPTH_LIMIT} levels", self._position(offset))
        if self._peek(offset) not in ("{", "["):
            return self._scalar(offset)
        opening, start = self._peek(offset), offset
        closing = "}" if opening == "{" else "]"
        made = Map(self._position(offset)) if opening == "{" else Seq(self._position(offset))
        offset = self._skip(offset + 1)
        while self._peek(offset) != closing:
            if not self._peek(offset) or self._peek(offset) in "]}":
                raise TextError(f"'{opening}' is not closed", self._position(start), f"Add `{closing}`")
            key, key_at = "", self._position(offset)
            if isinstance(made, Map):
                key, offset = self._key(offset)
            # Behind a quote, so that columns within a text can be counted from it.
            at = self._position(offset + (self._peek(offset) == '"'))
            value, offset = self._value(offset, depth + 1)
            if isinstance(made, Map):
                made.put_new(key, value, at=at, key_at=key_at)
            else:
                made.add(value, at)
            offset = self._between(offset, closing)
        return made, offset + 1

    def _between(self, end: int, closing: str) -> int:
        offset = self._skip(end)
        if self._peek(offset) == ",":
            comma, offset = offset, self._skip(offset + 1)
            if self._peek(offset) == closing:
                self._slip(f"a comma before '{closing}'", comma, "Remove the comma")
        elif self._peek(offset) not in ("", "]", "}"):
            self._slip("a comma is missing", end, "Add `,`")
            offset += self._peek(offset) in ":;"
        return offset

    def _key(self, offset: int) -> tuple[str, int]:
        start = offset
        if self._peek(offset) == '"':
            key, offset = self._string(offset)
        elif single := _SINGLE.match(self._text, offset):
            key, offset = single[1], single.end()
            self._slip("JSON has no single quotes", start, f'Write `"{key}"`')
        elif word := _WORD.match(self._text, offset):
            key, offset = word[0], word.end()
            self._slip(f"the name {key[:60]} is not in quotes", start, f'Write `"{key[:60]}"`')
        else:
            raise TextError("the name of a field is missing", self._position(offset), 'Write `"name": value`')
        colon = self._skip(offset)
        if self._peek(colon) != ":":
            raise TextError(f"':' is missing behind \"{key[:60]}\"", self._position(offset), 'Write `"name": value`')
        return key, self._skip(colon + 1)

    def _scalar(self, offset: int) -> tuple[Any, int]:
        if self._peek(offset) == '"':
            return self._string(offset)
        if single := _SINGLE.match(self._text, offset):
            self._slip("JSON has no single quotes", offset, f'Write `"{single[1][:60]}"`')
            return single[1], single.end()
        word = _WORD.match(self._text, offset)
        if word is None:
            raise TextError("a value is missing", self._position(offset), "Write it, or remove the field")
        try:
            value, end = _DECODER.raw_decode(word[0])
        except ValueError:
            value, end = None, 0
        if end == len(word[0]) and word[0] not in ("NaN", "Infinity", "-Infinity"):
            return value, word.end()
        shown = word[0][:60]
        if shown in _PYTHON:
            self._slip(f"'{shown}' is not JSON", offset, f"Write `{json.dumps(_PYTHON[shown])}`")
            return _PYTHON[shown], word.end()
        self._slip(f"'{shown}' is not a JSON value", offset, f'Write a number, or a text in quotes: `"{shown}"`')
        return None, word.end()

    def _string(self, offset: int) -> tuple[str, int]:
        try:
            value, end = _DECODER.raw_decode(self._text, offset)
        except json.JSONDecodeError as error:
            if "escape" in error.msg:
                raise TextError(
                    "a backslash that stands for nothing", self._position(error.pos), "Write `\\\\`"
                ) from None
            hint = 'End it with `"`; a line break within it is `\\n`'
            raise TextError("a text does not end in its line", self._position(offset), hint) from None
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TextError(HALF_PAIR, self._position(offset)) from error
        return value, end
