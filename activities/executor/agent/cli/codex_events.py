"""Reads what `codex exec --json` prints, as measured on version 0.169.0."""

import re
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from activities.executor.agent.lenient import (
    decode_event,
    denied_lines,
    event,
    local_now,
    number,
    part,
    parts,
    words,
)
from activities.executor.agent.port import Ending, EventReader
from activities.executor.ending import limited_outcome
from tightloop.executor.limit import LimitSignal
from tightloop.executor.limit_matcher import detect
from tightloop.executor.model import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
)
from tightloop.executor.usage import Usage
from tightloop.value import clip, shorten

# Its exit code is 1, as for a turn that failed.
NO_SESSION = "no rollout found for thread id"
# Measured: codex itself outlives a kill of the node script that started it, and still holds its thread.
SESSION_IN_USE = "already has an active writer"
DENIED_KEPT = 50
_TOOLS = ("command_execution", "mcp_tool_call", "web_search", "file_change")

_READ_ONLY = re.compile(r"read-only file system|operation not permitted|permission denied", re.IGNORECASE)
_NO_MODEL = re.compile(r"unexpected status 404|model\W.{0,80}\W(?:does not exist|not found|is not supported)")
_VIOLATION = re.compile(r"recorded sandbox violation: (.{1,200})")
"""A line of its log: a command that fails at once in the sandbox gives no event at all."""
_OFFLINE = "Connection failed"
_CONFIG = ("Error loading config.toml", "error: unexpected argument", "error: invalid value")


class CodexReader(EventReader):
    """Reads one run. An item of type `error` is a warning; only `turn.failed` and `error` are failures."""

    def __init__(self, *, resumed: bool = False, now: Callable[[], datetime] = local_now) -> None:
        """Begin a run.

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
        found = decode_event(line)
        if found is None:
            return [event(EventKind.UNKNOWN, line)] if line.strip() else []
        match words(found, "type"):
            case "thread.started":
                self._began = True
                return [event(EventKind.SESSION, session_id=words(found, "thread_id"))]
            case "turn.started":
                return [event(EventKind.STARTED)]
            case "item.started":
                item = part(found, "item")
                return [
                    event(EventKind.TOOL_START if words(item, "type") in _TOOLS else EventKind.UNKNOWN, _name(item))
                ]
            case "item.completed":
                return [self._complete_item(part(found, "item"))]
            case "error":
                self._error = words(found, "message")
                again = self._error.startswith("Reconnecting")
                return [event(EventKind.RETRYING if again else EventKind.WARNING, self._error)]
            case "turn.completed":
                return self._complete_turn(part(found, "usage"))
            case "turn.failed":
                self._failed = True
                self._error = words(part(found, "error"), "message") or self._error
                return [event(EventKind.FINISHED, f"turn failed: {self._error}")]
            case kind:
                return [event(EventKind.UNKNOWN, kind)]

    def unknown_session(self, ending: Ending) -> bool:
        """Return whether it refused the thread that it was to resume, or had no file of it."""
        return not self._began and NO_SESSION in ending.output_end

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        """Return the outcome of the run; see the port."""
        self._denied.extend(f"a command: {found[1]}" for found in _VIOLATION.finditer(ending.output_end))
        denied = denied_lines(self._denied)
        # Measured: in a read-only sandbox the command fails, the model claims success, and codex exits with 0.
        if self._completed and self._denied and not self._changes and self._failures == self._commands:
            error = f"codex did nothing: its sandbox did not allow {'; '.join(denied)}"
            outcome = ExecutorOutcome(status=ExecutorStatus.REFUSED, error=clip(error, SUMMARY_CHARACTERS))
        elif self._completed:
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED)
        else:
            outcome = self._judge_error(self._error) if self._failed else self._judge_lines(ending)
        summary = self._message
        if self._failures:
            failed = f"{self._failures} of {self._commands} commands failed, the last: {self._last_failure}"
            summary = f"{shorten(summary, SUMMARY_CHARACTERS - 240)} [{failed}]".strip()
        return outcome.evolve(
            summary=shorten(summary, SUMMARY_CHARACTERS),
            exit_code=ending.exit_code,
            usage=Usage() if self._resumed else self._usage,
            denied=denied,
        )

    def _complete_turn(self, used: dict[str, Any]) -> list[ExecutorEvent]:
        self._completed = True
        self._usage = Usage(
            input_tokens=number(used, "input_tokens"),
            cached_tokens=number(used, "cached_input_tokens"),
            output_tokens=number(used, "output_tokens"),
        )
        tokens = f"input {self._usage.input_tokens}, output {self._usage.output_tokens} tokens of the thread"
        return [event(EventKind.USAGE, tokens), event(EventKind.FINISHED, "turn completed")]

    def _complete_item(self, item: dict[str, Any]) -> ExecutorEvent:
        match words(item, "type"):
            case "command_execution":
                return self._command(item)
            case "file_change":
                paths = ", ".join(words(change, "path") for change in parts(item, "changes"))
                if words(item, "status") == "completed":
                    self._changes += 1
                    return event(EventKind.FILE_CHANGE, paths)
                self._denied.append(f"change {paths}")
                return event(EventKind.TOOL_END, f"change {paths}: {words(item, 'status')}")
            case "agent_message":
                self._message = shorten(words(item, "text"), SUMMARY_CHARACTERS)
                return event(EventKind.MESSAGE, words(item, "text"))
            case "reasoning":
                return event(EventKind.MESSAGE, words(item, "text"))
            case "error":
                return event(EventKind.WARNING, words(item, "message"))
            case "mcp_tool_call" | "web_search":
                return event(EventKind.TOOL_END, _name(item))
            case kind:
                return event(EventKind.UNKNOWN, kind)

    def _command(self, item: dict[str, Any]) -> ExecutorEvent:
        self._commands += 1
        code, command, status = number(item, "exit_code"), words(item, "command"), words(item, "status")
        if status != "completed" or code != 0:
            self._failures += 1
            self._last_failure = f"{shorten(command, 160)} ({'exit ' + str(code) if code is not None else status})"
            if status == "declined" or _READ_ONLY.search(words(item, "aggregated_output")):
                self._denied.append(command)
        return event(EventKind.TOOL_END, f"{command}: {status}", exit_code=code)

    def _judge_error(self, error: str) -> ExecutorOutcome:
        code = "http_connection_failed" if error.startswith(_OFFLINE) else ""
        signal = LimitSignal(text=error, error_code=code, body={"message": error})
        if limit := detect(signal, now=self._now()):
            return limited_outcome(limit, clip(error, SUMMARY_CHARACTERS))
        if _NO_MODEL.search(error):
            advice = "Set another model, or the base_url of its provider, for the executor codex"
            return _end(ExecutorStatus.FATAL, f"codex cannot use its model: {error}. {advice}", ErrorKind.CONFIG)
        return _end(ExecutorStatus.FAILED, f"codex's turn failed: {error or 'it did not say why'}", ErrorKind.PROTOCOL)

    def _judge_lines(self, ending: Ending) -> ExecutorOutcome:
        """Judge a run that ended before it said how: only status lines are left."""
        end = ending.output_end.strip()
        if not self._began and any(mark in end for mark in _CONFIG):
            return _end(ExecutorStatus.FATAL, f"codex does not accept its settings: {end}", ErrorKind.CONFIG)
        if SESSION_IN_USE in end:
            return _end(ExecutorStatus.FAILED, f"another codex still works on this thread: {end}", ErrorKind.CRASHED)
        signal = LimitSignal(text=end, body={"message": self._error})
        if limit := detect(signal, now=self._now()):
            return limited_outcome(limit, clip(self._error or end, SUMMARY_CHARACTERS))
        error = self._error or end or "it said nothing"
        return _end(
            ExecutorStatus.FAILED,
            f"codex ended with {ending.exit_code} in the middle of its turn: {error}",
            ErrorKind.CRASHED,
        )


def _end(status: ExecutorStatus, error: str, kind: ErrorKind) -> ExecutorOutcome:
    return ExecutorOutcome(status=status, error=shorten(error, SUMMARY_CHARACTERS), error_kind=kind)


def _name(item: dict[str, Any]) -> str:
    known = (words(item, name) for name in ("command", "tool", "query", "type"))
    return next((name for name in known if name), "")
