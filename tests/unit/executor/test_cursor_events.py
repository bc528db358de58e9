"""The events that Cursor documents, and that its users recorded, are understood."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from activities.executor.agent.cursor import CursorReader
from activities.executor.agent.host import Ending
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import ErrorKind, EventKind, ExecutorEvent, ExecutorOutcome, ExecutorStatus

RECORDED = Path(__file__).parents[2] / "data" / "agents"
NOW = datetime(2025, 11, 10, 9, tzinfo=UTC)


def replayed(name: str) -> tuple[list[ExecutorEvent], ExecutorOutcome]:
    reader = CursorReader(now=lambda: NOW)
    events = []
    for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        events += reader.feed(line)
    assert reader.finished
    return events, reader.read_outcome(Ending(exit_code=0, output_end=""))


def failed(output_end: str, exit_code: int = 1) -> ExecutorOutcome:
    return CursorReader(now=lambda: NOW).read_outcome(Ending(exit_code=exit_code, output_end=output_end))


def test_completed_run_tells_its_session_tools_changes_and_tokens() -> None:
    events, outcome = replayed("cursor_completed")
    assert [event.kind for event in events] == [
        EventKind.STARTED,
        EventKind.SESSION,
        EventKind.MESSAGE,
        EventKind.TOOL_START,
        EventKind.TOOL_END,
        EventKind.FILE_CHANGE,
        EventKind.TOOL_START,
        EventKind.TOOL_END,
        EventKind.TOOL_END,
        EventKind.MESSAGE,
        EventKind.USAGE,
        EventKind.FINISHED,
    ]
    assert events[1].session_id == "c6b62c6f-7ead-4fd6-9922-e952131177ff"
    assert events[5].text == "notes.md"
    assert events[6].text == "shell: pytest -q"
    assert events[7].exit_code == 1
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.limit is None
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.cached_tokens, outcome.usage.output_tokens) == (132, 10, 45)


def test_rejected_command_is_listed_as_denied() -> None:
    events, outcome = replayed("cursor_rejected")
    assert EventKind.PERMISSION in [event.kind for event in events]
    assert outcome.denied == ("shell: python3 hello.py",)
    assert outcome.usage is not None
    assert not outcome.usage.known


def test_limit_is_read_from_standard_error_with_its_reset() -> None:
    outcome = failed(
        "Error: You've hit your usage limit\nGet Cursor Pro for more Agent usage, unlimited Tab, and more.\n"
        "chatMessage: *You've hit your free requests limit. Your usage limits will reset when your monthly cycle ends "
        "on 11/17/2025.*\nspendLimitHit: false"
    )
    assert outcome.limit is not None
    assert outcome.limit.kind == LimitKind.USAGE_EXHAUSTED
    assert outcome.limit.retry_after == timedelta(days=6, hours=15)
    assert outcome.error_kind is ErrorKind.USAGE_WINDOW


def test_events_repeated_on_standard_error_are_no_status_lines() -> None:
    words = {"type": "assistant", "message": {"content": [{"type": "text", "text": "You've hit your usage limit"}]}}
    outcome = failed(f"{json.dumps(words)}\nSegmentation fault", exit_code=139)
    assert outcome.limit is None
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.CRASHED)
    assert "Segmentation fault" in outcome.error
    assert "usage limit" not in outcome.error


def test_refusal_that_exits_with_zero_is_no_success() -> None:
    outcome = failed("Workspace Trust Required", exit_code=0)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.PROTOCOL)
    assert "Workspace Trust Required" in outcome.error


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["subtype", "message", "tool_call", "result", "usage", "is_error", "session_id"]),
    JSON | st.fixed_dictionaries({"shellToolCall": JSON}) | st.fixed_dictionaries({"editToolCall": JSON}),
)


@given(st.sampled_from(["system", "assistant", "tool_call", "result", "thinking", "new"]), FIELDS)
def test_no_event_can_break_the_reader(kind: str, fields: dict[str, Any]) -> None:
    reader = CursorReader()
    for event in reader.feed(json.dumps({"type": kind, **fields})):
        assert len(event.text) <= 500
    assert reader.read_outcome(Ending(exit_code=1, output_end="")).status in set(ExecutorStatus)
