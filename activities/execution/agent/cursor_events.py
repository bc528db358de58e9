"""Reads what Cursor's `agent -p --output-format stream-json` prints, by its documentation; never run against it."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from activities.execution.agent.port import Ending, EventReader
from activities.execution.agent.stream_json import (
    DENIED_LINES,
    decoded,
    denied_lines,
    event,
    local_now,
    number,
    part,
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
)
from tightloop.limit import detect
from tightloop.value import clip, shorten

_WRITING = frozenset({"write", "edit", "delete", "editNotebook", "applyPatch"})
_QUIET = frozenset({"user", "thinking"})
_SHOWN = ("command", "path", "globPattern", "pattern", "url", "query")


class CursorReader(EventReader):
    """Reads one run. Where it fails, no event tells it: text on standard error and the exit code do."""

    def __init__(self, *, now: Callable[[], datetime] = local_now) -> None:
        """Take the clock against which a reset is counted."""
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
        if not line.strip():
            return []
        found = decoded(line)
        if found is None:
            return [event(EventKind.UNKNOWN, line)]
        readers: dict[str, Callable[[dict[str, Any]], list[ExecutorEvent]]] = {
            "system": self._system,
            "assistant": self._assistant,
            "tool_call": self._tool_call,
            "result": self._end,
        }
        kind = words(found, "type")
        if kind in _QUIET:
            return []
        return readers[kind](found) if kind in readers else [event(EventKind.UNKNOWN, kind)]

    def verdict(self, ending: Ending) -> ExecutorOutcome:
        """Return what the run came to; see the port."""
        result = self._result or {}
        if result and result.get("is_error") is not True:
            told = words(result, "result") or self._message
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=clip(told, SUMMARY_CHARACTERS))
        else:
            outcome = self._failure(words(result, "result"), ending)
        return outcome.model_copy(
            update={
                "summary": outcome.summary or shorten(self._message, SUMMARY_CHARACTERS),
                "exit_code": ending.exit_code,
                "usage": _usage(part(result, "usage")),
                "denied": denied_lines(self._denied),
            }
        )

    def _system(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        if words(found, "subtype") != "init":
            return [event(EventKind.UNKNOWN, f"system {words(found, 'subtype')}")]
        about = f"cursor, model {words(found, 'model')}, {words(found, 'permissionMode')}"
        return [event(EventKind.STARTED, about), event(EventKind.SESSION, session_id=words(found, "session_id"))]

    def _assistant(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        text = said(part(found, "message"))
        if not text:
            return []
        self._message = clip(text, 4 * SUMMARY_CHARACTERS)
        return [event(EventKind.MESSAGE, text)]

    def _tool_call(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        name, call = _named(part(found, "tool_call"))
        shown = _shown(name, part(call, "args"))
        if words(found, "subtype") != "completed":
            return [event(EventKind.TOOL_START, shown)]
        result = part(call, "result")
        if "rejected" in result:
            rejected = _shown(name, part(result, "rejected")) if shown == name else shown
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

    def _end(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        self._result = found
        ended = event(EventKind.FINISHED, f"{words(found, 'subtype')}: {words(found, 'result')}")
        usage = _usage(part(found, "usage"))
        if not usage.known:
            return [ended]
        return [event(EventKind.USAGE, f"input {usage.input_tokens}, output {usage.output_tokens} tokens"), ended]

    def _failure(self, told: str, ending: Ending) -> ExecutorOutcome:
        # Some versions repeat their events on standard error: these hold the words of the model.
        lines = [line for line in ending.output_end.splitlines() if decoded(line) is None]
        end = "\n".join([*lines, told]).strip()
        if limit := detect(end, now=self._now()):
            return limited(limit, clip(end, SUMMARY_CHARACTERS))
        error = f"cursor ended with {ending.exit_code} and without a result: {end or 'it said nothing'}"
        kind = ErrorKind.CRASHED if ending.exit_code else ErrorKind.PROTOCOL
        return ExecutorOutcome(status=ExecutorStatus.FAILED, error=clip(error, SUMMARY_CHARACTERS), error_kind=kind)


def _named(tool_call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tool of a call, `shell` for `shellToolCall`, and its arguments and result."""
    for key in tool_call:
        if key.endswith("ToolCall"):
            return key.removesuffix("ToolCall"), part(tool_call, key)
    function = part(tool_call, "function")
    return words(function, "name") or "tool", function


def _shown(name: str, given: Mapping[str, Any]) -> str:
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
