"""Finds the limit of a provider or an agent in what it said when it stopped.

A repository can contain each of the texts: a text counts only where it begins a line, after labels such as `Error:`.
Events of an agent that carry the words of a model or the output of a tool are skipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from tightloop.executor.limit import LimitSignal, LimitSource
from tightloop.executor.limit_facts import LINE_CHARACTERS, Facts, decode, make_hit, match_phrase, normalise, phrases
from tightloop.executor.model import LimitHit
from tightloop.executor.reset_time import Clock, find_wait

TEXT_CHARACTERS = 64_000
"""Only the end of a text is read."""
TEXT_LINES = 50
WRAPPED_LINES = 6
"""Lines over which a screen may spread one status text."""
MAXIMUM_LABELS = 8

_QUOTED = re.compile(r"[\"'](\w{4,40})[\"']")
_ERROR_EVENTS = frozenset({"error", "turn.failed", "session.error"})


def detect(signal: str | LimitSignal, *, now: datetime, zone: tzinfo | None = None) -> LimitHit | None:
    """Return the limit that a signal reports; None where it reports none. Never raises.

    Args:
        signal: what was said; a string is taken as status lines.
        now: when it was said; without a zone it is UTC.
        zone: zone of the times that name none; by default that of `now`.
    """
    given = LimitSignal(text=signal) if isinstance(signal, str) else signal
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    clock = Clock(aware, zone or aware.tzinfo or UTC)
    # Every answer may carry the headers: without an error they only report what is left.
    if given.status_code is None or given.status_code >= 400:
        facts = Facts(given.headers)
        if given.status_code is not None:
            facts.statuses.append(given.status_code)
        facts.codes += [given.error_code, given.error_type]
        facts.collect(given.body)
        if hit := facts.find_limit(clock):
            return hit
    return _read_text(given.text, clock)


def _read_text(text: str, clock: Clock) -> LimitHit | None:
    """Return the limit of the last line that reports one; an earlier one of its kind may know the time."""
    lines = text[-TEXT_CHARACTERS:].splitlines()[-TEXT_LINES:]
    # The last line counts: a limit before it may have passed.
    last: LimitHit | None = None
    for number, line in enumerate(lines):
        if line.lstrip().startswith("{"):
            hit = _read_event(lines[number:], clock)
        else:
            hit = _read_status(lines[number : number + WRAPPED_LINES], clock)
        if hit and last and hit.kind == last.kind and hit.retry_after is None:
            hit = last if last.retry_after is not None else hit
        last = hit or last
    return last


def _read_event(lines: Sequence[str], clock: Clock) -> LimitHit | None:
    """Read one event of an agent, or an error that is printed over several lines."""
    event = decode(lines[0]) or decode("\n".join(lines))
    if event is None or not _is_error(event):
        return None
    facts = Facts()
    if event.get("type") == "rate_limit_event":
        facts.codes.append("usage_limit_reached")
    facts.collect(event)
    return facts.find_limit(clock)


def _is_error(event: Mapping[str, Any]) -> bool:
    match event.get("type", event.get("method")):
        case None:
            return "error" in event
        case "result":
            # Claude Code reports a failed call of the API as `subtype: success` with `is_error: true`.
            failed = event.get("is_error") is True or event.get("status") == "error"
            return failed or str(event.get("subtype")).startswith("error_max")
        case "rate_limit_event":
            info = event.get("rate_limit_info")
            return isinstance(info, dict) and info.get("status") == "rejected"
        case "system":
            return event.get("subtype") == "api_retry"
        case str(name):
            return name in _ERROR_EVENTS
        case _:
            return False


def _read_status(lines: Sequence[str], clock: Clock) -> LimitHit | None:
    """Match the texts at the beginning of the first line; the next ones may be its rest."""
    if not lines[0].strip():
        return None
    data = phrases()
    first, two, whole = (normalise("\n".join(line[:LINE_CHARACTERS] for line in lines[:n])) for n in (1, 2, len(lines)))
    for start in _find_starts(first):
        rest = whole[start:]
        # A screen may wrap the text, or drop its spaces: "You'vehityourweeklylimit".
        for form in (first[start:], two[start:], rest, "".join(first[start:].split()), "".join(rest.split())):
            if head := data.status_head.match(form):
                return _read_status_code(int(head[1]), rest, clock)
            if found := match_phrase(form, anchored=True):
                rest = rest[:LINE_CHARACTERS]
                return make_hit(found, find_wait(rest, clock), rest, LimitSource.TEXT)
    return None


def _find_starts(text: str) -> Iterator[int]:
    """Return where a status text may begin: at the start, and after each label; the last says most."""
    data = phrases()

    def skip_decoration(position: int) -> int:
        match = data.decoration.match(text, position)
        return match.end() if match else position

    starts = [skip_decoration(0)]
    while len(starts) < MAXIMUM_LABELS and (label := data.label.match(text, starts[-1])):
        starts.append(skip_decoration(label.end()))
    return reversed(starts)


def _read_status_code(status: int, rest: str, clock: Clock) -> LimitHit | None:
    """Read `unexpected status 429 ...: {body}` and `Error code: 429 - {'error': ...}`."""
    facts = Facts()
    body = decode(rest[rest.find("{") :]) if "{" in rest else None
    facts.collect(body)
    facts.statuses.append(status)
    if body is None:
        facts.codes += _QUOTED.findall(rest)
    facts.messages.append(rest[:LINE_CHARACTERS])
    return facts.find_limit(clock, LimitSource.TEXT)
