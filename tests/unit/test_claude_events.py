"""What Claude Code printed in real runs (version 2.1.197, against a server on loopback) is understood."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.execution.agent.claude_events import ClaudeReader
from activities.execution.agent.port import Ending
from tightloop.executor import ErrorKind, EventKind, ExecutorEvent, ExecutorOutcome, ExecutorStatus
from tightloop.limit import LimitKind, LimitSource

RECORDED = Path(__file__).parents[1] / "data" / "agents"
RESET = 1795238797
NOW = datetime.fromtimestamp(RESET, UTC) - timedelta(hours=2)


def replayed(name: str, exit_code: int = 1, output_end: str = "") -> tuple[list[ExecutorEvent], ExecutorOutcome]:
    reader = ClaudeReader(now=lambda: NOW)
    events = []
    for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        events += reader.feed(line)
    assert reader.finished
    return events, reader.verdict(Ending(exit_code=exit_code, output_end=output_end))


def kinds(events: list[ExecutorEvent]) -> list[EventKind]:
    return [event.kind for event in events]


def test_completed_run_tells_its_session_tools_tokens_and_words() -> None:
    events, outcome = replayed("claude_completed", exit_code=0)
    assert kinds(events) == [
        EventKind.STARTED,
        EventKind.SESSION,
        EventKind.TOOL_START,
        EventKind.TOOL_END,
        EventKind.MESSAGE,
        EventKind.USAGE,
        EventKind.FINISHED,
    ]
    assert events[1].session_id == "11111111-2222-4333-8444-555555555555"
    assert events[2].text == "Bash: echo hi"
    assert events[3].exit_code == 0
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary == "All done."
    assert outcome.usage is not None
    assert outcome.usage.model_dump() == {
        "input_tokens": 2640,
        "cached_tokens": 600,
        "output_tokens": 200,
        "cost_usd": 0.01555,
    }
    assert outcome.versions == {"claude": "2.1.197"}
    assert outcome.denied == ()


def test_exit_code_of_a_failed_command_is_told_and_the_run_counts_as_completed() -> None:
    events, outcome = replayed("claude_tool_failed", exit_code=0)
    assert [event.exit_code for event in events if event.kind is EventKind.TOOL_END] == [3]
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary == "All done. [1 of its tool calls failed]"


def test_session_that_claude_does_not_know_is_told_apart_from_other_failures() -> None:
    for name, unknown in (("claude_session_unknown", True), ("claude_offline", False)):
        reader = ClaudeReader(now=lambda: NOW)
        for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            reader.feed(line)
        assert reader.unknown_session(Ending(exit_code=1, output_end="")) is unknown


def test_edited_file_is_told_with_its_path() -> None:
    events, _ = replayed("claude_edited", exit_code=0)
    assert [event.text for event in events if event.kind is EventKind.FILE_CHANGE] == ["/srv/project/new.txt"]


@pytest.mark.parametrize(
    ("name", "denied"),
    [
        ("claude_denied", "Bash: touch denied2.txt"),
        ("claude_denied_edit", "Edit: /srv/project/new.txt"),
    ],
)
def test_denied_tool_is_listed_and_its_failed_edit_is_no_change(name: str, denied: str) -> None:
    events, outcome = replayed(name, exit_code=0)
    assert outcome.denied == (denied,)
    assert outcome.status is ExecutorStatus.REFUSED
    assert denied in outcome.error
    assert EventKind.FILE_CHANGE not in kinds(events)


@pytest.mark.parametrize(
    ("name", "status", "limit", "kind"),
    [
        ("claude_rate_limited", ExecutorStatus.LIMIT_HIT, LimitKind.RATE_LIMITED, ErrorKind.RATE),
        ("claude_overloaded", ExecutorStatus.LIMIT_HIT, LimitKind.OVERLOADED, ErrorKind.OVERLOADED),
        ("claude_offline", ExecutorStatus.LIMIT_HIT, LimitKind.OFFLINE, ErrorKind.OFFLINE),
        ("claude_unauthorized", ExecutorStatus.FATAL, LimitKind.AUTH, ErrorKind.AUTH),
        ("claude_not_logged_in", ExecutorStatus.FATAL, LimitKind.AUTH, ErrorKind.AUTH),
        ("claude_context_full", ExecutorStatus.FAILED, LimitKind.CONTEXT_FULL, ErrorKind.CONTEXT_FULL),
    ],
)
def test_error_of_the_provider_is_a_limit_although_its_result_is_called_success(
    name: str, status: ExecutorStatus, limit: LimitKind, kind: ErrorKind
) -> None:
    _, outcome = replayed(name)
    assert outcome.limit is not None
    assert (outcome.status, outcome.limit.kind, outcome.error_kind) == (status, limit, kind)
    assert outcome.error


def test_rejected_window_is_waited_for_until_its_typed_reset() -> None:
    events, outcome = replayed("claude_window_rejected")
    assert EventKind.LIMIT in kinds(events)
    assert outcome.limit is not None
    assert outcome.limit.kind == LimitKind.USAGE_EXHAUSTED
    assert outcome.limit.retry_after == timedelta(hours=2)
    assert outcome.limit.source == LimitSource.TYPED
    assert outcome.status is ExecutorStatus.LIMIT_HIT
    assert outcome.error_kind is ErrorKind.USAGE_WINDOW


def test_window_that_was_rejected_and_then_allowed_leaves_no_limit() -> None:
    reader = ClaudeReader(now=lambda: NOW)
    for status in ("rejected", "allowed"):
        info = {"status": status, "resetsAt": RESET, "rateLimitType": "five_hour"}
        reader.feed(json.dumps({"type": "rate_limit_event", "rate_limit_info": info}))
    reader.feed(json.dumps({"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": ["x"]}))
    outcome = reader.verdict(Ending(exit_code=1, output_end=""))
    assert outcome.limit is None
    assert outcome.status is ExecutorStatus.FAILED


@pytest.mark.parametrize("name", ["claude_max_turns", "claude_max_budget"])
def test_bound_of_the_order_is_a_budget_and_no_limit_of_a_provider(name: str) -> None:
    _, outcome = replayed(name)
    assert outcome.status is ExecutorStatus.FAILED
    assert outcome.error_kind is ErrorKind.BUDGET
    assert outcome.limit is None
    assert "Reached maximum" in outcome.error


def test_call_that_passed_the_budget_is_counted() -> None:
    _, outcome = replayed("claude_max_budget")
    assert outcome.usage is not None
    assert outcome.usage.output_tokens == 300


def test_model_that_does_not_exist_is_fatal() -> None:
    _, outcome = replayed("claude_model_not_found")
    assert outcome.status is ExecutorStatus.FATAL
    assert outcome.error_kind is ErrorKind.CONFIG
    assert "Set another model" in outcome.error


def test_words_of_the_model_are_no_limit() -> None:
    reader = ClaudeReader(now=lambda: NOW)
    text = "You've hit your usage limit. Try again in 5 days."
    reader.feed(json.dumps({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}))
    reader.feed(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": text}))
    outcome = reader.verdict(Ending(exit_code=0, output_end=""))
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.limit is None


def test_run_without_a_result_is_judged_by_its_status_lines() -> None:
    crashed = ClaudeReader(now=lambda: NOW).verdict(Ending(exit_code=134, output_end="Segmentation fault"))
    assert (crashed.status, crashed.error_kind) == (ExecutorStatus.FAILED, ErrorKind.CRASHED)
    assert "Segmentation fault" in crashed.error
    cut = ClaudeReader(now=lambda: NOW).verdict(Ending(exit_code=0, output_end=""))
    assert (cut.status, cut.error_kind) == (ExecutorStatus.FAILED, ErrorKind.PROTOCOL)
    limited = ClaudeReader(now=lambda: NOW).verdict(Ending(exit_code=1, output_end="Not logged in · Please run /login"))
    assert (limited.status, limited.error_kind) == (ExecutorStatus.FATAL, ErrorKind.AUTH)


def test_line_that_is_no_event_is_kept_as_unknown() -> None:
    reader = ClaudeReader()
    assert kinds(reader.feed("Warning: something new")) == [EventKind.UNKNOWN]
    assert kinds(reader.feed('{"type": "brand_new_event"}')) == [EventKind.UNKNOWN]
    assert reader.feed("  ") == []
    assert not reader.finished


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "subtype", "message", "content", "error", "rate_limit_info", "status", "resetsAt", "errors", "result",
            "usage", "modelUsage", "permission_denials", "tool_input", "is_error", "retry_delay_ms", "total_cost_usd",
        ]
    ),
    JSON,
)  # fmt: skip


@given(st.sampled_from(["system", "assistant", "user", "rate_limit_event", "result"]), FIELDS)
def test_no_event_can_break_the_reader(kind: str, fields: dict[str, Any]) -> None:
    reader = ClaudeReader()
    for event in reader.feed(json.dumps({"type": kind, **fields})):
        assert len(event.text) <= 500
    assert reader.verdict(Ending(exit_code=1, output_end="")).status in set(ExecutorStatus)
