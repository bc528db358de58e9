"""YAML text into data with positions, by the core schema of YAML 1.2: `on`, `yes` and dates are texts."""

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tightloop.errors import Position
from tightloop.plan.text.located import Block, Map, Seq, TextError

NODES_LIMIT = 1_000_000
"""Values after all aliases (`*name`) are expanded: a few bytes of text can stand for any number."""
# The C parser, where PyYAML was built with it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_CORE_TAGS = frozenset({None, "!", *(_TAG + name for name in ("str", "null", "bool", "int", "float", "map", "seq"))})
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Bounded, because Python refuses to read integers of more than 4 300 digits (`sys.int_info`).
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")
_PREFIXED = re.compile(r"0o[0-7]{1,1000}|0x[0-9a-fA-F]{1,1000}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def plain_scalar(text: str) -> Any:
    """Return the value of an unquoted text by the core schema of YAML 1.2 (10.3.2), without `.inf` and `.nan`."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _PREFIXED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def parse_yaml(text: str, *, depth_limit: int, first_line: int = 1) -> Any:
    """Return the data of one YAML document; `first_line` is the number of its first line in the file.

    Raises:
        TextError: it is not YAML, is too deep or too large, has a key twice, or has a tag of its own.
    """
    events = yaml.parse(text, Loader=_LOADER)
    try:
        return _Builder(events, depth_limit, first_line, text.split("\n")).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(mark.line + first_line, mark.column + 1) if mark else Position()
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise TextError(f"not YAML: {said}", at, _yaml_fix(said, text, mark)) from error
    except yaml.YAMLError as error:
        raise TextError(f"not YAML: {' '.join(str(error).split())[:300]}") from error


def _yaml_fix(said: str, text: str, mark: Any) -> str:
    lines = text.split("\n")
    tab = mark and mark.line < len(lines) and lines[mark.line][mark.column :].startswith("\t")
    if "tab character" in said or ("cannot start any token" in said and tab):
        return "Indent with spaces, not with tabs"
    if "mapping values are not allowed" in said:
        return "Put a text that holds ': ' in quotes"
    return ""


class _Builder:
    """Turns the parser's events into data.

    `yaml.compose` is not used: its C code recurses without a bound, and a text of 100 000 brackets ends the process.
    """

    def __init__(self, events: Iterator[Any], depth_limit: int, first_line: int, lines: list[str]) -> None:
        self._events = events
        self._lines = lines
        self._depth_limit = depth_limit
        self._first_line = first_line
        self._nodes = 0
        self._anchors: dict[str, Any] = {}

    def document(self) -> Any:
        next(self._events)  # stream start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        found = self._value(next(self._events), 0)
        next(self._events)  # document end
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise TextError("a second document begins", self._at(after), "Write one plan in one file")
        return found

    def _at(self, event: Any) -> Position:
        quoted = getattr(event, "style", None) in ("'", '"')
        return Position(event.start_mark.line + self._first_line, event.start_mark.column + 1 + quoted)

    def _count(self, at: Position, depth: int) -> None:
        self._nodes += 1
        if self._nodes > NODES_LIMIT:
            raise TextError(f"more than {NODES_LIMIT} values", at, "Use fewer aliases, or split the plan")
        if depth > self._depth_limit:
            raise TextError(f"nested deeper than {self._depth_limit} levels", at)

    def _value(self, event: Any, depth: int) -> Any:
        at = self._at(event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise TextError(f"alias '*{event.anchor}' has no complete anchor before it", at)
            return self._copy(self._anchors[event.anchor], at, depth)
        self._count(at, depth)
        if event.tag not in _CORE_TAGS:
            raise TextError(f"tag '{event.tag}' is not known", at, "Remove it: plans hold plain data only")
        made: Any
        if isinstance(event, yaml.MappingStartEvent):
            made = self._map(at, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            made = Seq(at)
            while not isinstance(inner := next(self._events), yaml.SequenceEndEvent):
                made.add(self._value(inner, depth + 1), self._at(inner))
        else:
            text = event.style not in (None, "") or event.tag == _TAG + "str"
            made = self._block(event) if text else plain_scalar(event.value)
        # Only now: an alias within what its anchor names would be endless.
        if event.anchor:
            self._anchors[event.anchor] = made
        return made

    def _block(self, event: Any) -> str:
        if event.style != "|" or "\n" not in event.value:
            return str(event.value)
        first = event.start_mark.line + 1
        shown = next((line for line in self._lines[first:] if line.strip()), "")
        inner = next((line for line in event.value.split("\n") if line.strip()), "")
        indent = len(shown.rstrip("\r")) - len(inner)
        return Block.of(event.value, Position(first + self._first_line, indent + 1))

    def _copy(self, value: Any, at: Position, depth: int) -> Any:
        """Copy what an alias stands for: later changes of one place must not be seen at the other."""
        self._count(at, depth)
        if isinstance(value, Map):
            made = Map(at)
            for key, inner in value.items():
                copied = self._copy(inner, at, depth + 1)
                made.put(key, copied, at=value.values_at[key], key_at=value.keys_at[key])
            return made
        if isinstance(value, Seq):
            items = Seq(at)
            for inner, inner_at in zip(value, value.items_at, strict=True):
                items.add(self._copy(inner, at, depth + 1), inner_at)
            return items
        return value

    def _map(self, at: Position, depth: int) -> Map:
        made = Map(at)
        merged: list[Any] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_at = self._at(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise TextError("a key that is not a text", key_at, "Write `key: value`")
            key, inner = event.value, next(self._events)
            value = self._value(inner, depth + 1)
            if key == "<<" and not event.style:
                merged += list(value) if isinstance(value, Seq) else [value]
            else:
                made.put_new(key, value, at=self._at(inner), key_at=key_at)
        # Last, as YAML 1.1 says of merge keys: a field of the mapping itself wins.
        for source in merged:
            if not isinstance(source, Map):
                raise TextError("`<<` merges mappings only", made.at, "Write `<<: *name` of a mapping")
            for key in [key for key in source if key not in made]:
                made.put(key, source[key], at=source.values_at[key], key_at=source.keys_at[key])
        return made
