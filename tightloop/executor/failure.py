"""Failed deliveries: detection of those that failed at once, and of limits in an agent's last words."""

import itertools
import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import assert_never

from tightloop.executor.limit import (
    TEXT_CHARACTERS,
    Facts,
    LimitAction,
    LimitKind,
    LimitSource,
    Match,
    choose_action,
    decode,
    detect,
    explain,
    make_hit,
    normalise,
    phrases,
)
from tightloop.executor.model import AT_ONCE_S, ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.executor.reset_time import Clock, find_any_wait

MAXIMUM_BODIES = 8
"""Maximum number of positions in an agent's last words at which to look for an error in JSON."""
LAST_WORDS_CHARACTERS = 4_000
WORDS_CONFIDENCE = 0.5
_KINDS: Mapping[str, ErrorKind] = {
    LimitKind.RATE_LIMITED: ErrorKind.RATE,
    LimitKind.OVERLOADED: ErrorKind.OVERLOADED,
    LimitKind.AUTH: ErrorKind.AUTH,
    LimitKind.CONTEXT_FULL: ErrorKind.CONTEXT_FULL,
    LimitKind.OFFLINE: ErrorKind.OFFLINE,
    LimitKind.TOOL_CALL_LIMIT: ErrorKind.BUDGET,
}


FROM_PLAN = frozenset({ErrorKind.STEP, ErrorKind.BUDGET})
"""Causes explained by the plan or one of our limits. The same delivery would fail again."""


def failed_at_once(outcome: ExecutorOutcome, took_s: float, *, moved: bool) -> bool:
    """Return whether a delivery ended in an error before it could do anything.

    Args:
        outcome: the delivery's outcome.
        took_s: duration of the delivery.
        moved: whether the working tree has changed.
    """
    is_error = outcome.status is ExecutorStatus.FAILED and outcome.error_kind not in FROM_PLAN
    return is_error and took_s < AT_ONCE_S and not moved


def refine_failure(outcome: ExecutorOutcome, now: datetime) -> ExecutorOutcome:
    """Add the limit that an agent's last words suggest to the outcome of a delivery that failed at once."""
    if outcome.limit is not None:
        return outcome
    limit = read_last_words(outcome.error or outcome.summary, now=now)
    if limit.kind == LimitKind.UNKNOWN:
        return outcome.evolve(limit=limit)
    refined = limited_outcome(limit, outcome.error)
    return outcome.evolve(
        status=refined.status, limit=limit, error=refined.error, error_kind=refined.error_kind or outcome.error_kind
    )


def limited_outcome(limit: LimitHit, error: str) -> ExecutorOutcome:
    """Return the outcome of a delivery that hit a provider limit. `error` is the agent's message."""
    kind = _KINDS.get(limit.kind)
    if limit.kind == LimitKind.USAGE_EXHAUSTED:
        # A provider names the time of a window that resets, but none for a quota that somebody has to raise.
        kind = ErrorKind.QUOTA if limit.retry_after is None else ErrorKind.USAGE_WINDOW
    match choose_action(limit):
        case LimitAction.WAIT:
            return ExecutorOutcome(status=ExecutorStatus.LIMIT_HIT, limit=limit, error=error, error_kind=kind)
        case LimitAction.PERSON:
            return ExecutorOutcome(status=ExecutorStatus.FATAL, limit=limit, error=explain(limit), error_kind=kind)
        case LimitAction.REPLAN:
            return ExecutorOutcome(status=ExecutorStatus.FAILED, limit=limit, error=explain(limit), error_kind=kind)
        case unknown:
            assert_never(unknown)


def read_last_words(text: str, *, now: datetime, zone: tzinfo | None = None) -> LimitHit:
    """Return the limit described by an agent's last words, given that the delivery failed at once.

    Unlike in `detect`, words and times count wherever they occur, because the failure itself is certain. The kind is
    UNKNOWN if no word indicates it.
    """
    hit = detect(text, now=now, zone=zone)
    aware = now if now.tzinfo else now.replace(tzinfo=UTC)
    clock = Clock(aware, zone or aware.tzinfo or UTC)
    end = text[-TEXT_CHARACTERS:]
    if hit is None:
        facts = Facts()
        for brace in itertools.islice(re.finditer(r"\{", end), MAXIMUM_BODIES):
            facts.collect(decode(end[brace.start() :]))
        hit = facts.find_limit(clock, LimitSource.TEXT)
    whole = normalise(end[-LAST_WORDS_CHARACTERS:])
    if hit is None or hit.kind == LimitKind.UNKNOWN:
        named = ((kind, pattern) for kind, pattern in phrases().words if pattern.search(whole))
        kind, pattern = next(named, (LimitKind.UNKNOWN, re.compile("")))
        lines = [normalise(line) for line in end.splitlines() if line.strip()]
        line = next((line for line in lines if pattern.search(line)), whole) if kind is not LimitKind.UNKNOWN else ""
        match = Match(kind, WORDS_CONFIDENCE, line or (lines[-1] if lines else ""))
        hit = make_hit(match, hit.retry_after if hit else None, match.evidence, LimitSource.TEXT)
    if hit.retry_after is None and hit.kind not in (LimitKind.AUTH, LimitKind.CONTEXT_FULL):
        hit = hit.evolve(retry_after=find_any_wait(whole, clock))
    return hit
