"""The limit detector over everything that agents and providers are known to say."""

import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.limit import (
    EVIDENCE_CHARACTERS,
    LimitAction,
    LimitKind,
    LimitSignal,
    LimitSource,
    choose_action,
    detect,
    explain,
    normalise,
)
from tightloop.executor.model import LimitHit
from tightloop.executor.reset_time import LONGEST_WAIT

DATA = yaml.safe_load((Path(__file__).parents[2] / "data" / "limits.yaml").read_text(encoding="utf-8"))
TEXTS: list[dict[str, Any]] = [*DATA["texts"], *DATA["screens"]]
TYPED: list[dict[str, Any]] = [*DATA["typed"], *DATA["headers"]]
NEGATIVES: list[str] = DATA["negatives"]
NOW = datetime(2026, 3, 13, 14, tzinfo=timezone(-timedelta(hours=7)))

fields = st.text(max_size=8) | st.sampled_from(
    ["error", "type", "code", "status", "message", "details", "quotaId", "retryDelay", "resets_at", "resets_in_seconds"]
)
words = st.text(max_size=30) | st.sampled_from([entry["text"] for entry in TEXTS])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=12,
)
header_names = st.sampled_from(
    [
        "Retry-After",
        "retry-after-ms",
        "x-ratelimit-reset-requests",
        "x-ratelimit-remaining-requests",
        "anthropic-ratelimit-unified-reset",
        "anthropic-ratelimit-unified-status",
        "anthropic-ratelimit-tokens-reset",
        "x-codex-primary-used-percent",
        "x-codex-primary-reset-after-seconds",
    ]
)
values = st.text(max_size=20) | st.floats().map(str) | st.integers().map(str) | st.from_regex(r"\d{1,3}m\d{1,3}s")
beginnings = [
    "You've hit your usage limit. ",
    "Error: ",
    "API Error: ",
    "429",
    '{"error":',
    "[",
    "}",
    "\x1b[31m",
    "\n",
    "|",
]
times = ["try again in ", "try again at ", "resets ", "Mar 18th, 2026 ", "4:51 PM", "12:50am", "(UTC)", "(../x)"]
numbers = ["5 days", "99999999999", "11/17/2025", "2026-03-13T", "25:61"]
fragments = st.text(max_size=6) | st.sampled_from([*beginnings, *times, *numbers])
texts = st.lists(fragments, max_size=14).map("".join)
moments = st.datetimes(timezones=st.sampled_from([UTC, NOW.tzinfo, None]))


def signal(entry: dict[str, Any]) -> LimitSignal:
    return LimitSignal(
        text=entry.get("text", ""),
        status_code=entry.get("status"),
        error_type=entry.get("type", ""),
        error_code=entry.get("code", ""),
        body=entry.get("body"),
        headers=entry.get("headers", {}),
    )


def moment(entry: dict[str, Any], field: str) -> datetime:
    value = entry.get(field, DATA["now"])
    assert isinstance(value, datetime)
    assert value.tzinfo
    return value


def assert_hit(entry: dict[str, Any], hit: LimitHit | None) -> None:
    if entry["kind"] is None:
        assert hit is None
        return
    assert hit is not None
    assert hit.kind == entry["kind"]
    wait = timedelta(seconds=entry["wait_s"]) if "wait_s" in entry else None
    if "at" in entry:
        wait = moment(entry, "at") - moment(entry, "now")
    assert hit.retry_after == wait
    assert 0 < len(hit.evidence) <= EVIDENCE_CHARACTERS
    assert 0 < hit.confidence <= 1
    if "action" in entry:
        assert choose_action(hit) == entry["action"]


@pytest.mark.parametrize("entry", TEXTS, ids=lambda entry: entry["text"][:60])
def test_status_line_is_understood(entry: dict[str, Any]) -> None:
    assert_hit(entry, detect(entry["text"], now=moment(entry, "now")))


@pytest.mark.parametrize("entry", TYPED, ids=str)
def test_typed_error_is_understood(entry: dict[str, Any]) -> None:
    assert_hit(entry, detect(signal(entry), now=moment(entry, "now")))


@pytest.mark.parametrize("text", NEGATIVES)
def test_text_that_only_mentions_a_limit_is_none(text: str) -> None:
    assert detect(text, now=NOW) is None


@pytest.mark.parametrize("entry", TEXTS, ids=lambda entry: entry["text"][:60])
def test_quoted_or_commented_status_line_is_none(entry: dict[str, Any]) -> None:
    line = normalise(entry["text"])
    for mark in ('"{}"', "# {}", "// {}", "The agent then said {}", 'print("{}")', "+{}"):
        assert detect(mark.format(line), now=NOW) is None


@pytest.mark.parametrize("entry", TEXTS, ids=lambda entry: entry["text"][:60])
def test_status_line_is_found_among_the_last_words(entry: dict[str, Any]) -> None:
    text = "I changed app.py.\n\n1 failed, 3 passed in 0.12s\n" + entry["text"] + "\n"
    assert_hit(entry, detect(text, now=moment(entry, "now")))


def test_source_is_told() -> None:
    sources = [
        detect("You've hit your usage limit", now=NOW),
        detect(LimitSignal(status_code=429), now=NOW),
        detect(LimitSignal(headers={"retry-after": "3"}), now=NOW),
    ]
    assert [hit.source for hit in sources if hit] == [LimitSource.TEXT, LimitSource.TYPED, LimitSource.HEADER]


def test_a_code_is_surer_than_a_status_and_a_status_than_an_ambiguous_word() -> None:
    signals = [LimitSignal(error_code="rate_limit_exceeded"), LimitSignal(status_code=429)]
    sure = [hit.confidence for hit in (detect(s, now=NOW) for s in [*signals, "[resource_exhausted] Error"]) if hit]
    assert sure == sorted(sure, reverse=True)
    assert len(set(sure)) == 3


def test_time_without_a_zone_is_that_of_the_given_zone() -> None:
    text = "You've hit your usage limit. Try again at 6:21 PM."
    hit = detect(text, now=NOW, zone=UTC)
    assert hit is not None
    assert hit.retry_after == timedelta(hours=21, minutes=21)
    assert detect(text, now=NOW.replace(tzinfo=None)) == detect(text, now=NOW.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (LimitHit(kind="usage_exhausted"), LimitAction.PERSON),
        (LimitHit(kind="usage_exhausted", retry_after=timedelta(hours=6)), LimitAction.WAIT),
        (LimitHit(kind="usage_exhausted", retry_after=timedelta(hours=6, seconds=1)), LimitAction.PERSON),
        (LimitHit(kind="usage_exhausted", retry_after=timedelta(hours=1), monthly=True), LimitAction.PERSON),
        (LimitHit(kind="rate_limited", retry_after=timedelta(days=1)), LimitAction.PERSON),
        (LimitHit(kind="auth", retry_after=timedelta(seconds=1)), LimitAction.PERSON),
        (LimitHit(kind="context_full"), LimitAction.REPLAN),
        (LimitHit(kind="rate_limited"), LimitAction.WAIT),
        (LimitHit(kind="overloaded"), LimitAction.WAIT),
        (LimitHit(kind="tool_call_limit"), LimitAction.WAIT),
        (LimitHit(kind="offline"), LimitAction.WAIT),
        (LimitHit(kind="unknown"), LimitAction.WAIT),
        (LimitHit(kind="of a later version"), LimitAction.WAIT),
    ],
)
def test_only_a_limit_that_passes_soon_is_waited_for(limit: LimitHit, expected: LimitAction) -> None:
    assert choose_action(limit) is expected


@pytest.mark.parametrize("kind", list(LimitKind))
def test_sentence_says_what_was_said_and_what_to_do(kind: LimitKind) -> None:
    sentence = explain(LimitHit(kind=kind.value, evidence="the words", retry_after=timedelta(days=5, hours=1)))
    assert "'the words'" in sentence
    assert any(advice in sentence for advice in ("then resume", "Plan smaller", "or resume after the reset"))


def test_a_hit_of_an_old_history_can_be_read() -> None:
    old = LimitHit.model_validate({"kind": "rate_limited", "retry_after": "PT1S", "evidence": "429"})
    assert (old.source, old.confidence, old.monthly) == ("", 1.0, False)


@given(texts, moments)
def test_no_text_makes_it_raise_or_wait_wrongly(text: str, now: datetime) -> None:
    check_bounded(detect(text, now=now))


@given(st.text(), moments)
def test_no_characters_make_it_raise(text: str, now: datetime) -> None:
    check_bounded(detect(text, now=now))


@given(anything, st.dictionaries(header_names, values), st.none() | st.integers(), moments)
def test_no_error_makes_it_raise_or_wait_wrongly(
    body: object, headers: dict[str, str], status: int | None, now: datetime
) -> None:
    check_bounded(detect(LimitSignal(body=body, headers=headers, status_code=status), now=now))


def check_bounded(hit: LimitHit | None) -> None:
    if hit is not None:
        assert hit.retry_after is None or timedelta() <= hit.retry_after <= LONGEST_WAIT
        assert len(hit.evidence) <= EVIDENCE_CHARACTERS
        assert hit.kind in list(LimitKind)
        choose_action(hit)


@given(st.text() | texts)
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert "\n" not in once


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5_000,
        '{"a":' * 5_000,
        "{" * 60_000,
        "Error: " * 10_000,
        "a " * 30_000,
        "resets " * 9_000,
        "\x1b]" * 30_000,
    ],
    ids=lambda text: text[:8],
)
def test_no_hostile_text_takes_more_than_linear_time(text: str) -> None:
    def cost(hostile: str) -> float:
        before = time.process_time()
        check_bounded(detect(hostile, now=NOW))
        check_bounded(detect("You've hit your usage limit. " + hostile, now=NOW))
        check_bounded(detect(LimitSignal(body={"error": {"message": hostile}}), now=NOW))
        return time.process_time() - before

    assert cost(text) < 40 * cost(text[: len(text) // 10]) + 0.5


@pytest.mark.parametrize(
    "line", ['{"type": {}}', '{"type": [1]}', '{"method": {"a": 1}}', '{"type": 3, "error": "quota"}']
)
def test_event_whose_type_is_no_text_is_no_limit(line: str) -> None:
    assert detect(line, now=datetime(2026, 11, 21, tzinfo=UTC)) is None
