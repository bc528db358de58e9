"""Tolerant parsing of JSON written by a model, and size-limited decompression."""

import html
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

DEPTH = 24
"""Maximum nesting depth. None of our schemas is nested more deeply."""

_CLOSERS = {'"': '"', "'": "'", "`": "`", "“": "”“", "”": "”“", "‘": "’", "«": "»", "„": "“”"}
_QUOTE = "\"'`“”‘«„"
_COMMAS = ",;，；、"
# Bounded: an unclosed comment would otherwise be searched for to the end of the text at every position.
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
_ESCAPED |= {quote: quote for quote in _QUOTE}


class Malformed(ValueError):  # noqa: N818
    """Raised if there is no object at a position."""


class Lenient(NamedTuple):
    """A parsed object and its position."""

    value: dict[str, Any]
    end: int
    cut: bool
    """True if the text ended inside the object. Values may then be missing, and the last one may be truncated."""
    opened: frozenset[int]
    """Start positions of the objects nested inside this one."""


def read_lenient(text: str, start: int, keys: Sequence[str]) -> Lenient:
    """Parse the object whose opening brace is at `start`.

    An object without a closing brace is considered complete if nothing else is missing and it has all `keys`.
    The keys must have been folded with `fold_key`.

    Raises:
        Malformed: there is no object at this position.
    """
    reader = _Reader(text, start + 1)
    value = reader.members(0)
    lacks_brace_only = reader.cut and not reader.cut_inside and set(keys) <= {fold_key(key) for key in value}
    return Lenient(value, reader.at, reader.cut and not lacks_brace_only, frozenset({start, *reader.opened}))


def begins_object(text: str, brace: int) -> bool:
    """Return whether an opening brace is followed by a key and a colon."""
    return _KEY.match(text, _past(_BLANK, text, brace + 1)) is not None


def cut_key(text: str, brace: int) -> str | None:
    """Return the incomplete key if the text ends in the first key after the brace. Otherwise, return None."""
    match = _CUT_KEY.match(text, _past(_BLANK, text, brace + 1))
    return match["name"] if match else None


def fold_key(key: str) -> str:
    """Fold the case of a key and remove separators, so that `Action Items` and `actionItems` match `action_items`."""
    return "".join(letter for letter in key.casefold() if letter.isalnum())


def unescape_text(text: str) -> str:
    """Decode JSON and Python escapes. Unknown escapes keep their backslash."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "ux" and len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, match[0])

    # Through UTF-16, which joins the halves of characters that were written as two escapes.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


@dataclass
class _Reader:
    """Recursive descent parser for one object."""

    text: str
    at: int
    cut: bool = False
    cut_inside: bool = False
    """True if the text was cut inside a value or a key rather than between two members of the outermost object."""
    opened: list[int] = field(default_factory=list)

    def members(self, depth: int) -> dict[str, Any]:
        """Read the members of the object up to its closing brace."""
        result: dict[str, Any] = {}
        while not self._ends(depth):
            if self.text[self.at] == "}":
                self.at += 1
                break
            key = self._key()
            if key is None:
                break
            self.at = _past(_BLANK, self.text, self.at)
            if self.at >= len(self.text):
                result[key] = None
                self._cut()
                break
            result[key] = self._value(depth, in_list=False)
            if self.cut:
                self.cut_inside = True
                break
        return result

    def _items(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._ends(depth + 1):
            character = self.text[self.at]
            if character in "])}":
                # A list that ends with its object lacks its bracket.
                self.at += character != "}"
                break
            items.append(self._value(depth, in_list=True))
            if self.cut:
                break
        return items

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
            return unescape_text(match["quoted"] or match["bare"])
        if _CUT_KEY.match(self.text, self.at):
            self._cut()
            return None
        raise Malformed(f"expected a key at {self.at}")

    def _value(self, depth: int, *, in_list: bool) -> Any:
        character = self.text[self.at]
        if depth >= DEPTH:
            raise Malformed(f"nested more than {DEPTH} levels deep")
        if character == "{":
            self.opened.append(self.at)
            self.at += 1
            return self.members(depth + 1)
        if character in "[(":
            self.at += 1
            return self._items(depth + 1)
        if character in _CLOSERS:
            return self._string(_CLOSERS[character], in_list=in_list)
        return self._literal()

    def _literal(self) -> Any:
        if match := _LITERAL.match(self.text, self.at):
            self.at = match.end()
            literal = match[1].lower()
            if literal in _LITERALS:
                return _LITERALS[literal]
            try:
                return float(literal) if set(literal) & set(".e") else int(literal)
            except ValueError:
                raise Malformed(f"expected a number at {self.at}") from None
        bare = _BARE.match(self.text, self.at)
        if bare is None:
            raise Malformed(f"expected a value at {self.at}")
        self.at = bare.end()
        if self.at >= len(self.text.rstrip()):
            self._cut()
        elif " " not in bare[0].strip():
            # A single word is more likely code or a name than a text that lost its quotes.
            raise Malformed(f"a single unquoted word at {self.at}")
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
                # A possible end counts only if no certain one follows.
                if verdict is None and loose is None:
                    loose = position
            position += 1
        if loose is not None:
            return self._text_to(start, loose)
        self._cut()
        return unescape_text(self.text[start:].rstrip("\\"))

    def _text_to(self, start: int, end: int) -> str:
        self.at = end + 1
        # A string that begins with a comma was opened by the closing quote of the one before.
        if self.text[start:end].lstrip().startswith(tuple(_COMMAS)):
            raise Malformed(f"unbalanced quotes before {start}")
        return unescape_text(self.text[start:end])

    def _closes(self, at: int, *, in_list: bool) -> bool | None:
        """Return whether the quotation mark before `at` closes a string.

        None means that this is possible. The string ends there if no better end is found.
        """
        text = self.text
        after = _past(_BLANK, text, at)
        character = text[after : after + 1]
        if not character or text.startswith("```", after):
            # A trailing comment may also be words after a quotation: `"x" #1 is wrong`.
            return True if not text[at:after].strip() else None
        if character in "]})":
            return True if _GOES_ON.match(text, after + 1) else None
        if character in _COMMAS:
            after = _past(_BETWEEN, text, after)
            return self._begins(after, in_list=in_list)
        # A comma is missing.
        if "\n" in text[at:after]:
            return self._begins(after, in_list=in_list)
        key = None if in_list else _KEY.match(text, after)
        return key is not None and key["quoted"] is not None

    def _begins(self, at: int, *, in_list: bool) -> bool:
        """Return whether a member or item starts at `at`, or the surrounding object or list ends there."""
        text = self.text
        character = text[at : at + 1]
        if not character or character in "]})":
            return True
        if in_list:
            return character in _CLOSERS or character in "[{(" or _LITERAL.match(text, at) is not None
        return _KEY.match(text, at) is not None or _CUT_KEY.match(text, at) is not None


ANSWER_CHARACTERS = 1_000_000
REPAIR_CHARACTERS = 40_000
"""Maximum length of an object to repair. Longer objects are parsed but not repaired: repair is slow, and a response
that long is not a plan.
"""
_TRIES = 50
_REPAIRS = 12
"""Maximum number of candidate objects to repair, counted from the end."""

_BRACE = re.compile(r"\{")
_ESCAPED_OBJECT = re.compile(r"\{\s*(?:\\\\*n\s*)*\\+[\"']")
_THOUGHTS_BEGIN = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
_THOUGHTS_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_THOUGHTS_ONLY = re.compile(r"</(?:think|thinking|reasoning)>\s*\Z", re.IGNORECASE)
_CUT_IN_THOUGHTS = "the answer was cut off during the reasoning"
_PLACEHOLDERS = frozenset({"", "...", "…", "text", "string"})


class Level(StrEnum):
    """The amount of repair that a text needed."""

    EXACT = "exact"
    UNWRAPPED = "unwrapped"
    """A valid object was surrounded by thoughts, fences, prose or quotes."""
    REPAIRED = "repaired"
    """The JSON was invalid and had to be repaired."""
    NONE = "none"


class Reading(NamedTuple):
    """The result of searching text for an object."""

    value: dict[str, Any] | None
    level: Level
    problem: str = ""
    truncated: bool = False
    """True if the text ends inside the object. If so, values are missing or the last one is truncated."""


class _Candidate(NamedTuple):
    start: int
    end: int
    value: dict[str, Any]
    level: Level
    cut: bool
    opened: frozenset[int]


def read_object(text: str, keys: Sequence[str]) -> Reading:
    """Return the last JSON object in a text that has all the keys.

    Keys match in any case and with any separator (`Action Items`) and are returned as they are written in
    `keys`. A text that was truncated between two sentences looks complete, so callers should also check
    the service's truncation flag.
    """
    if not text.strip() or len(text) > ANSWER_CHARACTERS:
        size = (
            f"is {len(text):,} characters long, but the maximum is {ANSWER_CHARACTERS:,}"
            if text.strip()
            else "is empty"
        )
        return Reading(None, Level.NONE, f"the answer {size}")
    exact = _load_object(text)
    if exact is not None and _fits(exact, keys):
        return Reading(_with_key_names(exact, keys), Level.EXACT)
    if _THOUGHTS_ONLY.search(text):
        return Reading(None, Level.NONE, _CUT_IN_THOUGHTS, truncated=True)
    lacking: Reading | None = None
    for view in _views(text, keys):
        reading = _last(view, keys)
        if reading is not None and (reading.truncated or _fits(reading.value or {}, keys)):
            return reading
        lacking = lacking or reading
    if exact is not None:
        # Valid JSON that lacks keys: the caller's validation names them.
        return Reading(_with_key_names(exact, keys), Level.EXACT)
    if _THOUGHTS_BEGIN.search(text) and not _THOUGHTS_END.search(text):
        return Reading(None, Level.NONE, _CUT_IN_THOUGHTS, truncated=True)
    return lacking or Reading(None, Level.NONE, "the answer contains no JSON object with the keys " + ", ".join(keys))


def _fits(value: dict[str, Any], keys: Sequence[str]) -> bool:
    """Return whether an object has all the keys and is not just a copy of the schema or its example."""
    folded_items = {fold_key(key): item for key, item in value.items()}
    folded_keys = [fold_key(key) for key in keys]
    return set(folded_keys) <= set(folded_items) and not all(_is_echo(folded_items[key]) for key in folded_keys)


def _is_echo(value: object) -> bool:
    if isinstance(value, dict):
        return "type" in value
    if isinstance(value, list):
        return all(isinstance(item, str) and item.strip() in _PLACEHOLDERS for item in value)
    return value is None or (isinstance(value, str) and value.strip() in _PLACEHOLDERS)


def _with_key_names(value: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    names = {fold_key(key): key for key in keys}
    return {key if key in keys else names.get(fold_key(key), key): item for key, item in value.items()}


def _load_object(text: str) -> dict[str, Any] | None:
    """Parse a complete text as an object. Some models encode the object as a JSON string."""
    try:
        value = json.loads(text)
        if isinstance(value, str):
            value = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _views(text: str, keys: Sequence[str]) -> Iterator[str]:
    """Yield possible interpretations of a response's text, most likely first."""
    # The thoughts may contain the end tag as well.
    ends = [match.end() for match in _THOUGHTS_END.finditer(text)][-_TRIES:]
    bare = next((text[end:] for end in reversed(ends) if any(_starts(text[end:]))), text)
    bare = bare.rstrip().removesuffix("```").rstrip()
    yield bare
    if ends:
        yield text
    if _ESCAPED_OBJECT.search(bare):
        yield unescape_text(bare.rstrip("\\"))
    if "&quot;" in bare:
        yield html.unescape(bare)
    # Some services emit the first brace themselves, so the members start without one.
    names = "|".join(re.escape(key) for key in keys)
    member_match = re.search(rf"[\"'](?:{names})[\"']\s*:", bare)
    if member_match:
        yield "{" + bare[member_match.start() :]


def _starts(text: str) -> Iterator[int]:
    braces = [match.start() for match in _BRACE.finditer(text)]
    # From both ends: the answer is rarely in the middle of code with thousands of braces.
    return (at for at in (*braces[:_TRIES], *braces[_TRIES:][-_TRIES:]) if begins_object(text, at))


def _last(text: str, keys: Sequence[str]) -> Reading | None:
    """Return the last object that has the keys. Ignore objects nested in another such object."""
    candidates, inside = _candidates(text, keys)
    # Models write drafts before the answer, so the last object counts.
    whole = [c for c in candidates if c.start not in inside and not c.cut and _fits(c.value, keys)]
    after = whole[-1].end if whole else 0
    cut = [c for c in candidates if c.cut and c.start >= after]
    if touching := [c for c in cut if _touches(c, keys)]:
        return _truncated_reading(_with_key_names(touching[-1].value, keys))
    if _cut_at_start(text, keys, any_key=not whole):
        return _truncated_reading(None)
    if whole:
        return Reading(_with_key_names(whole[-1].value, keys), whole[-1].level)
    lacking = max((c for c in candidates if not c.cut and _touches(c, keys)), default=None, key=lambda c: len(c.value))
    if lacking is None:
        return _truncated_reading(None) if cut else None
    return Reading(_with_key_names(lacking.value, keys), lacking.level)


def _candidates(text: str, keys: Sequence[str]) -> tuple[list[_Candidate], set[int]]:
    """Return the readable objects, and the start positions of objects nested in a matching one."""
    starts = list(_starts(text))
    repaired = frozenset(at for at in starts[-_REPAIRS:] if len(text) - at <= REPAIR_CHARACTERS)
    candidates: list[_Candidate] = []
    inside: set[int] = set()
    for start in starts:
        # Objects within a found one are its parts, not further answers.
        candidate = None if start in inside else _read(text, start, keys, repair=start in repaired)
        if candidate is None:
            continue
        candidates.append(candidate)
        if candidate.cut and _touches(candidate, keys):
            inside.update(candidate.opened)
        elif not candidate.cut and _fits(candidate.value, keys):
            inside.update(candidate.opened or (at for at in starts if at < candidate.end))
        inside.discard(start)
    return candidates, inside


def _truncated_reading(value: dict[str, Any] | None) -> Reading:
    return Reading(value, Level.REPAIRED if value else Level.NONE, "the answer was cut off", truncated=True)


def _touches(candidate: _Candidate, keys: Sequence[str]) -> bool:
    folded_keys = {fold_key(key) for key in keys}
    return bool(folded_keys & {fold_key(key) for key in candidate.value})


def _cut_at_start(text: str, keys: Sequence[str], *, any_key: bool) -> bool:
    """Return whether the text ends inside an object's first key."""
    brace = text.rfind("{")
    name = None if brace < 0 else cut_key(text, brace)
    if name is None:
        return False
    if not name:
        # A lone brace after words is prose; at the start of a line it is an object.
        return any_key and not re.search(r"\w", text[text.rfind("\n", 0, brace) + 1 : brace])
    return any_key or any(fold_key(key).startswith(fold_key(name)) for key in keys)


def _read(text: str, start: int, keys: Sequence[str], *, repair: bool) -> _Candidate | None:
    try:
        # Not strict: models put raw line breaks into strings.
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        if not repair:
            return None
        try:
            lenient = read_lenient(text, start, [fold_key(key) for key in keys])
        except Malformed:
            return None
        return _Candidate(start, lenient.end, lenient.value, Level.REPAIRED, lenient.cut, lenient.opened)
    if not isinstance(value, dict):
        return None
    if not _fits(value, keys):
        # A tool call holds its arguments as a JSON string.
        inner = (
            _load_object(item) for item in value.values() if isinstance(item, str) and item.lstrip().startswith("{")
        )
        value = next((item for item in inner if item is not None and _fits(item, keys)), value)
    return _Candidate(start, end, value, Level.UNWRAPPED, cut=False, opened=frozenset())


_PART_BYTES = 65_536


class AnswerError(Exception):
    """Raised if a response body is too large or cannot be decompressed."""


class Unpacker:
    """A streaming decompressor with an output limit, which protects against decompression bombs."""

    def __init__(self, encoding: str, limit_bytes: int) -> None:
        """Set the encoding (the value of `Content-Encoding`) and the output limit.

        Raises:
            AnswerError: the encoding is unknown.
        """
        self._left = self._limit = limit_bytes
        packed = encoding.strip().lower() or "identity"
        if packed not in ("identity", "gzip", "x-gzip", "deflate"):
            raise AnswerError(f"the response uses encoding {packed[:40]!r}, but identity was requested")
        # 47 = 32 + 15: zlib detects gzip or deflate by the header.
        self._zip = None if packed == "identity" else zlib.decompressobj(wbits=47)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decompressed chunk in parts.

        Raises:
            AnswerError: the output exceeds the limit, or the data does not match its encoding.
        """
        if self._zip is None:
            yield self._count_bytes(chunk)
            return
        try:
            while chunk:
                # zlib would buffer data after the end without a limit.
                if self._zip.eof:
                    raise AnswerError("the response contains extra data after the end of the compressed data")
                # Limited per call, so that a bomb is noticed before it fills the memory.
                yield self._count_bytes(self._zip.decompress(chunk, _PART_BYTES))
                chunk = self._zip.unconsumed_tail
        except zlib.error:
            raise AnswerError("cannot decompress the response") from None

    def _count_bytes(self, part: bytes) -> bytes:
        self._left -= len(part)
        if self._left < 0:
            raise AnswerError(f"the response is larger than {self._limit / 2**20:.0f} MiB")
        return part
