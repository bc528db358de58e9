"""Parser that determines, from status texts, fields and headers, when a limit ends."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

LONGEST_WAIT = timedelta(days=31)
"""Longest plausible wait. If a reset is more than a billing month away, the number was misread."""
CLOCK_SLACK = timedelta(minutes=2)
"""Time within which a time of day that has just passed means now rather than tomorrow, because agents omit the seconds.
"""
EPOCH_FROM = 1e9
"""Lower limit of Unix timestamps in seconds (this value is in 2001). Smaller numbers are seconds from now."""
EPOCH_MS_FROM = 1e11
"""Lower limit of Unix timestamps in milliseconds (this value is in 1973)."""

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "mo": 2_592_000.0}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
# Seen: "28ms", "11.054s", "6m0s", "5 days 22 hours 11 minutes".
_PART = (
    r"(\d{1,9}(?:\.\d{1,9})?)\s*"
    r"(milliseconds?|months?|minutes?|seconds?|hours?|weeks?|days?|mins?|secs?|hrs?|(?:ms|[smhdw])(?![a-z]))"
)
# "6:21 PM", "12pm", "18:21:00"; with the zone "7:28pm (UTC)", "12:50am (America/Los_Angeles)".
_TIME = r"(?:(?P<h>\d{1,2})(?::(?P<m>\d\d))?\s*(?P<half>[ap])\.?m\.?|(?P<h24>\d{1,2}):(?P<m24>\d\d)(?::\d\d)?)"
_ZONE = r"(?:\s*\((?P<zone>[A-Za-z][\w+\-/]{1,40})\)|\s*(?P<utc>UTC|GMT|Z)(?![a-z]))?"
# Codex: "Mar 18th, 2026 4:51 PM"; Claude Code: "Oct 3, 10am"; Cursor: "11/17/2025".
_NAMED = (
    rf"(?P<name>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.?\s*(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s*(?P<year>\d{{4}}))?"
)
_NUMERIC = r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})"


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_TRIGGER = _compile(
    r"(?:try(?:ing)?\s*again|retry(?:ing)?|resets?|renews?|available(?:\s*again)?|ends|until|wait)"
    r"(?:[\s:=_\"'-]|in\b|in(?=\d)|at|on|after|for)*"
    r"|reached\s*\|\s*"
)
# Words after which a time says how long something took or how much is allowed, not when it ends.
_PAST = _compile(
    r"(?:\b(?:per|every|each|last|past|previous|took|for|within|total|than|used|over|since|elapsed|lasted|ran|of|max|maximum)"
    r"|time-?outs?|timed\s*out(?:\s*after)?|failed\s*after|gave\s*up\s*after|limit|attempts?)[\s:=(]*(?:a|an|the)?\s*$"
)
_AGO = _compile(r"\s*(?:ago|elapsed|timeout|limit|window|usage|session|interval|period)\b")
_AT = _compile(r"\b(?:at|until|till|by|from|after|on)\s*$")
_BEFORE_CHARACTERS = 30
_NUMBER = _compile(r"\d{1,15}(?:\.\d{1,9})?")
_LONE_NUMBER = _compile(r"\d{1,15}(?:\.\d{1,9})?(?![\w:/])")
_EPOCH = _compile(r"1[5-9]\d{8}(?:\d{3})?(?![\w.])")
_DURATION_PART = _compile(_PART)
_DURATION = _compile(rf"{_PART}(?:(?:,|and|\s)*{_PART})*")
_TIME_OF_DAY = _compile(_TIME + _ZONE)
_CALENDAR = tuple(_compile(rf"{date}(?:,|\s|at(?=[\s\d]))*(?:{_TIME})?{_ZONE}") for date in (_NAMED, _NUMERIC))
_ISO = _compile(r"(\d{4}-\d\d-\d\d)[T\s]?(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?\s*(Z|[+-]\d\d:?\d\d)?")


class Clock(NamedTuple):
    """Time of a message, and the default time zone for times in the message."""

    now: datetime
    zone: tzinfo

    def wait_until(self, moment: datetime) -> timedelta:
        """Return the time until `moment`, clamped between zero and `LONGEST_WAIT`."""
        aware = moment if moment.tzinfo else moment.replace(tzinfo=self.zone)
        # Within one zone Python subtracts wall clock times; UTC yields elapsed time.
        return _bound((aware.astimezone(UTC) - self.now.astimezone(UTC)).total_seconds())


def find_wait(text: str, clock: Clock) -> timedelta | None:
    """Return the first waiting time mentioned in a text, or None.

    Examples are `try again in 11.054s` and `resets 12:50am (America/Los_Angeles)`.
    """
    # Some screens drop the spaces, so the text is also read without them.
    for form in (text, "".join(text.split())):
        for trigger in _TRIGGER.finditer(form):
            try:
                wait = _read_time_at(form, trigger.end(), clock)
            # Such as 25:00; a later phrase may still have a time.
            except (ValueError, OverflowError):
                continue
            if wait is not None:
                return wait
    return None


def find_any_wait(text: str, clock: Clock) -> timedelta | None:
    """Return the waiting time given in the text of a failure, or None.

    The words before the time do not matter. Durations that describe the past or an allowance are ignored,
    such as `timed out after 30 s` or `per minute`. Times in the past, such as in log lines, are ignored
    too.
    """
    if (wait := find_wait(text, clock)) is not None:
        return wait
    for pattern in (_DURATION, _ISO, *_CALENDAR, _TIME_OF_DAY, _EPOCH):
        for match in pattern.finditer(text):
            try:
                wait = _read_time_at(text, match.start(), clock) if _is_ahead(text, match) else None
            except (ValueError, OverflowError):
                continue
            if wait:
                return wait
        # Otherwise the end of a log line's time stamp is read again as a time of day.
        text = pattern.sub("", text) if pattern is _ISO else text
    return None


def _is_ahead(text: str, match: re.Match[str]) -> bool:
    """Return True if the words around a time suggest that the time is the end of a wait."""
    start = max(0, match.start() - _BEFORE_CHARACTERS)
    if _PAST.search(text, start, match.start()):
        return False
    # Part of an id or a version, such as `2FAE35B:694165D9`.
    before, after = text[: match.start()][-1:], text[match.end() : match.end() + 1]
    if before.isalnum() or before in ("_", ".", "/", "-") or after.isalnum():
        return False
    if match.re is _DURATION and _AGO.match(text, match.end()):
        return False
    if match.re is _TIME_OF_DAY and match["h24"] and not (match["utc"] or match["zone"]):
        return _AT.search(text, start, match.start()) is not None
    return True


def read_wait(value: object, clock: Clock, *, unit: float = 1.0) -> timedelta | None:
    """Parse the wait time given in a header or field.

    The value is a number in units of `unit` seconds, a duration such as `6m0s`, an RFC 3339 time or an
    RFC 9110 date.
    """
    # Bounded before the patterns run, because the sender controls it.
    text = str(value)[:80].strip()
    if _NUMBER.fullmatch(text):
        return _read_number(float(text) * unit, clock)
    try:
        if match := _DURATION.fullmatch(text):
            return _read_duration(match)
        if match := _ISO.fullmatch(text):
            return _read_iso(match, clock)
        moment = parsedate_to_datetime(text)
        return clock.wait_until(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, TypeError, LookupError, OverflowError):
        return None


def _bound(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST_WAIT.total_seconds()))


def _read_time_at(text: str, position: int, clock: Clock) -> timedelta | None:
    """Parse the time at `position`. All supported formats are recognized.

    Raises:
        ValueError, OverflowError: the text looks like a time but is invalid, such as 25:00.
    """
    # The most specific form first: the start of a date also matches a lone number.
    if match := _ISO.match(text, position):
        return _read_iso(match, clock)
    for pattern in _CALENDAR:
        if match := pattern.match(text, position):
            return _read_date(match, clock)
    if match := _DURATION.match(text, position):
        return _read_duration(match)
    if match := _TIME_OF_DAY.match(text, position):
        hour, minute = _read_time_of_day(match)
        local_now = clock.now.astimezone(_read_zone(match, clock))
        moment = local_now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return clock.wait_until(moment if moment >= local_now - CLOCK_SLACK else moment + timedelta(days=1))
    return _read_number(float(match[0]), clock) if (match := _LONE_NUMBER.match(text, position)) else None


def _read_number(number: float, clock: Clock) -> timedelta:
    """Convert a number to a wait.

    The number is either in seconds from now, or a Unix timestamp in seconds or milliseconds.
    """
    if number < EPOCH_FROM:
        return _bound(number)
    return _bound((number if number < EPOCH_MS_FROM else number / 1000) - clock.now.timestamp())


def _read_duration(match: re.Match[str]) -> timedelta:
    total = 0.0
    for number, unit_name in _DURATION_PART.findall(match[0]):
        unit = unit_name.lower()
        # One letter is not enough: months and milliseconds start like minutes.
        short = next((s for s in ("ms", "mo") if unit.startswith(s)), "ms" if unit.startswith("mil") else unit[0])
        total += float(number) * _UNIT_S[short]
    return _bound(total)


def _read_iso(match: re.Match[str], clock: Clock) -> timedelta:
    return clock.wait_until(datetime.fromisoformat(f"{match[1]}T{match[2]}{(match[3] or '').upper()}"))


def _read_date(match: re.Match[str], clock: Clock) -> timedelta:
    """Parse a date. If the year is missing, use the next matching day, which may be today."""
    hour, minute = _read_time_of_day(match)
    zone = _read_zone(match, clock)
    local_now = clock.now.astimezone(zone)
    named = match.groupdict().get("name")
    month = _MONTHS.index(named[:3].lower()) + 1 if named else int(match["month"])
    moment = datetime(int(match["year"] or local_now.year), month, int(match["day"]), hour, minute, tzinfo=zone)
    # Up to a day ago it means now, because the message may be older than its detection.
    if not match["year"] and moment < local_now - timedelta(days=1):
        moment = moment.replace(year=local_now.year + 1)
    return clock.wait_until(moment)


def _read_time_of_day(match: re.Match[str]) -> tuple[int, int]:
    """Return the hour and minute. The default is midnight."""
    if match["h24"]:
        return int(match["h24"]), int(match["m24"])
    if not match["h"]:
        return 0, 0
    if not 1 <= int(match["h"]) <= 12:
        raise ValueError(match[0])
    return int(match["h"]) % 12 + (12 if match["half"].lower() == "p" else 0), int(match["m"] or 0)


def _read_zone(match: re.Match[str], clock: Clock) -> tzinfo:
    if match["utc"]:
        return UTC
    # A name in brackets can be anything: not in the database (LookupError), or not a path within it (ValueError).
    try:
        return ZoneInfo(match["zone"]) if match["zone"] else clock.zone
    except (LookupError, ValueError, OSError):
        return clock.zone
