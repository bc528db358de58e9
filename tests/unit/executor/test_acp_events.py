"""What is read out of the messages of the Agent Client Protocol, and what endings mean."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from acp.exceptions import RequestError
from hypothesis import given
from hypothesis import strategies as st

from activities.executor.agent.acp.events import (
    Turn,
    crash_outcome,
    error_outcome,
    mode_among,
    option_for,
    permission_of,
    turn_outcome,
    usage_of,
)
from tightloop.executor.model import ErrorKind, EventKind, ExecutorStatus, Usage
from tightloop.safety.rubric import Verdict

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FIELDS = ("sessionUpdate", "toolCallId", "status", "kind", "title", "content", "locations", "rawInput", "rawOutput")
UPDATES = ("agent_message_chunk", "tool_call", "tool_call_update", "usage_update", "plan", "something_new")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(("completed", "failed", "diff")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*FIELDS, "path", "text", "type")), inner)
    ),
    max_leaves=12,
)
updates = st.dictionaries(st.sampled_from(FIELDS), anything).flatmap(
    lambda fields: st.sampled_from(UPDATES).map(lambda kind: {**fields, "sessionUpdate": kind})
)


def chunk(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


@given(st.lists(updates, max_size=12))
def test_no_update_is_an_error(messages: list[dict[str, Any]]) -> None:
    turn = Turn()
    events = [event for message in messages for event in turn.read(message)] + turn.flush()
    assert all(len(event.text) <= 500 for event in events)
    assert turn.successes <= turn.tools


@given(anything)
def test_no_permission_request_is_an_error(params: Any) -> None:
    request = permission_of({"toolCall": params})
    assert request.kind
    assert request.title
    assert json.loads(request.model_dump_json())["command"] == request.command


@given(anything)
def test_no_options_are_an_error(options: Any) -> None:
    assert isinstance(option_for(Verdict.ALLOW, options), str)


def test_chunks_are_one_message_until_something_else_happens() -> None:
    turn = Turn()
    assert [turn.read(chunk("I ")), turn.read(chunk("look"))] == [[], []]
    said, began = turn.read({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "kind": "execute"})
    assert (said.kind, said.text, began.kind) == (EventKind.MESSAGE, "I look", EventKind.TOOL_START)
    turn.read(chunk("done"))
    assert [event.text for event in turn.flush()] == ["done"]
    assert (turn.message, turn.flush()) == ("done", [])


def test_a_tool_is_counted_once_however_an_agent_tells_of_it() -> None:
    turn = Turn()
    for status in ("pending", "in_progress", "completed"):
        turn.read({"sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "kind": "execute", "status": status})
    turn.read({"sessionUpdate": "tool_call_update", "toolCallId": "2", "kind": "edit", "status": "completed"})
    turn.read({"sessionUpdate": "tool_call_update", "toolCallId": "3", "kind": "execute", "status": "failed"})
    turn.read({"sessionUpdate": "tool_call_update", "toolCallId": "4", "kind": "read", "status": "completed"})
    assert (turn.tools, turn.successes) == (4, 2)


@pytest.mark.parametrize(
    "output", [{"exitCode": 3}, {"exit_code": 3}, {"output": "x", "metadata": {"exit": 3, "truncated": False}}]
)
def test_the_exit_code_is_found_where_agents_put_it(output: dict[str, Any]) -> None:
    turn = Turn()
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "title": "make", "status": "completed"}
    (ended,) = turn.read({**update, "rawOutput": output})
    assert (ended.kind, ended.text, ended.exit_code) == (EventKind.TOOL_END, "make", 3)


def test_changed_files_are_events() -> None:
    diff = {"type": "diff", "path": "/w/app.py", "oldText": "a", "newText": "b"}
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "title": "Edit", "content": [diff]}
    turn = Turn()
    assert [event.text for event in turn.read({**update, "status": "completed"})] == ["/w/app.py", "Edit"]
    assert [event.kind for event in turn.read({**update, "status": "failed"})] == [EventKind.TOOL_END]


@pytest.mark.parametrize(
    ("call", "command", "kind"),
    [
        ({"kind": "execute", "title": "t", "rawInput": {"command": "rm -rf x"}}, "rm -rf x", "execute"),
        ({"title": "t", "rawInput": {"command": ["bash", "-lc", "ls"]}}, "bash -lc ls", "execute"),
        ({"kind": "edit", "title": "Edit", "locations": [{"path": "/w/a"}]}, "", "edit"),
        ({"title": "Fetch"}, "", "other"),
    ],
)
def test_a_permission_request_says_what_is_wanted(call: dict[str, Any], command: str, kind: str) -> None:
    request = permission_of({"toolCall": call})
    assert (request.command, request.kind, request.title) == (command, kind, call["title"])


def test_an_option_is_chosen_by_its_kind_and_for_once() -> None:
    options = [
        {"optionId": "proceed_always", "kind": "allow_always"},
        {"optionId": "proceed_once", "kind": "allow_once"},
        {"optionId": "cancel", "kind": "reject_once"},
    ]
    assert option_for(Verdict.ALLOW, options) == "proceed_once"
    assert option_for(Verdict.ALLOW, options[:1]) == "proceed_always"
    assert option_for(Verdict.DENY, options) == "cancel"
    assert option_for(Verdict.DENY, options[:2]) == ""
    assert option_for(Verdict.ASK, options) == ""


def test_a_mode_is_found_by_its_id_or_the_end_of_it() -> None:
    modes = [{"id": "read-only"}, {"id": "https://example.org/session-modes#agent"}]
    session = {"modes": {"currentModeId": "read-only", "availableModes": modes}}
    assert mode_among(session, "agent") == "https://example.org/session-modes#agent"
    assert mode_among(session, "read-only") == ""
    assert mode_among(session, "yolo") == ""
    assert mode_among({}, "agent") == ""


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (
            {"usage": {"inputTokens": 5, "outputTokens": 2, "cachedReadTokens": 1}},
            Usage(input_tokens=5, output_tokens=2, cached_tokens=1),
        ),
        (
            {"_meta": {"quota": {"token_count": {"input_tokens": 7, "output_tokens": 3}}}},
            Usage(input_tokens=7, output_tokens=3),
        ),
        ({"usage": {"inputTokens": "many"}}, Usage()),
        ({}, Usage()),
    ],
)
def test_tokens_are_read_where_agents_put_them(answer: dict[str, Any], usage: Usage) -> None:
    assert usage_of(answer) == usage


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestError(-32603, "Internal error", {"errorKind": "rate_limit"}), ExecutorStatus.LIMIT_HIT, ErrorKind.RATE),
        (
            RequestError(-32603, "Internal error", {"codex_error_info": "usage_limit_exceeded"}),
            ExecutorStatus.FATAL,
            ErrorKind.QUOTA,
        ),
        (
            RequestError(
                -32603,
                "Internal error: Incorrect API key provided. You can find your API key at the console.",
                {"service": "session", "errorName": "APIError"},
            ),
            ExecutorStatus.FATAL,
            ErrorKind.AUTH,
        ),
        (RequestError(401, "API key not valid."), ExecutorStatus.FATAL, ErrorKind.AUTH),
        (RequestError(-32000, "Authentication required"), ExecutorStatus.FATAL, ErrorKind.AUTH),
        (RequestError(-32000, "Server error"), ExecutorStatus.FAILED, None),
        (RequestError(429, "Too many."), ExecutorStatus.LIMIT_HIT, ErrorKind.RATE),
        (RequestError(-32602, "Invalid params"), ExecutorStatus.FAILED, ErrorKind.PROTOCOL),
        (RequestError(-32603, "Internal error", "it broke"), ExecutorStatus.FAILED, None),
    ],
)
def test_errors_of_the_agents_are_understood(
    error: RequestError, status: ExecutorStatus, kind: ErrorKind | None
) -> None:
    outcome = error_outcome(error, now=NOW)
    assert (outcome.status, outcome.error_kind) == (status, kind)


def test_the_words_of_an_error_are_those_in_its_data() -> None:
    assert (
        error_outcome(RequestError(-32603, "Internal error", "it broke"), now=NOW).error
        == "the agent reported an error: it broke"
    )
    details = {"details": "No previous sessions found"}
    assert error_outcome(RequestError(-32603, "Internal error", details), now=NOW).error.endswith(
        ": No previous sessions found"
    )
    assert (
        error_outcome(RequestError(-32601, "Method not found"), now=NOW).error
        == "the agent reported an error: Method not found"
    )


def test_an_agent_that_died_is_read_for_limits() -> None:
    limited = crash_outcome(1, "boot\nYou've hit your limit · resets 2pm (UTC)\n", now=NOW)
    assert (limited.status, limited.limit and limited.limit.retry_after) == (
        ExecutorStatus.LIMIT_HIT,
        timedelta(hours=2),
    )
    assert (
        crash_outcome(None, "", now=NOW).error
        == "the agent closed the connection before it finished its work (no output)"
    )


def test_a_turn_that_ended_well_is_complete_whatever_the_model_says() -> None:
    turn = Turn()
    turn.read(chunk("You've hit your limit · resets 2pm (UTC)"))
    assert turn_outcome("end_turn", turn, (), now=NOW, reads_text=False).status is ExecutorStatus.COMPLETED
    assert turn_outcome("end_turn", turn, (), now=NOW, reads_text=True).status is ExecutorStatus.LIMIT_HIT
    turn.tools = 1
    assert turn_outcome("end_turn", turn, (), now=NOW, reads_text=True).status is ExecutorStatus.COMPLETED
