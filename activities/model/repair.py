"""Extracts the JSON object from what a model wrote."""

import html
import json
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from activities.model.lenient import Malformed, begins_object, cut_key, folded, read_lenient, unescaped

ANSWER_CHARACTERS = 1_000_000
REPAIR_CHARACTERS = 40_000
"""Longer objects are only parsed, not repaired: repairing is slow, and an answer that long is not a plan."""
_TRIES = 50
_REPAIRS = 12
"""Maximum number of places where an object may begin that are repaired, counted from the end."""

_BRACE = re.compile(r"\{")
_ESCAPED_OBJECT = re.compile(r"\{\s*(?:\\\\*n\s*)*\\+[\"']")
_THOUGHTS_BEGIN = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
_THOUGHTS_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_THOUGHTS_ONLY = re.compile(r"</(?:think|thinking|reasoning)>\s*\Z", re.IGNORECASE)
_CUT_IN_THOUGHTS = "the answer was cut off in its thoughts"
_PLACEHOLDERS = frozenset({"", "...", "…", "text", "string"})


class Level(StrEnum):
    """How much repair a text needed."""

    EXACT = "exact"
    UNWRAPPED = "unwrapped"
    """Thoughts, fences, prose or quotes around a sound object."""
    REPAIRED = "repaired"
    """The JSON itself was broken."""
    NONE = "none"


class Reading(NamedTuple):
    """The object that was found, and how."""

    value: dict[str, Any] | None
    level: Level
    problem: str = ""
    truncated: bool = False
    """The text ends before its object does: values are missing, or the last one is a part."""


class _Candidate(NamedTuple):
    start: int
    end: int
    value: dict[str, Any]
    level: Level
    cut: bool
    opened: frozenset[int]


def read_object(text: str, keys: Sequence[str]) -> Reading:
    """Find the JSON object that has all the keys; the last one where several have.

    A key is found in any case and with any separator (`Action Items`) and returned as it is in `keys`. A text that
    was cut off between two sentences of its prose cannot be told from a whole one: ask the service for that, too.
    """
    if not text.strip() or len(text) > ANSWER_CHARACTERS:
        size = f"has {len(text):,} characters; at most {ANSWER_CHARACTERS:,} are read" if text.strip() else "is empty"
        return Reading(None, Level.NONE, f"the answer {size}")
    exact = _loaded(text)
    if exact is not None and _fits(exact, keys):
        return Reading(_named(exact, keys), Level.EXACT)
    if _THOUGHTS_ONLY.search(text):
        return Reading(None, Level.NONE, _CUT_IN_THOUGHTS, truncated=True)
    lacking: Reading | None = None
    for view in _views(text, keys):
        found = _last(view, keys)
        if found is not None and (found.truncated or _fits(found.value or {}, keys)):
            return found
        lacking = lacking or found
    if exact is not None:
        return Reading(_named(exact, keys), Level.EXACT)
    if _THOUGHTS_BEGIN.search(text) and not _THOUGHTS_END.search(text):
        return Reading(None, Level.NONE, _CUT_IN_THOUGHTS, truncated=True)
    return lacking or Reading(None, Level.NONE, "the answer has no JSON object with the keys " + ", ".join(keys))


def _fits(value: dict[str, Any], keys: Sequence[str]) -> bool:
    """Return whether it has all the keys and is not just the schema or an example of it."""
    given = {folded(key): item for key, item in value.items()}
    wanted = [folded(key) for key in keys]
    return set(wanted) <= set(given) and not all(_is_echo(given[key]) for key in wanted)


def _is_echo(value: object) -> bool:
    if isinstance(value, dict):
        return "type" in value
    if isinstance(value, list):
        return all(isinstance(item, str) and item.strip() in _PLACEHOLDERS for item in value)
    return value is None or (isinstance(value, str) and value.strip() in _PLACEHOLDERS)


def _named(value: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    names = {folded(key): key for key in keys}
    return {key if key in keys else names.get(folded(key), key): item for key, item in value.items()}


def _loaded(text: str) -> dict[str, Any] | None:
    """Parse a whole text; some models write the object as a JSON string."""
    try:
        value = json.loads(text)
        if isinstance(value, str):
            value = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _views(text: str, keys: Sequence[str]) -> Iterator[str]:
    """Yield the text as it may have been meant, the likeliest first."""
    # The words of a text may contain the mark, too.
    ends = [match.end() for match in _THOUGHTS_END.finditer(text)][-_TRIES:]
    bare = next((text[end:] for end in reversed(ends) if any(_starts(text[end:]))), text)
    bare = bare.rstrip().removesuffix("```").rstrip()
    yield bare
    if ends:
        yield text
    if _ESCAPED_OBJECT.search(bare):
        yield unescaped(bare.rstrip("\\"))
    if "&quot;" in bare:
        yield html.unescape(bare)
    # Some services write the first brace themselves: the members then begin without one.
    names = "|".join(re.escape(key) for key in keys)
    found = re.search(rf"[\"'](?:{names})[\"']\s*:", bare)
    if found:
        yield "{" + bare[found.start() :]


def _starts(text: str) -> Iterator[int]:
    braces = [match.start() for match in _BRACE.finditer(text)]
    return (at for at in (*braces[:_TRIES], *braces[_TRIES:][-_TRIES:]) if begins_object(text, at))


def _last(text: str, keys: Sequence[str]) -> Reading | None:
    """Return the last object that has the keys and does not lie within another such object."""
    candidates, inside = _candidates(text, keys)
    whole = [c for c in candidates if c.start not in inside and not c.cut and _fits(c.value, keys)]
    after = whole[-1].end if whole else 0
    cut = [c for c in candidates if c.cut and c.start >= after]
    if touching := [c for c in cut if _touches(c, keys)]:
        return _truncated(_named(touching[-1].value, keys))
    if _cut_at_start(text, keys, any_key=not whole):
        return _truncated(None)
    if whole:
        return Reading(_named(whole[-1].value, keys), whole[-1].level)
    lacking = max((c for c in candidates if not c.cut and _touches(c, keys)), default=None, key=lambda c: len(c.value))
    if lacking is None:
        return _truncated(None) if cut else None
    return Reading(_named(lacking.value, keys), lacking.level)


def _candidates(text: str, keys: Sequence[str]) -> tuple[list[_Candidate], set[int]]:
    """Return what can be read, and where objects begin that lie within an object that has the keys."""
    starts = list(_starts(text))
    repaired = frozenset(at for at in starts[-_REPAIRS:] if len(text) - at <= REPAIR_CHARACTERS)
    found: list[_Candidate] = []
    inside: set[int] = set()
    for start in starts:
        candidate = None if start in inside else _read(text, start, keys, repair=start in repaired)
        if candidate is None:
            continue
        found.append(candidate)
        if candidate.cut and _touches(candidate, keys):
            inside.update(candidate.opened)
        elif not candidate.cut and _fits(candidate.value, keys):
            inside.update(candidate.opened or (at for at in starts if at < candidate.end))
        inside.discard(start)
    return found, inside


def _truncated(value: dict[str, Any] | None) -> Reading:
    return Reading(value, Level.REPAIRED if value else Level.NONE, "the answer was cut off", truncated=True)


def _touches(candidate: _Candidate, keys: Sequence[str]) -> bool:
    wanted = {folded(key) for key in keys}
    return bool(wanted & {folded(key) for key in candidate.value})


def _cut_at_start(text: str, keys: Sequence[str], *, any_key: bool) -> bool:
    """Return whether the text ends in the first key of an object."""
    brace = text.rfind("{")
    name = None if brace < 0 else cut_key(text, brace)
    if name is None:
        return False
    if not name:
        # A lone brace behind words is prose; at the begin of a line it is an object.
        return any_key and not re.search(r"\w", text[text.rfind("\n", 0, brace) + 1 : brace])
    return any_key or any(folded(key).startswith(folded(name)) for key in keys)


def _read(text: str, start: int, keys: Sequence[str], *, repair: bool) -> _Candidate | None:
    try:
        # Not strict: models put raw line breaks into texts.
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        if not repair:
            return None
        try:
            found = read_lenient(text, start, [folded(key) for key in keys])
        except Malformed:
            return None
        return _Candidate(start, found.end, found.value, Level.REPAIRED, found.cut, found.opened)
    if not isinstance(value, dict):
        return None
    if not _fits(value, keys):
        # A tool call holds its arguments as a JSON string.
        inner = (_loaded(item) for item in value.values() if isinstance(item, str) and item.lstrip().startswith("{"))
        value = next((item for item in inner if item is not None and _fits(item, keys)), value)
    return _Candidate(start, end, value, Level.UNWRAPPED, cut=False, opened=frozenset())
