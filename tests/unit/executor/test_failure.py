"""Failed deliveries: the evidence decides that one failed at once, its last words only what happens then."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.limit import (
    LimitAction,
    LimitKind,
    choose_action,
    failed_at_once,
    read_last_words,
    refine_failure,
)
from tightloop.executor.model import ErrorKind, ExecutorOutcome, ExecutorStatus, LimitHit
from tightloop.executor.reset_time import LONGEST_WAIT

CORPUS = Path(__file__).parents[2] / "data" / "last_words"
NOW = datetime(2026, 3, 13, 21, tzinfo=UTC)
SHORT_S = 60
"""A wait that nobody named may be read from the agent's own retries if it is not longer."""


def texts(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((CORPUS / f"{name}.yaml").read_text(encoding="utf-8"))
    return [{"now": document["now"], **entry} for entry in document["texts"]]


def acts_as_labelled(entry: dict[str, Any]) -> bool:
    now = entry["now"] if entry["now"].tzinfo else entry["now"].replace(tzinfo=UTC)
    hit = read_last_words(entry["text"], now=now)
    wait = hit.retry_after.total_seconds() if hit.retry_after is not None else None
    wanted = entry.get("wait_s")
    if "at" in entry:
        wanted = ((entry["at"] if entry["at"].tzinfo else entry["at"].replace(tzinfo=UTC)) - now).total_seconds()
    is_wait_right = wait == wanted if wanted is not None else wait is None or wait <= SHORT_S
    return choose_action(hit) == entry["action"] and is_wait_right


@pytest.mark.parametrize("entry", texts("looked_at"), ids=lambda entry: entry["text"][:60])
def test_last_words_act_as_labelled(entry: dict[str, Any]) -> None:
    assert acts_as_labelled(entry)


def test_of_words_that_were_not_looked_at_95_of_100_act_as_labelled() -> None:
    held_back = texts("held_back")
    wrong = [entry["text"] for entry in held_back if not acts_as_labelled(entry)]
    assert len(held_back) >= 35
    assert len(wrong) <= 0.05 * len(held_back), wrong


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("come back in 45 min", timedelta(minutes=45)),
        ("cooldown: 300s", timedelta(minutes=5)),
        ("the next window opens 22:30 UTC", timedelta(minutes=90)),
        ("back at 11pm", timedelta(hours=2)),
        ("reset after 0h1m25s", timedelta(seconds=85)),
        ("available again at 2026-03-13T22:00:00Z", timedelta(hours=1)),
        ("Retry-After: 3600", timedelta(hours=1)),
        ("the gate lifts on Mar 14 at 9am", timedelta(hours=12)),
        ("it timed out after 30 s", None),
        ("100 requests per 1 minute", None),
        ("2026-03-13 14:00:00,123 - ERROR - it broke", None),
        ("[17:56:25] agent exited", None),
        ("5-hour limit reached", None),
        ("gpt-5.3s said no", None),
        ("Request ID: F3E8:12948C:2FAE35B:694165D9", None),
    ],
)
def test_times_are_understood_wherever_they_stand(text: str, wait: timedelta | None) -> None:
    assert read_last_words(text, now=NOW).retry_after == wait


def failed(error: str = "it broke", **fields: Any) -> ExecutorOutcome:
    return ExecutorOutcome(status=ExecutorStatus.FAILED, error=error, **fields)


@pytest.mark.parametrize(
    ("outcome", "took_s", "moved", "expected"),
    [
        (failed(), 1.0, False, True),
        (failed(), 59.0, False, True),
        (failed(), 61.0, False, False),
        (failed(), 1.0, True, False),
        (failed(error_kind=ErrorKind.CRASHED), 1.0, False, True),
        (failed(error_kind=ErrorKind.STEP), 1.0, False, False),
        (failed(error_kind=ErrorKind.BUDGET), 1.0, False, False),
        (ExecutorOutcome(status=ExecutorStatus.COMPLETED), 1.0, False, False),
        (ExecutorOutcome(status=ExecutorStatus.NO_CHANGE), 1.0, False, False),
        (ExecutorOutcome(status=ExecutorStatus.REFUSED), 1.0, False, False),
        (ExecutorOutcome(status=ExecutorStatus.TIMED_OUT), 1.0, False, False),
    ],
)
def test_only_a_short_delivery_with_an_error_and_without_a_change_failed_at_once(
    outcome: ExecutorOutcome, took_s: float, moved: bool, expected: bool
) -> None:
    assert failed_at_once(outcome, took_s, moved=moved) is expected


def test_words_decide_whether_to_wait_to_ask_or_to_begin_a_new_session() -> None:
    statuses = {
        "API Error: Repeated 529 Overloaded errors": (ExecutorStatus.LIMIT_HIT, ErrorKind.OVERLOADED),
        "your session has expired, sign in again": (ExecutorStatus.FATAL, ErrorKind.AUTH),
        "prompt is too long: 210171 tokens": (ExecutorStatus.FAILED, ErrorKind.CONTEXT_FULL),
        "kaboom": (ExecutorStatus.FAILED, None),
    }
    refined = {text: refine_failure(failed(text), NOW) for text in statuses}
    assert {text: (outcome.status, outcome.error_kind) for text, outcome in refined.items()} == statuses
    assert all(outcome.limit is not None for outcome in refined.values())


def test_what_an_adapter_knows_already_is_kept() -> None:
    known = failed("please run /login", limit=LimitHit(kind="context_full"))
    assert refine_failure(known, NOW) is known


@given(
    st.text() | st.lists(st.sampled_from(["{", '"a":', "resets ", "1766502000", "99 days", "25:00", "\n"])).map("".join)
)
def test_no_words_make_it_raise_or_wait_wrongly(text: str) -> None:
    hit = read_last_words(text, now=NOW)
    assert hit.retry_after is None or timedelta() <= hit.retry_after <= LONGEST_WAIT
    assert hit.kind in list(LimitKind)
    assert choose_action(hit) in list(LimitAction)
