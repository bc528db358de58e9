"""The Cursor CLI agent: event reader and adapter."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from activities.executor.agent.host import Ending, EventReader, Launch, ModelAccess
from activities.executor.agent.program import (
    check_program,
    copy_login,
    decode_event,
    denied_lines,
    event,
    find_program,
    local_now,
    message_text,
    number,
    part,
    words,
)
from activities.executor.delivery import failed_outcome, refuse_questions
from activities.executor.port import Availability
from tightloop.errors import ExecutorError
from tightloop.executor.limit import detect, limited_outcome
from tightloop.executor.model import (
    DENIED_LINES,
    SUMMARY_CHARACTERS,
    AgentMode,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
    ResumeToken,
    Usage,
    WorkOrder,
)
from tightloop.safety.rubric import Verdict
from tightloop.settings import AgentSettings
from tightloop.value import clip, shorten

_WRITING = frozenset({"write", "edit", "delete", "editNotebook", "applyPatch"})
_SHOWN = ("command", "path", "globPattern", "pattern", "url", "query")


class CursorReader(EventReader):
    """Reads the events of one run.

    Failures are not reported as events. They show up on standard error and in the exit code.
    """

    def __init__(self, *, now: Callable[[], datetime] = local_now) -> None:
        self._now = now
        self._result: dict[str, Any] | None = None
        self._message = ""
        self._denied: list[str] = []

    @property
    def finished(self) -> bool:
        return self._result is not None

    def feed(self, line: str) -> list[ExecutorEvent]:
        decoded = decode_event(line)
        if decoded is None:
            return [event(EventKind.UNKNOWN, line)] if line.strip() else []
        match words(decoded, "type"):
            case "system" if words(decoded, "subtype") == "init":
                summary = f"cursor, model {words(decoded, 'model')}, {words(decoded, 'permissionMode')}"
                return [
                    event(EventKind.STARTED, summary),
                    event(EventKind.SESSION, session_id=words(decoded, "session_id")),
                ]
            case "system":
                return [event(EventKind.UNKNOWN, f"system {words(decoded, 'subtype')}")]
            case "assistant":
                text = message_text(part(decoded, "message"))
                self._message = clip(text, 4 * SUMMARY_CHARACTERS) or self._message
                return [event(EventKind.MESSAGE, text)] if text else []
            case "tool_call":
                return self._read_tool_call(decoded)
            case "result":
                self._result = decoded
                ended = event(EventKind.FINISHED, f"{words(decoded, 'subtype')}: {words(decoded, 'result')}")
                usage = _usage(part(decoded, "usage"))
                tokens = event(EventKind.USAGE, f"input {usage.input_tokens}, output {usage.output_tokens} tokens")
                return [tokens, ended] if usage.known else [ended]
            case "user" | "thinking":
                return []
            case kind:
                return [event(EventKind.UNKNOWN, kind)]

    def read_outcome(self, ending: Ending) -> ExecutorOutcome:
        result = self._result or {}
        if result and result.get("is_error") is not True:
            answer = words(result, "result") or self._message
            outcome = ExecutorOutcome(status=ExecutorStatus.COMPLETED, summary=clip(answer, SUMMARY_CHARACTERS))
        else:
            # Some versions repeat their events, with the model's texts, on standard error.
            lines = [line for line in ending.output_end.splitlines() if decode_event(line) is None]
            end = "\n".join([*lines, words(result, "result")]).strip()
            error = f"cursor exited with {ending.exit_code} without a result: {end or 'no output'}"
            if limit := detect(end, now=self._now()):
                outcome = limited_outcome(limit, clip(end, SUMMARY_CHARACTERS))
            else:
                # Exit code 0 without a result is a broken protocol, not a crash.
                kind = ErrorKind.CRASHED if ending.exit_code else ErrorKind.PROTOCOL
                outcome = failed_outcome(clip(error, SUMMARY_CHARACTERS), kind)
        return outcome.evolve(
            summary=outcome.summary or shorten(self._message, SUMMARY_CHARACTERS),
            exit_code=ending.exit_code,
            usage=_usage(part(result, "usage")),
            denied=denied_lines(self._denied),
        )

    def _read_tool_call(self, decoded: dict[str, Any]) -> list[ExecutorEvent]:
        name, call = _find_tool(part(decoded, "tool_call"))
        description = _describe(name, part(call, "args"))
        if words(decoded, "subtype") != "completed":
            return [event(EventKind.TOOL_START, description)]
        result = part(call, "result")
        if "rejected" in result:
            # Some events of a rejected call have no arguments, but repeat them in the result.
            rejected = _describe(name, part(result, "rejected")) if description == name else description
            if len(self._denied) < DENIED_LINES:
                self._denied.append(rejected)
            return [event(EventKind.TOOL_END, f"{rejected}: rejected"), event(EventKind.PERMISSION, rejected)]
        outcome = next((key for key in result if isinstance(result[key], dict)), "")
        ended = event(
            EventKind.TOOL_END,
            f"{description}: {outcome or 'done'}",
            exit_code=number(part(result, outcome), "exitCode"),
        )
        if name in _WRITING and outcome == "success":
            path = words(part(call, "args"), "path") or words(part(result, outcome), "path")
            return [ended, event(EventKind.FILE_CHANGE, path)]
        return [ended]


def _find_tool(tool_call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a tool's name (`shell` for `shellToolCall`), and the object with its arguments and result."""
    for key in tool_call:
        if key.endswith("ToolCall"):
            return key.removesuffix("ToolCall"), part(tool_call, key)
    function = part(tool_call, "function")
    return words(function, "name") or "tool", function


def _describe(name: str, arguments: Mapping[str, Any]) -> str:
    value = next((text for field in _SHOWN if (text := words(arguments, field))), "")
    return f"{name}: {value}" if value else name


def _usage(usage: Mapping[str, Any]) -> Usage:
    """Return the token usage. Cache reads and writes are added to the input.

    This assumes that the reported input excludes the cache, which has not been verified.
    """
    cached = number(usage, "cacheReadTokens")
    input_tokens, answered = number(usage, "inputTokens"), number(usage, "outputTokens")
    if input_tokens is None or answered is None:
        return Usage()
    written = number(usage, "cacheWriteTokens") or 0
    return Usage(input_tokens=input_tokens + (cached or 0) + written, cached_tokens=cached, output_tokens=answered)


NAME = "cursor"
PROGRAMS = ("cursor-agent", "agent")
LOGIN_FILES = (".config/cursor/auth.json", ".cursor/cli-config.json")
"""Login files on Linux, by version. On macOS, the login is in the Keychain and cannot be copied."""

_HOW_TO_GET = "Install the Cursor CLI (see https://cursor.com/cli)"


class CursorAdapter:
    """Runs Cursor's agent.

    The model is configured in Cursor rather than through a gateway. The real key is therefore in the
    agent's environment, where its tools may see it. Model calls can be neither counted nor limited.
    """

    name = NAME
    wire = None
    default_base_url = ""
    hosts = ("*.cursor.sh", "*.cursor.com")
    default_key_env = "CURSOR_API_KEY"

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings

    def availability(self) -> Availability:
        looked_for = repr(self._settings.program) if self._settings.program else " or ".join(PROGRAMS)
        return check_program(self._program(), looked_for, _HOW_TO_GET)

    def launch(self, order: WorkOrder, home: Path, access: ModelAccess, resume: ResumeToken | None) -> Launch:
        """Return the command line, environment and prompt for starting the agent.

        The agent reads the prompt from standard input.

        Raises:
            ExecutorError: an option is given, a person would have to be asked, or the login is missing.
        """
        if order.executor.options:
            raise ExecutorError(f"the executor {NAME} accepts no options, got {', '.join(order.executor.options)}")
        choice = order.executor
        if choice.mode is AgentMode.READ_ONLY or choice.permissions is Verdict.DENY:
            # Without --force it still edits files; only this mode prevents that.
            permissions = ["--mode=plan"]
        else:
            refuse_questions(choice, NAME)
            # Its own sandbox is disabled, because it runs inside ours.
            permissions = ["--force", "--sandbox=disabled"]
        argv = [
            self._program() or self._settings.program or PROGRAMS[0],
            "-p",
            "--output-format=stream-json",
            # It refuses to work in an unknown folder, with exit code 0.
            "--trust",
            *permissions,
        ]
        if access.model:
            argv.append(f"--model={access.model}")
        if resume is not None and resume.adapter == NAME:
            argv.append(f"--resume={resume.session_id}")
        if self._settings.login:
            there = [name for name in LOGIN_FILES if (Path.home() / name).is_file()]
            for name in there or LOGIN_FILES[:1]:  # copying a missing file raises a helpful error
                copy_login(Path.home() / name, home / name)
        return Launch(
            argv=(*argv, *self._settings.arguments),
            environment={"NO_COLOR": "1"},
            secrets={self.default_key_env: access.key} if access.key else {},
            stdin=order.prompt,
        )

    def reader(self, order: WorkOrder) -> EventReader:
        del order
        return CursorReader()

    def _program(self) -> str:
        return find_program(self._settings.program, *PROGRAMS)
