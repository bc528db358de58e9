"""Reads what `codex exec --json` prints, as measured on version 0.169.0."""

import re
from collections import deque
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
from tightloop.limit import LimitSignal, detect
from tightloop.value import clip, shorten

NO_SESSION = "no rollout found for thread id"
SESSION_IN_USE = "already has an active writer"
DENIED_KEPT = 50

_READ_ONLY = re.compile(r"read-only file system|operation not permitted|permission denied", re.IGNORECASE)
_NO_MODEL = re.compile(r"unexpected status 404|model\W.{0,80}\W(?:does not exist|not found|is not supported)")
_VIOLATION = re.compile(r"recorded sandbox violation: (.{1,200})")
"""A line of its log: a command that fails at once in the sandbox gives no event at all."""
_OFFLINE = "Connection failed"
_CONFIG = ("Error loading config.toml", "error: unexpected argument", "error: invalid value")


class CodexReader(EventReader):
    """Reads one run. An item of type `error` is a warning; only `turn.failed` and `error` are failures."""

    def __init__(self, *, resumed: bool = False, now: Callable[[], datetime] = local_now) -> None:
        """Take what the verdict needs to know.

        Args:
            resumed: the thread is older than this run, so its tokens are not those of this run alone.
            now: the clock against which a reset is counted.
        """
        self._resumed = resumed
        self._now = now
        self._began = False
        self._completed = False
        self._failed = False
        self._error = ""
        self._message = ""
        self._usage = Usage()
        self._commands = 0
        self._failures = 0
        self._last_failure = ""
        self._changes = 0
        self._denied: deque[str] = deque(maxlen=DENIED_KEPT)

    @property
    def finished(self) -> bool:
        """Whether its turn ended, well or not."""
        return self._completed or self._failed

    def feed(self, line: str) -> list[ExecutorEvent]:
        """Read one line; see the port."""
        if not line.strip():
            return []
        found = decoded(line)
        if found is None:
            return [event(EventKind.UNKNOWN, line)]
        readers: dict[str, Callable[[dict[str, Any]], list[ExecutorEvent]]] = {
            "thread.started": self._thread,
            "turn.started": self._turn,
            "item.started": self._item_started,
            "item.completed": self._item_completed,
            "error": self._trouble,
            "turn.completed": self._turn_completed,
            "turn.failed": self._turn_failed,
        }
        kind = words(found, "type")
        return readers[kind](found) if kind in readers else [event(EventKind.UNKNOWN, kind)]

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether it refused the thread that it was to resume, or had no file of it."""
        return not self._began and NO_SESSION in ending.output_end

    def verdict(self, ending: Ending) -> ExecutorOutcome:
        """Return what the run came to; see the port."""
        self._denied.extend(f"a command: {found[1]}" for found in _VIOLATION.finditer(ending.output_end))
        if self._completed:
            outcome = self._done()
        elif self._failed:
            outcome = self._judged(self._error)
        else:
            outcome = self._without_end(ending)
        return outcome.model_copy(
            update={
                "summary": shorten(self._summary(), SUMMARY_CHARACTERS),
                "exit_code": ending.exit_code,
                "usage": Usage() if self._resumed else self._usage,
                "denied": denied_lines(list(self._denied)),
            }
        )

    # Events

    def _thread(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        self._began = True
        return [event(EventKind.SESSION, session_id=words(found, "thread_id"))]

    def _turn(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        del found
        return [event(EventKind.STARTED)]

    def _item_started(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        item = part(found, "item")
        kind = words(item, "type")
        tools = ("command_execution", "mcp_tool_call", "web_search", "file_change")
        return [event(EventKind.TOOL_START if kind in tools else EventKind.UNKNOWN, _named(item))]

    def _item_completed(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        item = part(found, "item")
        match words(item, "type"):
            case "command_execution":
                return [self._command(item)]
            case "file_change":
                return [self._change(item)]
            case "agent_message":
                self._message = shorten(words(item, "text"), SUMMARY_CHARACTERS)
                return [event(EventKind.MESSAGE, words(item, "text"))]
            case "reasoning":
                return [event(EventKind.MESSAGE, words(item, "text"))]
            case "error":
                return [event(EventKind.WARNING, words(item, "message"))]
            case "mcp_tool_call" | "web_search":
                return [event(EventKind.TOOL_END, _named(item))]
            case kind:
                return [event(EventKind.UNKNOWN, kind)]

    def _command(self, item: dict[str, Any]) -> ExecutorEvent:
        self._commands += 1
        code, command, status = number(item, "exit_code"), words(item, "command"), words(item, "status")
        if status != "completed" or code != 0:
            self._failures += 1
            self._last_failure = f"{shorten(command, 160)} ({'exit ' + str(code) if code is not None else status})"
            if status == "declined" or _READ_ONLY.search(words(item, "aggregated_output")):
                self._denied.append(command)
        return event(EventKind.TOOL_END, f"{command}: {status}", exit_code=code)

    def _change(self, item: dict[str, Any]) -> ExecutorEvent:
        paths = ", ".join(words(change, "path") for change in parts(item, "changes"))
        if words(item, "status") == "completed":
            self._changes += 1
            return event(EventKind.FILE_CHANGE, paths)
        self._denied.append(f"change {paths}")
        return event(EventKind.TOOL_END, f"change {paths}: {words(item, 'status')}")

    def _trouble(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        self._error = words(found, "message")
        again = self._error.startswith("Reconnecting")
        return [event(EventKind.RETRYING if again else EventKind.WARNING, self._error)]

    def _turn_completed(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        self._completed = True
        used = part(found, "usage")
        self._usage = Usage(
            input_tokens=number(used, "input_tokens"),
            cached_tokens=number(used, "cached_input_tokens"),
            output_tokens=number(used, "output_tokens"),
        )
        tokens = f"input {self._usage.input_tokens}, output {self._usage.output_tokens} tokens of the thread"
        return [event(EventKind.USAGE, tokens), event(EventKind.FINISHED, "turn completed")]

    def _turn_failed(self, found: dict[str, Any]) -> list[ExecutorEvent]:
        self._failed = True
        self._error = words(part(found, "error"), "message") or self._error
        return [event(EventKind.FINISHED, f"turn failed: {self._error}")]

    # Verdict

    def _done(self) -> ExecutorOutcome:
        """Judge a turn that completed: it does so, too, where nothing that it tried was allowed."""
        if self._denied and not self._changes and self._failures == self._commands:
            tried = "; ".join(denied_lines(list(self._denied)))
            return ExecutorOutcome(
                status=ExecutorStatus.REFUSED,
                error=clip(f"codex did nothing: its sandbox did not allow {tried}", SUMMARY_CHARACTERS),
            )
        return ExecutorOutcome(status=ExecutorStatus.COMPLETED)

    def _judged(self, told: str) -> ExecutorOutcome:
        code = "http_connection_failed" if told.startswith(_OFFLINE) else ""
        signal = LimitSignal(text=told, error_code=code, body={"message": told})
        if limit := detect(signal, now=self._now()):
            return limited(limit, clip(told, SUMMARY_CHARACTERS))
        if _NO_MODEL.search(told):
            advice = "Set another model, or the base_url of its provider, for the executor codex"
            return _ended(ExecutorStatus.FATAL, f"codex cannot use its model: {told}. {advice}", ErrorKind.CONFIG)
        return _ended(ExecutorStatus.FAILED, f"codex's turn failed: {told or 'it did not say why'}", ErrorKind.PROTOCOL)

    def _without_end(self, ending: Ending) -> ExecutorOutcome:
        """Judge a run that ended before it said how: only status lines are left."""
        end = ending.output_end.strip()
        if not self._began and any(mark in end for mark in _CONFIG):
            return _ended(ExecutorStatus.FATAL, f"codex does not accept its settings: {end}", ErrorKind.CONFIG)
        if SESSION_IN_USE in end:
            return _ended(ExecutorStatus.FAILED, f"another codex still works on this thread: {end}", ErrorKind.CRASHED)
        signal = LimitSignal(text=end, body={"message": self._error})
        if limit := detect(signal, now=self._now()):
            return limited(limit, clip(self._error or end, SUMMARY_CHARACTERS))
        told = self._error or end or "it said nothing"
        return _ended(
            ExecutorStatus.FAILED,
            f"codex ended with {ending.exit_code} in the middle of its turn: {told}",
            ErrorKind.CRASHED,
        )

    def _summary(self) -> str:
        if not self._failures:
            return self._message
        failed = f"{self._failures} of {self._commands} commands failed, the last: {self._last_failure}"
        return f"{shorten(self._message, SUMMARY_CHARACTERS - 240)} [{failed}]".strip()


def _ended(status: ExecutorStatus, error: str, kind: ErrorKind) -> ExecutorOutcome:
    return ExecutorOutcome(status=status, error=shorten(error, SUMMARY_CHARACTERS), error_kind=kind)


def _named(item: dict[str, Any]) -> str:
    known = (words(item, name) for name in ("command", "tool", "query", "type"))
    return next((name for name in known if name), "")
