"""Reads what `claude -p --output-format stream-json` prints, as measured on version 2.1.197."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from activities.execution.agent.port import Ending, EventReader
from activities.execution.agent.stream_json import (
    decoded,
    denied_lines,
    event,
    local_now,
    number,
    part,
    parts,
    said,
    words,
)
from activities.execution.ending import limited
from tightloop.budget import Usage
from tightloop.executor import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
    LimitHit,
)
from tightloop.limit import LimitSignal, detect
from tightloop.value import clip, shorten

TOOLS_KEPT = 1_000
SESSION_UNKNOWN = "No conversation found with session ID"

_BUDGETS = {
    "error_max_turns": "max_turns (or max_model_calls)",
    "error_max_budget_usd": "max_budget_usd",
}
_WRITING = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
_READING = frozenset({"Read", "Glob", "Grep", "LS", "TodoWrite"})
_EXIT_CODE = re.compile(r"Exit code (\d{1,3})\b")
_MODEL_ERRORS = frozenset({"model_not_found"})


class ClaudeReader(EventReader):
    """Reads one run. An error of the provider is a `result` of subtype `success` with `is_error`."""

    def __init__(self, *, now: Callable[[], datetime] = local_now) -> None:
        """Take the clock against which a reset is counted."""
        self._now = now
        self._result: dict[str, Any] | None = None
        self._limit: LimitHit | None = None
        self._error = ""
        self._message = ""
        self._tools: dict[str, tuple[str, str]] = {}
        self._done = 0
        self._failures = 0
        self._versions: dict[str, str] = {}

    @property
    def finished(self) -> bool:
        """Whether its `result` has come."""
        return self._result is not None

    def feed(self, line: str) -> list[ExecutorEvent]:
        """Read one line; see the port."""
        if not line.strip():
            return []
        found = decoded(line)
        if found is None:
            return [event(EventKind.UNKNOWN, line)]
        readers: dict[str, Callable[[dict[str, Any]], list[ExecutorEvent]]] = {
            "system": self._system,
            "assistant": self._assistant,
            "user": self._user,
            "rate_limit_event": self._rate_limit,
            "result": self._end,
        }
        kind = words(found, "type")
        return readers[kind](found) if kind in readers else [event(EventKind.UNKNOWN, kind)]

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether it did nothing but refuse the session that it was to go on with."""
        told = ending.output_end if self._result is None else _told(self._result)
        return not self._versions and SESSION_UNKNOWN in told

    def verdict(self, ending: Ending) -> ExecutorOutcome:
        """Return what the run came to; see the port."""
        result = self._result
        outcome = self._without_result(ending) if result is None else self._judged(result, ending)
        return outcome.model_copy(
            update={
                "summary": outcome.summary or shorten(self._message, SUMMARY_CHARACTERS),
                "exit_code": ending.exit_code,
                "usage": _usage(result or {}),
                "denied": _denied(parts(result or {}, "permission_denials")),
                "versions": self._versions,
            }
        )

    # Events

    def _system(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        subtype = words(found, "subtype")
        if subtype == "init":
            version = words(found, "claude_code_version")
            self._versions = {"claude": version} if version else {}
            session_id = words(found, "session_id")
            about = f"claude {version}, model {words(found, 'model')}, {words(found, 'permissionMode')}"
            return [event(EventKind.STARTED, about), event(EventKind.SESSION, session_id=session_id)]
        if subtype == "api_retry":
            # Kept without words of a model: of use where no result follows.
            self._error = words(found, "error")
            return [event(EventKind.RETRYING, _retry(found))]
        if subtype == "compact_boundary":
            return [event(EventKind.WARNING, "the conversation was compacted: its context was nearly full")]
        return [event(EventKind.UNKNOWN, f"system {subtype}")]

    def _assistant(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        message = part(found, "message")
        text = said(message)
        if error := words(found, "error"):
            self._error = error
            return [event(EventKind.WARNING, f"{error}: {text}")]
        events = []
        if text:
            self._message = clip(text, 4 * SUMMARY_CHARACTERS)
            events.append(event(EventKind.MESSAGE, text))
        for block in parts(message, "content"):
            if words(block, "type") == "tool_use":
                events.append(self._tool_started(block))
        return events

    def _tool_started(self, block: dict[str, Any]) -> ExecutorEvent:
        name, given = words(block, "name"), part(block, "input")
        if len(self._tools) < TOOLS_KEPT:
            self._tools[words(block, "id")] = (name, words(given, "file_path"))
        return event(EventKind.TOOL_START, _call(name, given))

    def _user(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        events = []
        for block in parts(part(found, "message"), "content"):
            if words(block, "type") == "tool_result":
                events += self._tool_ended(block)
        return events

    def _tool_ended(self, block: dict[str, Any]) -> list[ExecutorEvent]:
        name, path = self._tools.pop(words(block, "tool_use_id"), ("", ""))
        text = words(block, "content") or said(block)
        failed = block.get("is_error") is True
        self._failures += failed
        self._done += not failed and name not in _READING
        code = _EXIT_CODE.match(text) if failed else None
        exit_code = int(code[1]) if code else (0 if name == "Bash" and not failed else None)
        ended = event(
            EventKind.TOOL_END, f"{name or 'tool'} {'failed' if failed else 'done'}: {text}", exit_code=exit_code
        )
        if name in _WRITING and not failed:
            return [ended, event(EventKind.FILE_CHANGE, path)]
        return [ended]

    def _rate_limit(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        info = part(found, "rate_limit_info")
        status, window = words(info, "status"), words(info, "rateLimitType")
        if status == "rejected" and info.get("isUsingOverage") is not True:
            told = f"the limit of the window {window!r} is reached"
            body = {"message": told, "resetsAt": info.get("resetsAt")}
            signal = LimitSignal(status_code=429, error_code="usage_limit_reached", body=body)
            self._limit = detect(signal, now=self._now())
            return [event(EventKind.LIMIT, told)]
        if status == "allowed":
            # A call that passed: an earlier rejection is over.
            self._limit = None
        return [event(EventKind.WARNING if status != "allowed" else EventKind.UNKNOWN, f"rate limit {status} {window}")]

    def _end(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        self._result = found
        usage = _usage(found)
        tokens = f"input {usage.input_tokens}, output {usage.output_tokens} tokens"
        ended = event(EventKind.FINISHED, f"{words(found, 'subtype')}: {_told(found)}")
        return [event(EventKind.USAGE, tokens), ended] if usage.known else [ended]

    # Verdict

    def _judged(self, result: dict[str, Any], ending: Ending) -> ExecutorOutcome:
        subtype, told = words(result, "subtype"), _told(result)
        if subtype == "success" and result.get("is_error") is not True:
            return self._completed(told, parts(result, "permission_denials"))
        if subtype in _BUDGETS:
            error = f"{told}: ended. Raise {_BUDGETS[subtype]} of the executor or plan less"
            return _failed(error, ErrorKind.BUDGET)
        status = number(result, "api_error_status")
        if limit := self._limit or self._detected(told, status):
            return limited(limit, clip(told, SUMMARY_CHARACTERS))
        if self._error in _MODEL_ERRORS or status == 404:
            return ExecutorOutcome(
                status=ExecutorStatus.FATAL,
                error=clip(f"{told} Set another model for the executor", SUMMARY_CHARACTERS),
                error_kind=ErrorKind.CONFIG,
            )
        return _failed(told or ending.output_end, ErrorKind.CONFIG if status else ErrorKind.CRASHED)

    def _completed(self, told: str, denials: list[dict[str, Any]]) -> ExecutorOutcome:
        """Judge a turn that completed: it does so, too, where nothing that it tried was allowed."""
        if denials and not self._done:
            tried = "; ".join(_denied(denials))
            return ExecutorOutcome(
                status=ExecutorStatus.REFUSED,
                error=clip(f"claude did nothing: it was not allowed to {tried}", SUMMARY_CHARACTERS),
            )
        noted = f" [{self._failures} of its tool calls failed]" if self._failures else ""
        summary = f"{shorten(told, SUMMARY_CHARACTERS - len(noted))}{noted}"
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=summary)

    def _detected(self, told: str, status: int | None) -> LimitHit | None:
        now = self._now()
        if status is None and (found := detect(told, now=now)):
            # No answer came: the type of the error is only a guess.
            return found
        typed = {"message": told, "type": self._error}
        return detect(LimitSignal(text=told, status_code=status, error_type=self._error, body=typed), now=now)

    def _without_result(self, ending: Ending) -> ExecutorOutcome:
        """Judge a run that ended before it said how: only status lines are left."""
        end = ending.output_end.strip()
        if limit := self._limit or detect(end, now=self._now()):
            return limited(limit, clip(end, SUMMARY_CHARACTERS))
        told = f"claude ended with {ending.exit_code} and without a result: {end or 'it said nothing'}"
        return _failed(told, ErrorKind.CRASHED if ending.exit_code else ErrorKind.PROTOCOL)


def _failed(error: str, kind: ErrorKind) -> ExecutorOutcome:
    return ExecutorOutcome(status=ExecutorStatus.FAILED, error=clip(error, SUMMARY_CHARACTERS), error_kind=kind)


def _told(result: dict[str, Any]) -> str:
    errors = result.get("errors")
    listed = "; ".join(item for item in errors if isinstance(item, str)) if isinstance(errors, list) else ""
    return words(result, "result") or listed


def _denied(denials: list[dict[str, Any]]) -> tuple[str, ...]:
    return denied_lines([_call(words(denial, "tool_name"), part(denial, "tool_input")) for denial in denials])


def _call(name: str, given: dict[str, Any]) -> str:
    known = (words(given, field) for field in ("command", "file_path", "path", "pattern", "url", "description"))
    return f"{name}: {next((value for value in known if value), '')}".rstrip(": ")


def _retry(found: dict[str, Any]) -> str:
    delay = found.get("retry_delay_ms")
    seconds = f"{delay / 1000:.1f}" if isinstance(delay, int | float) else "?"
    attempt, most = number(found, "attempt"), number(found, "max_retries")
    return f"retry {attempt} of {most} in {seconds} s: {words(found, 'error')} ({found.get('error_status')})"


def _usage(result: dict[str, Any]) -> Usage:
    """Sum the usage over the models: `usage` itself misses the last call where a budget ended the run."""
    models = [model for model in part(result, "modelUsage").values() if isinstance(model, dict)]
    if not models:
        return Usage()

    def total(*names: str) -> int:
        return sum(number(model, name) or 0 for model in models for name in names)

    cost = result.get("total_cost_usd")
    return Usage(
        input_tokens=total("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens"),
        cached_tokens=total("cacheReadInputTokens"),
        output_tokens=total("outputTokens"),
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )
