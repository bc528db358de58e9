"""YAML and JSON parsers that record positions."""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import yaml

from tightloop.errors import Position
from tightloop.plan.text.located import HALF_PAIR, Block, Map, Seq, TextError
from tightloop.value.documents import DEPTH_LIMIT, Bounds, BoundsError

_SPACE = re.compile(r"[ \t\n\r]*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_WORD = re.compile(r"[^\s,:\]}\"]+")
_SINGLE = re.compile(r"'((?:[^'\\\n]|\\.)*)'")
_PYTHON = {"True": True, "False": False, "None": None}
_DECODER = json.JSONDecoder()


def parse_json(text: str, *, slips: list[TextError]) -> Any:
    """Parse a JSON text.

    Args:
        text: text of an object or a list.
        slips: list to which recoverable errors in commas, comments and quotes are added.

    Raises:
        TextError: the text cannot be read, is nested too deeply, or has a duplicate key.
    """
    return _Reader(text, slips).read()


class _Reader:
    """JSON parser that records the positions of values.

    The `json` module does not report positions of values, and reports only the first error.
    """

    def __init__(self, text: str, slips: list[TextError]) -> None:
        self._text = text
        self._errors = slips
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", text))]

    def read(self) -> Any:
        value, offset = self._value(self._skip(0), 0)
        if (rest := self._skip(offset)) < len(self._text):
            raise TextError("unexpected text after the end of the JSON", self._position(rest), "Remove it")
        return value

    def _position(self, offset: int) -> Position:
        line = bisect_right(self._lines, offset)
        return Position(line, offset - self._lines[line - 1] + 1)

    def _add_error(self, message: str, offset: int, suggestion: str) -> None:
        self._errors.append(TextError(message, self._position(offset), suggestion))

    def _skip(self, offset: int) -> int:
        while True:
            blank = _SPACE.match(self._text, offset)
            offset = blank.end() if blank else offset
            comment = _COMMENT.match(self._text, offset)
            if comment is None:
                return offset
            self._add_error("JSON does not allow comments", offset, "Remove the comment, or write the plan as YAML")
            offset = comment.end()

    def _peek(self, offset: int) -> str:
        return self._text[offset : offset + 1]

    def _value(self, offset: int, depth: int) -> tuple[Any, int]:
        # Before the recursion: a short text of brackets nests deeper than Python's stack allows.
        if depth > DEPTH_LIMIT:
            raise TextError(f"nested deeper than {DEPTH_LIMIT} levels", self._position(offset))
        if self._peek(offset) not in ("{", "["):
            return self._scalar(offset)
        opening, start = self._peek(offset), offset
        closing = "}" if opening == "{" else "]"
        container = Map(self._position(offset)) if opening == "{" else Seq(self._position(offset))
        offset = self._skip(offset + 1)
        while self._peek(offset) != closing:
            if not self._peek(offset) or self._peek(offset) in "]}":
                raise TextError(f"'{opening}' is not closed", self._position(start), f"Add `{closing}`")
            key, key_at = "", self._position(offset)
            if isinstance(container, Map):
                key, offset = self._key(offset)
            # After the quote, so that columns inside a string can be counted from it.
            at = self._position(offset + (self._peek(offset) == '"'))
            value, offset = self._value(offset, depth + 1)
            if isinstance(container, Map):
                container.put_new(key, value, at=at, key_at=key_at)
            else:
                container.add(value, at)
            offset = self._between(offset, closing)
        return container, offset + 1

    def _between(self, end: int, closing: str) -> int:
        offset = self._skip(end)
        if self._peek(offset) == ",":
            comma, offset = offset, self._skip(offset + 1)
            if self._peek(offset) == closing:
                self._add_error(f"trailing comma before '{closing}'", comma, "Remove the comma")
        elif self._peek(offset) not in ("", "]", "}"):
            self._add_error("missing comma", end, "Add `,`")
            # Skip a separator that was typed instead of the comma.
            offset += self._peek(offset) in ":;"
        return offset

    def _key(self, offset: int) -> tuple[str, int]:
        start = offset
        if self._peek(offset) == '"':
            key, offset = self._string(offset)
        elif single := _SINGLE.match(self._text, offset):
            key, offset = single[1], single.end()
            self._add_error("JSON does not allow single quotes", start, f'Write `"{key}"`')
        elif match := _WORD.match(self._text, offset):
            key, offset = match[0], match.end()
            self._add_error(f"field name {key[:60]} is not in quotes", start, f'Write `"{key[:60]}"`')
        else:
            raise TextError("missing field name", self._position(offset), 'Write `"name": value`')
        colon = self._skip(offset)
        if self._peek(colon) != ":":
            raise TextError(f"missing ':' after \"{key[:60]}\"", self._position(offset), 'Write `"name": value`')
        return key, self._skip(colon + 1)

    def _scalar(self, offset: int) -> tuple[Any, int]:
        if self._peek(offset) == '"':
            return self._string(offset)
        if single := _SINGLE.match(self._text, offset):
            self._add_error("JSON does not allow single quotes", offset, f'Write `"{single[1][:60]}"`')
            return single[1], single.end()
        match = _WORD.match(self._text, offset)
        if match is None:
            raise TextError("missing value", self._position(offset), "Add a value, or remove the field")
        try:
            value, end = _DECODER.raw_decode(match[0])
        except ValueError:
            value, end = None, 0
        # The whole word, because `raw_decode` reads `12` from `12abc`. It also accepts NaN, which JSON does not have.
        if end == len(match[0]) and match[0] not in ("NaN", "Infinity", "-Infinity"):
            return value, match.end()
        literal = match[0][:60]
        if literal in _PYTHON:
            self._add_error(f"'{literal}' is not valid JSON", offset, f"Write `{json.dumps(_PYTHON[literal])}`")
            return _PYTHON[literal], match.end()
        self._add_error(
            f"'{literal}' is not a valid JSON value",
            offset,
            f'Write a number, or put the text in quotes: `"{literal}"`',
        )
        # A placeholder, so that the rest of the text is read and its errors are reported too.
        return None, match.end()

    def _string(self, offset: int) -> tuple[str, int]:
        try:
            value, end = _DECODER.raw_decode(self._text, offset)
        except json.JSONDecodeError as error:
            # `json` has one error class; only its message tells a bad escape from a missing quote.
            if "escape" in error.msg:
                raise TextError("invalid backslash escape", self._position(error.pos), "Write `\\\\`") from None
            hint = 'Close the string with `"`, and write a line break as `\\n`'
            raise TextError("a string is not closed before the end of the line", self._position(offset), hint) from None
        try:
            # JSON escapes can spell half of a surrogate pair, which UTF-8 cannot encode.
            value.encode()
        except UnicodeEncodeError as error:
            raise TextError(HALF_PAIR, self._position(offset)) from error
        return value, end


# Use the C parser if PyYAML was built with it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_CORE_TAGS = frozenset({None, "!", *(_TAG + name for name in ("str", "null", "bool", "int", "float", "map", "seq"))})
# YAML 1.2 only: in YAML 1.1 `yes`, `no`, `on` and `off` are booleans, so that the country code NO becomes false.
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_BLOCK = re.compile(r"(?:^|[:\-] )[|>][-+0-9]*[ \t]*(?:#.*)?$")
_INDENT = "Use the same indentation for all fields of a step"
_UNREADABLE = ("not valid YAML", "Write `key: value` lines, and put text with special characters in quotes")
_IN_WORDS = {
    "found unexpected end of stream": ("a quote is not closed", "Close the quote, or put the text below `|`"),
    "found unexpected document indicator": ("a quote is not closed", "Close the quote, or put the text below `|`"),
    "while parsing a flow": (
        "a bracket is not closed, or a comma is missing",
        "Close the bracket, and put text that contains `,` or `${` in quotes",
    ),
    "unknown escape": ("invalid backslash escape", "Write two backslashes, or put the text in single quotes"),
    "mapping values are not allowed": (
        "the line contains a second ': ' or is indented too far",
        "Put text that contains ': ' in quotes, and use the same indentation for all fields of a step",
    ),
    "did not find expected key": ("the indentation differs from the other fields", _INDENT),
    "did not find expected '-'": ("the indentation differs from the list above", _INDENT),
    "did not find expected <document start>": ("the indentation differs from the previous lines", _INDENT),
    "could not find expected ':'": ("the line has no ': '", "Write `key: value`, or indent the text below `key: |`"),
    "block sequence entries": ("a list cannot start here", "Start the list on the line below its field: `- item`"),
    "cannot start any token": ("unquoted text starts with a special character", "Put the text in quotes"),
    "did not find expected alphabetic": ("`*` and `&` have a special meaning in YAML", "Put the text in quotes"),
    "undefined alias": ("`*` refers to an undefined anchor", "Put the text in quotes"),
}
"""Mapping of libyaml messages to the problem and its correction."""
# Bounded, because Python refuses to parse integers of more than 4 300 digits (`sys.int_info`).
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")
_PREFIXED = re.compile(r"0o[0-7]{1,1000}|0x[0-9a-fA-F]{1,1000}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def plain_scalar(text: str) -> Any:
    """Parse an unquoted scalar according to the YAML 1.2 core schema (10.3.2).

    `.inf` and `.nan` are not supported.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _PREFIXED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def parse_yaml(text: str, *, bounds: Bounds, slips: list[TextError], first_line: int = 1) -> Any:
    """Parse a text that contains a single YAML document.

    Args:
        text: YAML text without a second document.
        bounds: bounds of the plan that contains the text.
        slips: list to which recoverable errors are added. These are lines that are indented with tabs.
        first_line: number of the first line in the file.

    Raises:
        TextError: the text is not valid YAML, is nested too deeply, is too large, or has a duplicate key
            or a custom tag.
    """
    text = _expand_tabs(text, slips, first_line)
    events = yaml.parse(text, Loader=_LOADER)
    try:
        if "*" in text:
            # Possible aliases: count all of them before the first is copied.
            for event in events:
                bounds.add(event)
            events = yaml.parse(text, Loader=_LOADER)
        else:
            events = _limit_events(events, bounds)
        return _Builder(events, first_line, text.split("\n")).document()
    except BoundsError as error:
        at = Position(error.mark.line + first_line, error.mark.column + 1)
        raise TextError(error.message, at, error.suggestion) from error
    except yaml.MarkedYAMLError as error:
        raise _in_words(error, text, first_line) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        at = Position(before.count("\n") + first_line, len(before) - before.rfind("\n"))
        raise TextError("the text contains a control character", at, "Remove the control character") from error
    except yaml.YAMLError as error:
        raise TextError("not valid YAML", Position(first_line, 1), "Write `key: value` lines") from error


def _limit_events(events: Iterator[Any], bounds: Bounds) -> Iterator[Any]:
    for event in events:
        bounds.add(event)
        yield event


def _expand_tabs(text: str, slips: list[TextError], first_line: int) -> str:
    """Replace tabs in the indentation with spaces, except inside block scalars."""
    if "\t" not in text:
        return text
    lines = text.split("\n")
    block_indent = -1
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip(" "))
        # Tabs inside a block scalar are content, such as the recipe lines of a makefile.
        if block_indent >= 0 and (indent > block_indent or not line.strip()):
            continue
        block_indent = indent if _BLOCK.search(line) else -1
        if line[indent : indent + 1] == "\t" and line.strip():
            at = Position(number + first_line, indent + 1)
            slips.append(TextError("the indentation contains a tab", at, "Indent with spaces instead of tabs"))
            blank = len(line) - len(line.lstrip(" \t"))
            lines[number] = line[:blank].replace("\t", "  ") + line[blank:]
    return "\n".join(lines)


def _in_words(error: yaml.MarkedYAMLError, text: str, first_line: int) -> TextError:
    """Convert a libyaml error to an error message for the author of the plan.

    The error includes the line to correct.
    """
    description = " ".join(part for part in (error.context, error.problem) if part)
    error_mark = error.problem_mark or error.context_mark
    message, fix = next((advice for piece, advice in _IN_WORDS.items() if piece in description), _UNREADABLE)
    if error.context_mark and message.startswith(("a quote", "a bracket")):
        # Point to the start: the missing end could be anywhere after it.
        error_mark = error.context_mark
    if error_mark is None:
        return TextError(message, Position(first_line, 1), fix)
    lines = text.split("\n")
    number, column = error_mark.line, error_mark.column
    # At the end of the text, point to the last line with content.
    while number > 0 and (number >= len(lines) or not lines[number].strip()):
        number, column = number - 1, 0
    return TextError(message, Position(number + first_line, column + 1), fix)


class _Builder:
    """Builds data with positions from the events of the YAML parser.

    `yaml.compose` is not used because its C code recurses without a limit. A text with 100 000 brackets would crash the
    process.
    """

    def __init__(self, events: Iterator[Any], first_line: int, lines: list[str]) -> None:
        self._events = events
        self._lines = lines
        self._first_line = first_line
        self._anchors: dict[str, Any] = {}

    def document(self) -> Any:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        tree = self._value(next(self._events))
        next(self._events)  # document end
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise TextError("a second document starts here", self._at(after), "Write only one plan per file")
        return tree

    def _at(self, event: Any) -> Position:
        # After the quote, as for JSON, so that columns inside the text can be counted from it.
        quoted = getattr(event, "style", None) in ("'", '"')
        return Position(event.start_mark.line + self._first_line, event.start_mark.column + 1 + quoted)

    def _value(self, event: Any) -> Any:
        at = self._at(event)
        if isinstance(event, yaml.AliasEvent):
            return self._copy(self._anchors[str(event.anchor)], at)
        if event.tag not in _CORE_TAGS:
            raise TextError(f"unknown tag '{event.tag}'", at, "Remove the tag: plans can contain only plain data")
        result: Any
        if isinstance(event, yaml.MappingStartEvent):
            result = self._map(at)
        elif isinstance(event, yaml.SequenceStartEvent):
            result = Seq(at)
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                result.add(self._value(inner), self._at(inner))
        else:
            # Quoted and block scalars are text, even if they resemble a number or a boolean.
            text = event.style not in (None, "") or event.tag == _TAG + "str"
            result = self._block(event) if text else plain_scalar(event.value)
        if event.anchor:
            self._anchors[event.anchor] = result
        return result

    def _block(self, event: Any) -> str:
        if event.style != "|" or "\n" not in event.value:
            return str(event.value)
        first = event.start_mark.line + 1
        source_line = next((line for line in self._lines[first:] if line.strip()), "")
        inner = next((line for line in event.value.split("\n") if line.strip()), "")
        # libyaml does not report the indentation: it is what the parser removed from the first line with content.
        indent = len(source_line.rstrip("\r")) - len(inner)
        return Block.of(event.value, Position(first + self._first_line, indent + 1))

    def _copy(self, value: Any, at: Position) -> Any:
        """Copy the target of an alias, so that changing the copy does not affect the original."""
        if isinstance(value, Map):
            result = Map(at)
            for key, inner in value.items():
                copied = self._copy(inner, at)
                result.put(key, copied, at=value.values_at[key], key_at=value.keys_at[key])
            return result
        if isinstance(value, Seq):
            items = Seq(at)
            for inner, inner_at in zip(value, value.items_at, strict=True):
                items.add(self._copy(inner, at), inner_at)
            return items
        return value

    def _map(self, at: Position) -> Map:
        result = Map(at)
        merged: list[Any] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_at = self._at(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise TextError("the key is not a string", key_at, "Write `key: value`")
            key, inner = event.value, next(self._events)
            value = self._value(inner)
            # A quoted "<<" is an ordinary key.
            if key == "<<" and not event.style:
                merged += list(value) if isinstance(value, Seq) else [value]
            else:
                result.put_new(key, value, at=self._at(inner), key_at=key_at)
        # Last, because of the YAML 1.1 merge key rule: fields of the mapping itself win.
        for source in merged:
            if not isinstance(source, Map):
                raise TextError(
                    "`<<` can only merge mappings",
                    result.at,
                    "Write `<<: *name`, where `name` is the anchor of a mapping",
                )
            for key in [key for key in source if key not in result]:
                result.put(key, source[key], at=source.values_at[key], key_at=source.keys_at[key])
        return result
