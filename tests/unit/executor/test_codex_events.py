"""What `codex exec --json` printed, version 0.169.0, and what is made of it."""

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.executor.agent.codex import MACHINE, PLATFORM, CodexReader, native
from activities.executor.agent.host import Ending
from activities.executor.agent.program import toml
from tightloop.executor.limit import LimitKind
from tightloop.executor.model import ErrorKind, EventKind, ExecutorOutcome, ExecutorStatus, Usage

NOW = datetime(2026, 11, 21, 3, 30, tzinfo=UTC)
THREAD = {"type": "thread.started", "thread_id": "01a1fc28-8400-7151-87cf-b9909be53a70"}
TURN = {"type": "turn.started"}
NO_METADATA = {
    "type": "item.completed",
    "item": {
        "id": "item_0",
        "type": "error",
        "message": "Model metadata for `gpt-5` not found. Defaulting to fallback metadata; this can degrade it.",
    },
}
USAGE = {"input_tokens": 2000, "cached_input_tokens": 500, "output_tokens": 200, "reasoning_output_tokens": 0}
COMPLETED = {"type": "turn.completed", "usage": USAGE}
VIOLATION = (
    "2026-11-21T03:44:04.439215Z  WARN session_loop{}: codex_sandboxing::violation: recorded sandbox violation: "
    "resource=filesystem backend=linux_sandbox reason=read_only_file_system path=unknown"
)


def command(text: str, *, code: int | None = 0, output: str = "", status: str = "completed") -> dict[str, Any]:
    item = {"id": "item_1", "type": "command_execution", "command": text, "aggregated_output": output}
    return {"type": "item.completed", "item": {**item, "exit_code": code, "status": status}}


def message(text: str) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": text}}


def failed(text: str) -> list[dict[str, Any]]:
    return [{"type": "error", "message": text}, {"type": "turn.failed", "error": {"message": text}}]


def read(*events: dict[str, Any], resumed: bool = False) -> tuple[CodexReader, list[EventKind]]:
    reader = CodexReader(resumed=resumed, now=lambda: NOW)
    return reader, [found.kind for event in events for found in reader.feed(json.dumps(event))]


def outcome_of(*events: dict[str, Any], exit_code: int | None = 0, errors: str = "") -> ExecutorOutcome:
    reader, _ = read(*events)
    return reader.read_outcome(Ending(exit_code=exit_code, output_end=errors))


def test_a_turn_is_told_in_our_words() -> None:
    change = {
        "id": "item_3",
        "type": "file_change",
        "changes": [{"path": "a.py", "kind": "add"}],
        "status": "completed",
    }
    started = {"type": "item.started", "item": {"id": "item_1", "type": "command_execution", "command": "ls"}}
    events = (THREAD, NO_METADATA, TURN, started, command("ls"), {"type": "item.completed", "item": change})
    reader, kinds = read(*events, message("done"), COMPLETED)
    assert kinds == [
        EventKind.SESSION,
        EventKind.WARNING,
        EventKind.STARTED,
        EventKind.TOOL_START,
        EventKind.TOOL_END,
        EventKind.FILE_CHANGE,
        EventKind.MESSAGE,
        EventKind.USAGE,
        EventKind.FINISHED,
    ]
    assert reader.finished
    outcome = reader.read_outcome(Ending(exit_code=0, output_end=""))
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary == "done"
    assert outcome.usage == Usage(input_tokens=2000, cached_tokens=500, output_tokens=200)


def test_the_session_is_known_from_the_first_event() -> None:
    found = CodexReader().feed(json.dumps(THREAD))
    assert found[0].session_id == THREAD["thread_id"]


def test_the_tokens_of_a_resumed_thread_are_not_those_of_this_run() -> None:
    reader, _ = read(THREAD, TURN, COMPLETED, resumed=True)
    assert reader.read_outcome(Ending(exit_code=0, output_end="")).usage == Usage()


def test_failing_commands_are_named_beside_what_the_model_claims() -> None:
    outcome = outcome_of(THREAD, command("pytest", code=1), command("ls"), message("All tests pass!"), COMPLETED)
    assert outcome.status is ExecutorStatus.COMPLETED
    assert outcome.summary == "All tests pass! [1 of 2 commands failed, most recently pytest (exit 1)]"


def test_a_turn_in_which_nothing_was_allowed_is_refused() -> None:
    denied = command("touch a", code=1, output="touch: cannot touch 'a': Read-only file system")
    outcome = outcome_of(THREAD, denied, message("Done!"), COMPLETED)
    assert outcome.status is ExecutorStatus.REFUSED
    assert outcome.denied == ("touch a",)
    assert outcome_of(THREAD, denied, command("ls"), COMPLETED).status is ExecutorStatus.COMPLETED
    silent = outcome_of(THREAD, message("Done!"), COMPLETED, errors=VIOLATION)
    assert silent.status is ExecutorStatus.REFUSED
    assert "read_only_file_system" in silent.denied[0]


@pytest.mark.parametrize(
    ("text", "status", "kind", "limit", "wait"),
    [
        ("unexpected status 401 Unauthorized: Incorrect API key provided., url: http://127.0.0.1:1/v1/responses",
         ExecutorStatus.FATAL, ErrorKind.AUTH, LimitKind.AUTH, None),
        ("exceeded retry limit, last status: 429 Too Many Requests, request id: req_01",
         ExecutorStatus.LIMIT_HIT, ErrorKind.RATE, LimitKind.RATE_LIMITED, None),
        (("You\u2019ve hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro), visit "
         "https://chatgpt.com/settings/usage to purchase more credits or try again at 4:31 AM."),
         ExecutorStatus.LIMIT_HIT, ErrorKind.USAGE_WINDOW, LimitKind.USAGE_EXHAUSTED, timedelta(minutes=61)),
        ("Quota exceeded. Check your plan and billing details.",
         ExecutorStatus.FATAL, ErrorKind.QUOTA, LimitKind.USAGE_EXHAUSTED, None),
        ("We\u2019re currently experiencing high demand, which may cause temporary errors.",
         ExecutorStatus.LIMIT_HIT, ErrorKind.OVERLOADED, LimitKind.OVERLOADED, None),
        ("Connection failed: error sending request",
         ExecutorStatus.LIMIT_HIT, ErrorKind.OFFLINE, LimitKind.OFFLINE, None),
    ],
)  # fmt: skip
def test_a_failed_turn_says_which_limit_stopped_it(
    text: str, status: ExecutorStatus, kind: ErrorKind, limit: LimitKind, wait: timedelta | None
) -> None:
    outcome = outcome_of(THREAD, TURN, *failed(text), exit_code=1)
    assert (outcome.status, outcome.error_kind) == (status, kind)
    assert outcome.limit is not None
    assert (outcome.limit.kind, outcome.limit.retry_after) == (limit, wait)


def test_other_failures_of_a_turn_are_told_as_they_are() -> None:
    refused = '{"error": {"message": "Unsupported parameter: \'tools\'.", "type": "invalid_request_error"}}'
    outcome = outcome_of(THREAD, TURN, *failed(refused), exit_code=1)
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.PROTOCOL)
    assert "Unsupported parameter" in outcome.error
    lost = outcome_of(THREAD, TURN, *failed("unexpected status 404 Not Found: no such model"), exit_code=1)
    assert (lost.status, lost.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG)


def test_the_words_of_the_model_and_of_tools_are_never_taken_for_a_limit() -> None:
    words = "You've hit your usage limit. Try again at 4:31 AM."
    outcome = outcome_of(THREAD, command("cat log", output=words, code=1), message(words), exit_code=-9)
    assert (outcome.status, outcome.limit) == (ExecutorStatus.FAILED, None)
    assert outcome.error_kind is ErrorKind.CRASHED
    assert outcome_of(THREAD, command("ls"), message(words), COMPLETED).status is ExecutorStatus.COMPLETED


def test_only_an_unknown_thread_is_begun_anew() -> None:
    told = "Error: thread/resume: thread/resume failed: no rollout found for thread id 01a1fc25 (code -32600)"
    ending = Ending(exit_code=1, output_end=told)
    assert CodexReader(resumed=True).unknown_session(ending)
    assert not read(THREAD)[0].unknown_session(ending)
    assert not CodexReader(resumed=True).unknown_session(Ending(exit_code=1, output_end="Error: out of memory"))


def test_settings_that_codex_does_not_accept_are_fatal() -> None:
    outcome = outcome_of(exit_code=1, errors="Error loading config.toml: unexpected key or value")
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FATAL, ErrorKind.CONFIG)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(["thread.started", "item.started", "item.completed", "error", "turn.completed", "turn.failed"])
items = st.sampled_from(["command_execution", "file_change", "agent_message", "error", "new_kind"])


@given(lines=st.lists(st.text(max_size=60) | st.builds(
    lambda kind, item, more: json.dumps({"type": kind, "item": {**more, "type": item}, "error": more, **more}),
    kinds, items, st.dictionaries(st.sampled_from(["message", "usage", "changes", "command", "exit_code"]), values),
), max_size=8))  # fmt: skip
def test_no_line_breaks_the_reader(lines: list[str]) -> None:
    reader = CodexReader(now=lambda: NOW)
    for line in lines:
        reader.feed(line)
    outcome = reader.read_outcome(Ending(exit_code=1, output_end="\n".join(lines)))
    assert len(outcome.summary) <= 500
    assert len(outcome.error) <= 600


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=40) | st.lists(st.text(max_size=9)) | st.booleans()))
def test_settings_are_read_as_they_were_written_whatever_they_hold(table: dict[str, object]) -> None:
    assert tomllib.loads(toml({"": {}, "table": table})) == {"table": table}


def test_the_node_script_of_npm_stands_for_the_program_beside_it(tmp_path: Path) -> None:
    script = tmp_path / "@openai" / "codex" / "bin" / "codex.js"
    triple = f"{MACHINE}-{PLATFORM}"
    beside = tmp_path / "@openai" / "codex-any" / "vendor" / triple / "bin" / "codex"
    for file in (script, beside):
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/sh\n")
    link = tmp_path / "codex"
    link.symlink_to(script)
    assert native(link) == str(link), "it cannot be run"
    beside.chmod(0o755)
    assert native(link) == str(beside)
    assert native(beside) == str(beside)
