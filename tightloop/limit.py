"""Finds the limit of a provider or an agent in its status lines, typed errors and headers, and says what to do.

The texts and fields are those of Cursor, Codex, Claude Code, Copilot, Gemini and of the APIs behind them, collected in
`tests/data/limits.yaml`. A repository can contain each of these texts: a text counts only where it begins a line, after
labels such as `Error:`, and events of an agent that carry the words of a model or the output of a tool are skipped.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import Field

from tightloop.executor import LimitHit
from tightloop.value import Value, shorten

EVIDENCE_CHARACTERS = 200
TEXT_CHARACTERS = 64_000
"""Of a text only the end is read."""
TEXT_LINES = 50
LINE_CHARACTERS = 1_000
WRAPPED_LINES = 6
"""A status text is spread over at most so many lines."""
LONGEST_WAIT = timedelta(days=31)
LONGEST_UNASKED_WAIT = timedelta(hours=6)
"""A person is asked at once where the reset is farther away."""
CLOCK_SLACK = timedelta(minutes=2)
"""A time of day without a date that has just passed means now, not tomorrow: agents drop the seconds."""
EPOCH_FROM = 1e9
EPOCH_MS_FROM = 1e11


class LimitKind(StrEnum):
    """What stopped the agent."""

    TOOL_CALL_LIMIT = "tool_call_limit"
    RATE_LIMITED = "rate_limited"
    USAGE_EXHAUSTED = "usage_exhausted"
    OVERLOADED = "overloaded"
    AUTH = "auth"
    CONTEXT_FULL = "context_full"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class LimitSource(StrEnum):
    """Where the kind was read."""

    TEXT = "text"
    TYPED = "typed"
    HEADER = "header"


class LimitAnswer(StrEnum):
    """What a limit calls for."""

    WAIT = "wait"
    """Back off, then continue."""
    PERSON = "person"
    """Waiting does not help, or not soon."""
    REPLAN = "replan"
    """The same order would fail again: a smaller one is needed."""


class LimitSignal(Value):
    """What an agent or a provider said when it stopped; what is not known is left out."""

    text: str = ""
    """Status lines, newest last; never the words of a model or the output of a tool."""
    status_code: int | None = None
    error_type: str = ""
    error_code: str = ""
    body: Any = None
    """Decoded JSON of the error."""
    headers: Mapping[str, str] = Field(default_factory=dict)


def answer(limit: LimitHit) -> LimitAnswer:
    """Return what to do about a limit; a kind that is not known is waited for, as strikes are counted."""
    far = limit.retry_after is not None and limit.retry_after > LONGEST_UNASKED_WAIT
    exhausted = limit.kind == LimitKind.USAGE_EXHAUSTED and limit.retry_after is None
    if far or exhausted or limit.monthly or limit.kind == LimitKind.AUTH:
        return LimitAnswer.PERSON
    return LimitAnswer.REPLAN if limit.kind == LimitKind.CONTEXT_FULL else LimitAnswer.WAIT


def explain(limit: LimitHit) -> str:
    """Return a sentence for the person: what stopped the agent, then what to do."""
    said = f"it said {limit.evidence!r}" if limit.evidence else "it gave no text"
    if limit.kind == LimitKind.AUTH:
        return (
            f"the agent is not let in by its provider ({said}). Check on the worker's host that its key or login is "
            "valid, has not expired and belongs to the base URL and model in use, then resume"
        )
    if limit.kind == LimitKind.CONTEXT_FULL:
        return f"the context of the agent's model is full ({said}). Plan smaller steps"
    reset = "at a time it does not tell" if limit.retry_after is None else f"in {limit.retry_after}"
    return (
        f"the agent's provider stops it: {limit.kind}, to be lifted {reset} ({said}). "
        "Add credit, use another key, model or agent, or resume after the reset"
    )


def detect(signal: str | LimitSignal, *, now: datetime, zone: tzinfo | None = None) -> LimitHit | None:
    """Return the limit that a signal tells of; None where it tells of none. Never raises.

    Args:
        signal: what was said; a string is taken as status lines.
        now: when it was said; without a zone it is UTC.
        zone: zone of the times that name none; by default that of `now`.
    """
    given = LimitSignal(text=signal) if isinstance(signal, str) else signal
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    clock = _Clock(aware, zone or aware.tzinfo or UTC)
    facts = _Facts(given.headers)
    if given.status_code is not None:
        facts.statuses.append(given.status_code)
    facts.codes += [given.error_code, given.error_type]
    facts.collect(given.body)
    # Every answer may carry the headers: without an error they only tell what is left.
    fine = given.status_code is not None and given.status_code < 400
    typed = None if fine else _typed(facts, clock)
    return typed or _from_text(given.text, clock)


# Text to one form

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_CHARACTERS: dict[int, str] = {
    **dict.fromkeys([*range(32), *range(0x7F, 0xA0), *range(0x2500, 0x2580)], " "),
    **dict.fromkeys([0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD], ""),
    **dict.fromkeys(map(ord, "’‘ʼ`´"), "'"),
    **dict.fromkeys(map(ord, "“”"), '"'),
    **dict.fromkeys(map(ord, "∙•‧⋅"), "·"),
    **dict.fromkeys(map(ord, "–—‑‐"), "-"),
    ord("…"): "...",
}


def normalise(text: str) -> str:
    """Return one line with plain quotes, dashes, dots and spaces, without colours and frames. Idempotent."""
    return " ".join(_ANSI.sub("", text).translate(_CHARACTERS).split())


def _compact(text: str) -> str:
    return "".join(text.split())


# Times

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "mo": 2_592_000.0}
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_PART = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s*"
    r"(milliseconds?|months?|minutes?|seconds?|hours?|weeks?|days?|mins?|secs?|hrs?|(?:ms|[smhdw])(?![a-z]))"
)
_DURATION_PART = re.compile(_PART, re.IGNORECASE)
_DURATION = re.compile(rf"{_PART}(?:(?:,|and|\s)*{_PART})*", re.IGNORECASE)
_TRIGGER = re.compile(
    r"(?:try\s*again|retry(?:ing)?|resets?|renews?|available(?:\s*again)?|ends|until|wait)(?:\s|:|in\b|in(?=\d)|at|on|after|for)*"
    r"|reached\s*\|\s*",
    re.IGNORECASE,
)
_TIME = r"(?:(?P<h>\d{1,2})(?::(?P<m>\d\d))?\s*(?P<half>[ap])\.?m\.?|(?P<h24>\d{1,2}):(?P<m24>\d\d)(?::\d\d)?)"
_ZONE = r"(?:\s*\((?P<zone>[A-Za-z][\w+\-/]{1,40})\)|\s*(?P<utc>UTC|GMT|Z)(?![a-z]))?"
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_NAMED = (
    rf"(?P<name>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.?\s*(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s*(?P<year>\d{{4}}))?"
)
_NUMERIC = r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})"
_CALENDAR = tuple(
    re.compile(rf"{date}(?:,|\s|at(?=[\s\d]))*(?:{_TIME})?{_ZONE}", re.IGNORECASE) for date in (_NAMED, _NUMERIC)
)
_TIME_OF_DAY = re.compile(_TIME + _ZONE, re.IGNORECASE)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T\s]?(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?\s*(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE)
_BARE = re.compile(r"\d{1,15}(?:\.\d{1,9})?(?![\w:/])")


class _Clock(NamedTuple):
    now: datetime
    zone: tzinfo

    def until(self, moment: datetime) -> timedelta:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=self.zone)
        # Within one zone Python subtracts wall clocks; through UTC it counts what passes.
        return _bounded((aware.astimezone(UTC) - self.now.astimezone(UTC)).total_seconds())


def _bounded(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST_WAIT.total_seconds()))


def _seconds_of(match: re.Match[str]) -> timedelta:
    total = 0.0
    for number, word in _DURATION_PART.findall(match[0]):
        unit = word.lower()
        short = next((s for s in ("ms", "mo") if unit.startswith(s)), "ms" if unit.startswith("mil") else unit[0])
        total += float(number) * _UNIT_S[short]
    return _bounded(total)


def _number(number: float, clock: _Clock) -> timedelta:
    """Read seconds from now, or since 1970 (in milliseconds, too)."""
    if number < EPOCH_FROM:
        return _bounded(number)
    return _bounded((number if number < EPOCH_MS_FROM else number / 1000) - clock.now.timestamp())


def _zone(match: re.Match[str], clock: _Clock) -> tzinfo:
    if match["utc"]:
        return UTC
    try:
        return ZoneInfo(match["zone"]) if match["zone"] else clock.zone
    except (LookupError, ValueError, OSError):
        return clock.zone


def _time_of(match: re.Match[str]) -> tuple[int, int]:
    """Return hour and minute; midnight where the text names none."""
    if match["h24"]:
        return int(match["h24"]), int(match["m24"])
    if not match["h"]:
        return 0, 0
    if not 1 <= int(match["h"]) <= 12:
        raise ValueError(match[0])
    return int(match["h"]) % 12 + (12 if match["half"].lower() == "p" else 0), int(match["m"] or 0)


def _next_time_of_day(match: re.Match[str], clock: _Clock) -> timedelta:
    hour, minute = _time_of(match)
    here = clock.now.astimezone(_zone(match, clock))
    moment = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return clock.until(moment if moment >= here - CLOCK_SLACK else moment + timedelta(days=1))


def _calendar(match: re.Match[str], clock: _Clock) -> timedelta:
    """Read a date; one without a year is the next such day, or today."""
    hour, minute = _time_of(match)
    zone = _zone(match, clock)
    here = clock.now.astimezone(zone)
    named = match.groupdict().get("name")
    month = _MONTHS.index(named[:3].lower()) + 1 if named else int(match["month"])
    if match["year"]:
        return clock.until(datetime(int(match["year"]), month, int(match["day"]), hour, minute, tzinfo=zone))
    moment = datetime(here.year, month, int(match["day"]), hour, minute, tzinfo=zone)
    return clock.until(moment if moment >= here - timedelta(days=1) else moment.replace(year=here.year + 1))


def _iso(match: re.Match[str], clock: _Clock) -> timedelta:
    return clock.until(datetime.fromisoformat(f"{match[1]}T{match[2]}{(match[3] or '').upper()}"))


def _time_at(text: str, position: int, clock: _Clock) -> timedelta | None:
    """Read the time that begins at `position`, in any of the forms."""
    if match := _ISO.match(text, position):
        return _iso(match, clock)
    for pattern in _CALENDAR:
        if match := pattern.match(text, position):
            return _calendar(match, clock)
    if match := _DURATION.match(text, position):
        return _seconds_of(match)
    if match := _TIME_OF_DAY.match(text, position):
        return _next_time_of_day(match, clock)
    return _number(float(match[0]), clock) if (match := _BARE.match(text, position)) else None


def _tried(text: str, position: int, clock: _Clock) -> timedelta | None:
    try:
        return _time_at(text, position, clock)
    except (ValueError, OverflowError):
        return None


def _said_time(text: str, clock: _Clock) -> timedelta | None:
    """Return the wait of the first `try again in 11.054s`, `resets 12:50am (America/Los_Angeles)` and the like."""
    for form in (text, _compact(text)):
        for trigger in _TRIGGER.finditer(form):
            if (wait := _tried(form, trigger.end(), clock)) is not None:
                return wait
    return None


def _value_time(value: object, clock: _Clock, *, unit: float = 1.0) -> timedelta | None:
    """Read a header or a field: a number, `6m0s`, RFC 3339 or the date of RFC 9110."""
    text = normalise(str(value))[:60]
    if _NUMBER.fullmatch(text):
        return _number(float(text) * unit, clock)
    try:
        if match := _DURATION.fullmatch(text):
            return _seconds_of(match)
        if match := _ISO.fullmatch(text):
            return _iso(match, clock)
        moment = parsedate_to_datetime(text)
        return clock.until(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, TypeError, LookupError, OverflowError):
        return None


# Typed errors

_CODES: dict[str, LimitKind] = {
    code: kind
    for kind, codes in {
        LimitKind.RATE_LIMITED: "ratelimit ratelimiterror ratelimitexceeded toomanyrequests",
        LimitKind.USAGE_EXHAUSTED: "usagelimitreached usagelimitexceeded insufficientquota billinghardlimitreached "
        "billingerror quotaexceeded usagenotincluded errormaxbudgetusd",
        LimitKind.OVERLOADED: "overloaded overloadederror serveroverloaded serverisoverloaded servererror apierror "
        "internalservererror unavailable slowdown",
        LimitKind.AUTH: "authentication authenticationerror authenticationfailed invalidapikey unauthorized "
        "unauthenticated permissionerror permissiondenied accountdeactivated",
        LimitKind.CONTEXT_FULL: "contextlengthexceeded contextwindowexceeded requesttoolarge",
        LimitKind.TOOL_CALL_LIMIT: "errormaxturns fatalturnlimitederror",
        LimitKind.OFFLINE: "httpconnectionfailed responsestreamconnectionfailed responsestreamdisconnected",
        LimitKind.UNKNOWN: "resourceexhausted",
    }.items()
    for code in codes.split()
}
_CODE_FIELDS = frozenset(["type", "code", "status", "error", "errortype", "codexerrorinfo", "subtype"])
_STATUS_FIELDS = frozenset(["code", "status", "statuscode", "apierrorstatus", "errorstatus", "httpstatuscode"])
_MESSAGE_FIELDS = frozenset(["message", "result", "error", "errors", "detail", "responsebody"])
_WAIT_FIELDS = {"resetsinseconds": 1.0, "resetafterseconds": 1.0, "retryafter": 1.0, "retryafterseconds": 1.0,
                "retrydelay": 1.0, "retrydelayms": 0.001, "retryafterms": 0.001}  # fmt: skip
_RESET_FIELDS = frozenset(["resetsat", "resetat"])
_FOREIGN_FIELDS = frozenset(["permissiondenials", "toolinput", "toolresult", "content", "item", "items"])
"""They hold the words of the model or the output of tools."""
_NODES = 400
_DEPTH = 12


class _Facts:
    """What the fields of an error say, wherever in its body they stand."""

    def __init__(self, headers: Mapping[str, Any] | None = None) -> None:
        self.codes: list[str] = []
        self.statuses: list[int] = []
        self.messages: list[str] = []
        self.quotas: list[str] = []
        self.waits: list[tuple[object, float]] = []
        self.resets: list[object] = []
        self.headers = {key.lower(): str(value) for key, value in (headers or {}).items()}
        self._left = _NODES

    def collect(self, value: object, field: str = "", depth: int = 0) -> None:
        self._left -= 1
        if self._left < 0 or depth > _DEPTH or field in _FOREIGN_FIELDS:
            return
        if isinstance(value, dict):
            if field in ("headers", "responseheaders"):
                self.headers.update({str(key).lower(): str(item) for key, item in value.items()})
            for key, item in value.items():
                if field == "codexerrorinfo":
                    self.codes.append(str(key))
                self.collect(item, _squeezed(str(key)), depth + 1)
        elif isinstance(value, list):
            for item in value:
                self.collect(item, field, depth + 1)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            self._leaf(field, value, depth)

    def _leaf(self, field: str, value: str | float, depth: int) -> None:
        if field in _WAIT_FIELDS:
            self.waits.append((value, _WAIT_FIELDS[field]))
        elif field in _RESET_FIELDS:
            self.resets.append(value)
        elif isinstance(value, str):
            self._words(field, value, depth)
        elif field in _STATUS_FIELDS and 400 <= value < 600:
            self.statuses.append(int(value))

    def _words(self, field: str, value: str, depth: int) -> None:
        if field == "quotaid":
            self.quotas.append(value)
        if field in _CODE_FIELDS:
            self.codes.append(value)
        if field not in _MESSAGE_FIELDS:
            return
        if value.lstrip().startswith("{") and (inner := _decoded(value)) is not None:
            self.collect(inner, "", depth + 1)
            return
        message = normalise(value[:LINE_CHARACTERS])
        self.messages.append(message)
        self.statuses += [int(head[1]) for head in _STATUS_HEAD.finditer(message)]


class _Found(NamedTuple):
    kind: LimitKind
    confidence: float
    evidence: str


def _squeezed(word: str) -> str:
    return word[:60].lower().replace("_", "").replace("-", "")


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _typed(facts: _Facts, clock: _Clock, source: LimitSource = LimitSource.TYPED) -> LimitHit | None:
    codes = [_Found(_CODES[word], 1.0, code) for code in facts.codes if (word := _squeezed(code)) in _CODES]
    coded = next((found for found in codes if found.kind is not LimitKind.UNKNOWN), None)
    said = next((found for message in facts.messages if (found := _phrase(message, anchored=False))), None)
    used_up = _header_kind(facts.headers)
    found = _by_quota(facts.quotas) or coded
    if found is None or (found is coded and found.kind is LimitKind.RATE_LIMITED):
        # A daily or weekly quota comes with the code of a rate limit, too.
        exhausted = (f for f in (said, used_up) if f and f.kind is LimitKind.USAGE_EXHAUSTED)
        found = next(exhausted, None) or found
    found = found or said or _by_status(facts.statuses) or used_up or next(iter(codes), None)
    if found is None:
        return None
    evidence = " ".join(facts.messages) or found.evidence
    chosen = LimitSource.HEADER if found is used_up and source is LimitSource.TYPED else source
    return _hit(found, _typed_time(facts, clock), evidence, chosen)


def _by_quota(ids: Sequence[str]) -> _Found | None:
    """Read Gemini's QuotaFailure: a quota of a day does not come back within minutes."""
    for mark, kind in (("PerDay", LimitKind.USAGE_EXHAUSTED), ("PerMinute", LimitKind.RATE_LIMITED)):
        if named := next((name for name in ids if mark in name), None):
            return _Found(kind, 1.0, named)
    return None


def _by_status(statuses: Sequence[int]) -> _Found | None:
    known = {401: LimitKind.AUTH, 403: LimitKind.AUTH, 402: LimitKind.USAGE_EXHAUSTED, 413: LimitKind.CONTEXT_FULL,
             408: LimitKind.OVERLOADED, 429: LimitKind.RATE_LIMITED}  # fmt: skip
    for status in statuses:
        kind = LimitKind.OVERLOADED if 500 <= status < 600 else known.get(status)
        if kind is not None:
            return _Found(kind, 0.8, f"HTTP {status}")
    return None


def _hit(found: _Found, wait: timedelta | None, evidence: str, source: LimitSource) -> LimitHit:
    return LimitHit(
        kind=found.kind.value,
        retry_after=wait,
        evidence=shorten(evidence, EVIDENCE_CHARACTERS),
        source=source.value,
        confidence=found.confidence,
        monthly=found.kind is LimitKind.USAGE_EXHAUSTED and "monthly" in evidence.lower(),
    )


def _typed_time(facts: _Facts, clock: _Clock) -> timedelta | None:
    def waits() -> Iterator[timedelta | None]:
        yield _header_time(facts.headers, clock)
        yield from (_value_time(value, clock, unit=unit) for value, unit in facts.waits)
        yield from (_value_time(value, clock) for value in facts.resets)
        yield from (_said_time(message, clock) for message in facts.messages)

    return next((wait for wait in waits() if wait is not None), None)


# Headers

_RESET_HEADER = re.compile(r"(x-ratelimit)-reset-?(.*)|(anthropic-ratelimit)-(?!unified)(.+)-reset")
_WINDOWS = ("primary", "secondary")


def _header_kind(headers: Mapping[str, str]) -> _Found | None:
    if headers.get("anthropic-ratelimit-unified-status") == "rejected":
        return _Found(LimitKind.USAGE_EXHAUSTED, 0.9, "anthropic-ratelimit-unified-status: rejected")
    for window in _full_windows(headers):
        return _Found(LimitKind.USAGE_EXHAUSTED, 0.9, f"x-codex-{window}-used-percent: 100")
    for name, _, used_up in _reset_headers(headers):
        if used_up:
            return _Found(LimitKind.RATE_LIMITED, 0.8, f"{name}: {headers[name]}")
    for name in ("retry-after-ms", "retry-after"):
        if name in headers:
            return _Found(LimitKind.RATE_LIMITED, 0.6, f"{name}: {headers[name]}")
    return None


def _full_windows(headers: Mapping[str, str]) -> list[str]:
    used = {window: headers.get(f"x-codex-{window}-used-percent", "") for window in _WINDOWS}
    return [window for window, text in used.items() if _NUMBER.fullmatch(text) and float(text) >= 100]


def _reset_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """Return name and value of each reset, and whether nothing is left until then."""
    for name, value in headers.items():
        if match := _RESET_HEADER.fullmatch(name):
            left = f"{match[1]}-remaining-{match[2]}".rstrip("-") if match[1] else f"{match[3]}-{match[4]}-remaining"
            yield name, value, headers.get(left) == "0"


def _header_time(headers: Mapping[str, str], clock: _Clock) -> timedelta | None:
    asked = _value_time(headers.get("retry-after-ms", ""), clock, unit=0.001)
    if asked is None:
        asked = _value_time(headers.get("retry-after", ""), clock)
    if asked is not None:
        return asked
    windows = _full_windows(headers) or _WINDOWS[:1]
    values = [headers.get(f"x-codex-{window}-reset-after-seconds", "") for window in windows]
    values.append(headers.get("anthropic-ratelimit-unified-reset", ""))
    resets = list(_reset_headers(headers))
    for group in (values, [v for _, v, used_up in resets if used_up], [v for _, v, _ in resets]):
        waits = [wait for value in group if (wait := _value_time(value, clock)) is not None]
        if waits:
            return max(waits)
    return None


# Status lines

_END = r"(?=\s*(?:$|[.·:;|!,(/]))"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace(" ", r"\s*"), re.IGNORECASE)


_PHRASES: tuple[tuple[LimitKind, float, re.Pattern[str]], ...] = tuple(
    (kind, confidence, _pattern(f"(?:{'|'.join(patterns)})"))
    for kind, confidence, patterns in (
        (
            LimitKind.TOOL_CALL_LIMIT,
            0.9,
            (
                r"(?:note: )?(?:by default, )?we (?:default )?stop the agent after \d+ tool calls\.",
                r"(?:you have |the agent has )?exceeded \d+ native tool calls",
                r"continue to iterate\?",
                r"copilot has been working on this problem for a while",
                r"reached max turns \(\d+\)",
                r"reached max session turns for this session",
            ),
        ),
        (
            LimitKind.USAGE_EXHAUSTED,
            0.9,
            (
                rf"claude (?:ai )?usage limit reached(?=\||{_END})",
                rf"(?:\d+-hour|session|daily|weekly|monthly|opus weekly) limit reached{_END}",
                rf"you(?:'ve| have) (?:hit|reached) your [\w.\s-]{{0,40}}?limits?(?:{_END}|(?= (?:for|resets)))",
                r"you're out of usage credits",
                r"quota exceeded\. check your plan and billing details",
                r"you exceeded your current quota",
                rf"the usage limit has been reached{_END}",
                rf"(?:your )?credit balance is too low(?: to|{_END})",
                r"you have exhausted your (?:capacity|daily quota) on this model",
                r"rate limit reached for [^:]{1,200}? per day",
            ),
        ),
        (
            LimitKind.RATE_LIMITED,
            0.9,
            (
                r"rate limit reached for \S{1,80}? (?:\(|in organization|on (?:tokens|requests) per)",
                r"this request would exceed your (?:account|organization)'s rate limit",
                r"sorry, you've hit a rate limit that restricts",
                r"suggested retry after \d",
                rf"429 too many requests{_END}",
            ),
        ),
        (
            LimitKind.OVERLOADED,
            0.9,
            (
                r"we're (?:currently )?experiencing high demand(?: for|, which)",
                r"we're having trouble connecting to the model provider",
                r"selected model is at capacity",
                rf"overloaded{_END}",
            ),
        ),
        (
            LimitKind.AUTH,
            0.9,
            (
                rf"not logged in{_END}",
                r"please run /login",
                r"authentication required\. please run '(?:cursor-)?agent login'",
                rf"invalid api key{_END}",
                r"incorrect api key provided",
                r"oauth token (?:has expired|has been revoked|revoked)",
                r"your access token could not be refreshed",
                r"too many free trial accounts used on this machine",
            ),
        ),
        (
            LimitKind.CONTEXT_FULL,
            0.9,
            (
                rf"prompt is too long{_END}",
                r"your conversation is too long\.",
                r"context limit reached ·",
                r"this model's maximum context length is \d",
                r"codex ran out of room in the model's context window",
                r"your input exceeds the context window of this model",
            ),
        ),
        (
            LimitKind.OFFLINE,
            0.8,
            (
                r"connection failed\. if the problem persists, please check your internet connection",
                r"connection error\.?$",
                r"unable to connect to api",
                r"reconnecting\.\.\. waiting for network",
                r"getaddrinfo (?:enotfound|eai_again)",
                r"stream disconnected before completion",
            ),
        ),
        (LimitKind.UNKNOWN, 0.3, (rf"\[?resource_exhausted(?:\]|{_END})",)),
    )
)
_STATUS_HEAD = _pattern(
    r"(?:api error|error code|unexpected status|(?:exceeded retry limit, )?last status|request rejected)"
    r"[:\s(]{0,4}([45]\d\d)"
    r"(?=\s*(?:$|[{·:;,.)(-]|too many requests|unauthorized|forbidden|payment required|internal server error|bad "
    r"(?:gateway|request)|service unavailable|gateway timeout|overloaded))"
)
_DECORATION = re.compile(r"[\s·■●○⏺⎿⚠✗✘✖❌⛔🛑!|]*")
_LABEL = re.compile(
    r"(?:\[[^\[\]]{1,60}\]|\d{4}-\d\d-\d\d[T\s]\d\d:\d\d\S{0,20}|(?:ERROR|WARN|WARNING|FATAL)(?=\s)|Provider\s*Error"
    r"|reconnecting\.\.\.\s*\d+/\d+\s*\(?"
    r"|(?!e\s|(?:assertion|value|type|key|index|lookup|name|attribute|syntax|import)error\b)"
    r"(?:[a-z][\w.]{0,60}(?:\s[\w.]{1,20}){0,2}?\s?(?:error|exception|failed|fatal|completion)|error|fatal|note|warning"
    r"|chatmessage|codex(?:_\w+|::\w+)*|claude|cursor-agent|copilot|gemini|opencode):)[\s*·-]*",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"'](\w{4,40})[\"']")
_EVENTS = frozenset({"error", "turn.failed", "session.error"})


def _from_text(text: str, clock: _Clock) -> LimitHit | None:
    """Return the limit of the last line that tells of one; an earlier one of its kind may know the time."""
    lines = text[-TEXT_CHARACTERS:].splitlines()[-TEXT_LINES:]
    last: LimitHit | None = None
    for number, line in enumerate(lines):
        if line.lstrip().startswith("{"):
            hit = _event(lines[number:], clock)
        else:
            hit = _status_text(lines[number : number + WRAPPED_LINES], clock)
        if hit and last and hit.kind == last.kind and hit.retry_after is None:
            hit = last if last.retry_after is not None else hit
        last = hit or last
    return last


def _event(lines: Sequence[str], clock: _Clock) -> LimitHit | None:
    """Read one event of an agent, or an error that is printed over several lines."""
    event = _decoded(lines[0]) or _decoded("\n".join(lines))
    if event is None or not _is_error(event):
        return None
    facts = _Facts()
    if event.get("type") == "rate_limit_event":
        facts.codes.append("usage_limit_reached")
    facts.collect(event)
    return _typed(facts, clock)


def _is_error(event: Mapping[str, Any]) -> bool:
    name = event.get("type", event.get("method"))
    if name is None:
        return "error" in event
    if name == "result":
        failed = event.get("is_error") is True or event.get("status") == "error"
        return failed or str(event.get("subtype")).startswith("error_max")
    if name == "rate_limit_event":
        info = event.get("rate_limit_info")
        return isinstance(info, dict) and info.get("status") == "rejected"
    return name in _EVENTS or (name == "system" and event.get("subtype") == "api_retry")


def _status_text(lines: Sequence[str], clock: _Clock) -> LimitHit | None:
    """Match the texts at the begin of the first line; the next ones may be its rest."""
    if not lines[0].strip():
        return None
    first, two, whole = (normalise("\n".join(line[:LINE_CHARACTERS] for line in lines[:n])) for n in (1, 2, len(lines)))
    for start in _starts(first):
        rest = whole[start:]
        for form in (first[start:], two[start:], rest, _compact(first[start:]), _compact(rest)):
            if head := _STATUS_HEAD.match(form):
                return _status_code(int(head[1]), rest, clock)
            if found := _phrase(form, anchored=True):
                rest = rest[:LINE_CHARACTERS]
                return _hit(found, _said_time(rest, clock), rest, LimitSource.TEXT)
    return None


def _starts(text: str) -> Iterator[int]:
    """Return where a status text may begin: at the start, and after each label; the last is the most telling."""
    position = _end(_DECORATION.match(text))
    starts = [position]
    while len(starts) < 8 and (label := _LABEL.match(text, position)):
        position = _end(_DECORATION.match(text, label.end()))
        starts.append(position)
    return reversed(starts)


def _end(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def _status_code(status: int, rest: str, clock: _Clock) -> LimitHit | None:
    """Read `unexpected status 429 ...: {body}` and `Error code: 429 - {'error': ...}`."""
    facts = _Facts()
    body = _decoded(rest[rest.find("{") :]) if "{" in rest else None
    facts.collect(body)
    facts.statuses.append(status)
    if body is None:
        facts.codes += _QUOTED.findall(rest)
    facts.messages.append(rest[:LINE_CHARACTERS])
    return _typed(facts, clock, LimitSource.TEXT)


def _phrase(text: str, *, anchored: bool) -> _Found | None:
    for kind, confidence, pattern in _PHRASES:
        if match := pattern.match(text) if anchored else pattern.search(text):
            return _Found(kind, confidence, match[0])
    return None
