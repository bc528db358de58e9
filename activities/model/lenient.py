"""Reads an object that is almost JSON as its author meant it, and tells whether its end is there.

Accepted are comments, trailing, missing and foreign commas, keys without quotes, quotes of other kinds, literals of
Python, raw line breaks, invalid escapes, and quotes inside of a text that nobody escaped: a quote ends a text only
where what follows goes on with the object.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DEPTH = 24
"""None of our schemas is nested deeper."""

_CLOSERS = {'"': '"', "'": "'", "`": "`", "“": "”“", "”": "”“", "‘": "’", "«": "»", "„": "“”"}
_QUOTE = "\"'`“”‘«„"
_COMMAS = ",;，；、"
_COMMENT = r"//[^\n]*(?:\n|\Z)|\#[^\n]*(?:\n|\Z)|/\*.{0,500}?(?:\*/|\Z)|/\Z"
_BLANK = re.compile(rf"(?:[\s\ufeff]|{_COMMENT})*", re.DOTALL)
_BETWEEN = re.compile(rf"(?:[\s\ufeff{_COMMAS}]|{_COMMENT})*", re.DOTALL)
_KEY = re.compile(
    rf"(?:(?P<quote>[{_QUOTE}])(?P<quoted>[^\n\"“”:{{}}]{{1,60}}?)[\"'`“”’»]|(?P<bare>[^\W\d]\w{{0,59}}))\s*(?:=>|[:：=])"
)
_CUT_KEY = re.compile(rf"[{_QUOTE}]?(?P<name>[\w \-]{{0,60}})[\"'`“”’»]?\s*\Z")
_GOES_ON = re.compile(rf"\s*(?:[{_COMMAS}}}\])]|//|\#|/\*|```|</|\Z)|[ \t]*\r?\n")
_LITERALS = {"true": True, "false": False, "null": None, "none": None, "undefined": None, "nan": float("nan")}
_LITERAL = re.compile(
    rf"(true|false|null|none|undefined|nan|-?\d[\d.eE+\-]*)(?=\s*(?:[{_COMMAS}}}\])/\#]|\Z))", re.IGNORECASE
)
_BARE = re.compile(rf"[^\n{{}}\[\]{_QUOTE}{_COMMAS}]+(?=[{_COMMAS}}}\]\n]|\Z)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", "\n": ""}
_ESCAPED |= {mark: mark for mark in _QUOTE}


class Malformed(ValueError):  # noqa: N818
    """No object at this position."""


class Lenient(NamedTuple):
    """The object that was read."""

    value: dict[str, Any]
    end: int
    cut: bool
    """The text ended before the object did; values may be missing, and the last one may be a part."""
    opened: frozenset[int]
    """Positions at which the objects in it begin."""


def read_lenient(text: str, start: int, keys: Sequence[str]) -> Lenient:
    """Read the object whose brace is at `start`.

    An object that has all `keys` (as `folded` writes them) and lacks nothing but its last brace counts as complete.

    Raises:
        Malformed: no object at this place.
    """
    reader = _Reader(text, start + 1)
    value = reader.members(0)
    lacks_brace_only = reader.cut and not reader.cut_inside and set(keys) <= {folded(key) for key in value}
    return Lenient(value, reader.at, reader.cut and not lacks_brace_only, frozenset({start, *reader.opened}))


def begins_object(text: str, brace: int) -> bool:
    """Return whether a key and its colon follow the brace."""
    return _KEY.match(text, _past(_BLANK, text, brace + 1)) is not None


def cut_key(text: str, brace: int) -> str | None:
    """Return the begin of the key in which the text ends right after the brace; None where it goes on."""
    found = _CUT_KEY.match(text, _past(_BLANK, text, brace + 1))
    return found["name"] if found else None


def folded(key: str) -> str:
    """Return a key with its letters and digits only: `Action Items` and `actionItems` are `action_items`."""
    return "".join(letter for letter in key.casefold() if letter.isalnum())


def unescaped(text: str) -> str:
    """Undo the escapes of JSON and Python; what is none keeps its backslash."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "ux" and len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, match[0])

    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


@dataclass
class _Reader:
    """A descent through one object."""

    text: str
    at: int
    cut: bool = False
    cut_inside: bool = False
    """The cut is in a value or a key, not between two members of the outermost object."""
    opened: list[int] = field(default_factory=list)

    def members(self, depth: int) -> dict[str, Any]:
        """Read up to the brace that closes."""
        found: dict[str, Any] = {}
        while not self._ends(depth):
            if self.text[self.at] == "}":
                self.at += 1
                break
            key = self._key()
            if key is None:
                break
            self.at = _past(_BLANK, self.text, self.at)
            if self.at >= len(self.text):
                found[key] = None
                self._cut()
                break
            found[key] = self._value(depth, in_list=False)
            if self.cut:
                self.cut_inside = True
                break
        return found

    def _items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._ends(depth + 1):
            mark = self.text[self.at]
            if mark in "])}":
                # A list that ends with its object lacks its bracket.
                self.at += mark != "}"
                break
            found.append(self._value(depth, in_list=True))
            if self.cut:
                break
        return found

    def _ends(self, depth: int) -> bool:
        self.at = _past(_BETWEEN, self.text, self.at)
        if self.at < len(self.text) and not self.text.startswith("```", self.at):
            return False
        self.cut = True
        self.cut_inside = self.cut_inside or depth > 0
        return True

    def _cut(self) -> None:
        self.at = len(self.text)
        self.cut = self.cut_inside = True

    def _key(self) -> str | None:
        match = _KEY.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return unescaped(match["quoted"] or match["bare"])
        if _CUT_KEY.match(self.text, self.at):
            self._cut()
            return None
        raise Malformed(f"no key at {self.at}")

    def _value(self, depth: int, *, in_list: bool) -> Any:
        mark = self.text[self.at]
        if depth >= DEPTH:
            raise Malformed(f"deeper than {DEPTH}")
        if mark == "{":
            self.opened.append(self.at)
            self.at += 1
            return self.members(depth + 1)
        if mark in "[(":
            self.at += 1
            return self._items(depth + 1)
        if mark in _CLOSERS:
            return self._string(_CLOSERS[mark], in_list=in_list)
        return self._literal()

    def _literal(self) -> Any:
        if found := _LITERAL.match(self.text, self.at):
            self.at = found.end()
            word = found[1].lower()
            if word in _LITERALS:
                return _LITERALS[word]
            try:
                return float(word) if set(word) & set(".e") else int(word)
            except ValueError:
                raise Malformed(f"no number at {self.at}") from None
        bare = _BARE.match(self.text, self.at)
        if bare is None:
            raise Malformed(f"no value at {self.at}")
        self.at = bare.end()
        if self.at >= len(self.text.rstrip()):
            self._cut()
        elif " " not in bare[0].strip():
            raise Malformed(f"a single word without quotes at {self.at}")
        return bare[0].strip()

    def _string(self, closers: str, *, in_list: bool) -> str:
        start = position = self.at + 1
        loose: int | None = None
        while position < len(self.text):
            letter = self.text[position]
            if letter == "\\":
                position += 1
            elif letter in closers:
                verdict = self._closes(position + 1, in_list=in_list)
                if verdict:
                    return self._text_to(start, position)
                if verdict is None and loose is None:
                    loose = position
            position += 1
        if loose is not None:
            return self._text_to(start, loose)
        self._cut()
        return unescaped(self.text[start:].rstrip("\\"))

    def _text_to(self, start: int, end: int) -> str:
        self.at = end + 1
        if self.text[start:end].lstrip().startswith(tuple(_COMMAS)):
            raise Malformed(f"the quotes before {start} do not match")
        return unescaped(self.text[start:end])

    def _closes(self, at: int, *, in_list: bool) -> bool | None:
        """Return whether a text ends before `at`; None: it may, if nothing better follows."""
        text = self.text
        after = _past(_BLANK, text, at)
        mark = text[after : after + 1]
        if not mark or text.startswith("```", after):
            # A remark that runs to the end may as well be words after a quote: `"x" #1 is wrong`.
            return True if not text[at:after].strip() else None
        if mark in "]})":
            return True if _GOES_ON.match(text, after + 1) else None
        if mark in _COMMAS:
            after = _past(_BETWEEN, text, after)
            return self._begins(after, in_list=in_list)
        # A comma was forgotten.
        if "\n" in text[at:after]:
            return self._begins(after, in_list=in_list)
        key = None if in_list else _KEY.match(text, after)
        return key is not None and key["quoted"] is not None

    def _begins(self, at: int, *, in_list: bool) -> bool:
        """Return whether another member or item begins at `at`, or the list or object ends."""
        text = self.text
        mark = text[at : at + 1]
        if not mark or mark in "]})":
            return True
        if in_list:
            return mark in _CLOSERS or mark in "[{(" or _LITERAL.match(text, at) is not None
        return _KEY.match(text, at) is not None or _CUT_KEY.match(text, at) is not None
