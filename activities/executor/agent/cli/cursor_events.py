"""Reads what Cursor's `agent -p --output-format stream-json` prints, by its documentation; never run against it."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from activities.executor.agent.lenient import (
    decode_event,
    denied_lines,
    event,
    local_now,
    number,
    part,
    said,
    words,
)
from activities.executor.agent.port import Ending, EventReader
from activities.executor.ending import failed_outcome, limited_outcome
from tightloop.executor.limit_matcher import detect
from tightloop.executor.model import (
    DENIED_LINES,
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
)
from tightloop.executor.usage import Usage
from tightloop.value import clip, shorten

_WRITING = frozenset({"write", "edit", "delete", "editNotebook", "applyPatch"})
_SHOWN = ("command", "path", "globPattern", "pattern", "url", "query")


class CursorReader(EventReader):
    """Reads one run. No event reports a failure: text on standard error and the exit code do."""

    def __init__(self, *, now: Callable[[], datetime] = local_now) -> None:
        self._now = now
        self._result: dict[str, Any] | None = None
        self._message = ""
        self._denied: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether its `result` has come."""
        return self._result is not None

    def feed(self, line: str) -> list[ExecutorEvent]:
        """Read one line; see the port."""
        found = decode_event(line)
        if found is None:
            return [event(EventKind.UNKNOWN, line)] if line.strip() else []
        match words(found, "type"):
            case "system" if words(found, "subtype") == "init":
                about = f"cursor, model {words(found, 'model')}, {words(found, 'permissionMode')}"
                return [
                    event(EventKind.STARTED, about),
                    event(EventKind.SESSION, session_id=words(found, "session_id")),
                ]
            case "system":
                return [event(EventKind.UNKNOWN, f"system {words(found, 'subtype')}")]
            case "assistant":
                text = said(part(found, "message"))
                self._message = clip(text, 4 * SUMMARY_CHARACTERS) or self._message
                return [event(EventKind.MESSAGE, text)] if text else []
            case "tool_call":
                return self._read_tool_call(found)
            case "result":
                self._result = found
                ended = event(EventKind.FINISHED, f"{words(found, 'subtype')}: {words(found, 'result')}")
                usage = _usage(part(found, "usage"))
                tokens = event(EventKind.USAGE, f"input {usage.input_tokens}, output {usage.output_tokens} tokens")
                return [tokens, ended] if usage.known else [ended]
            case "user" | "thinking":
                return []
            case kind:
                return [event(EventKind.UNKNOWN, kind)]

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        """Return the outcome of the run; see the port."""
        result = self._result or {}
        if result and result.get("is_error") is not True:
            answer = words(result, "result") or self._message
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=clip(answer, SUMMARY_CHARACTERS))
        else:
            outcome = self._failure(words(result, "result"), ending)
        return outcome.evolve(
            summary=outcome.summary or shorten(self._message, SUMMARY_CHARACTERS),
            exit_code=ending.exit_code,
            usage=_usage(part(result, "usage")),
            denied=denied_lines(self._denied),
        )

    def _read_tool_call(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        name, call = _find_tool(part(found, "tool_call"))
        shown = _describe(name, part(call, "args"))
        if words(found, "subtype") != "completed":
            return [event(EventKind.TOOL_START, shown)]
        result = part(call, "result")
        if "rejected" in result:
            rejected = _describe(name, part(result, "rejected")) if shown == name else shown
            if len(self._denied) < DENIED_LINES:
                self._denied.append(rejected)
            return [event(EventKind.TOOL_END, f"{rejected}: rejected"), event(EventKind.PERMISSION, rejected)]
        outcome = next((word for word in result if isinstance(result[word], dict)), "")
        ended = event(
            EventKind.TOOL_END, f"{shown}: {outcome or 'done'}", exit_code=number(part(result, outcome), "exitCode")
        )
        if name in _WRITING and outcome == "success":
            path = words(part(call, "args"), "path") or words(part(result, outcome), "path")
            return [ended, event(EventKind.FILE_CHANGE, path)]
        return [ended]

    def _failure(self, result: str, ending: Ending) -> ExecutorOutcome:
        # Some versions repeat their events on standard error: these hold the words of the model.
        lines = [line for line in ending.output_end.splitlines() if decode_event(line) is None]
        end = "\n".join([*lines, result]).strip()
        if limit := detect(end, now=self._now()):
            return limited_outcome(limit, clip(end, SUMMARY_CHARACTERS))
        error = f"cursor ended with {ending.exit_code} and without a result: {end or 'it said nothing'}"
        kind = ErrorKind.CRASHED if ending.exit_code else ErrorKind.PROTOCOL
        return failed_outcome(clip(error, SUMMARY_CHARACTERS), kind)


def _find_tool(tool_call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tool of a call, `shell` for `shellToolCall`, and its arguments and result."""
    for key in tool_call:
        if key.endswith("ToolCall"):
            return key.removesuffix("ToolCall"), part(tool_call, key)
    function = part(tool_call, "function")
    return words(function, "name") or "tool", function


def _describe(name: str, given: Mapping[str, Any]) -> str:
    value = next((text for field in _SHOWN if (text := words(given, field))), "")
    return f"{name}: {value}" if value else name


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Add what was read from and written to the cache to the input: that it is left out there is not verified."""
    cached = number(usage, "cacheReadTokens")
    given, answered = number(usage, "inputTokens"), number(usage, "outputTokens")
    if given is None or answered is None:
        return Usage()
    written = number(usage, "cacheWriteTokens") or 0
    return Usage(input_tokens=given + (cached or 0) + written, cached_tokens=cached, output_tokens=answered)
