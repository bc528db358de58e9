"""An ACP agent's events and the outcome of its run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from acp.exceptions import RequestError

from activities.executor.agent.program import mapping, part, parts, words
from activities.executor.agent.record import limit_outcome
from activities.executor.delivery import failed_outcome, fatal_outcome
from tightloop.executor.asking import READING, PermissionRequest
from tightloop.executor.limit import LimitKind, LimitSignal, LimitSource, detect
from tightloop.executor.model import (
    SUMMARY_CHARACTERS,
    ErrorKind,
    EventKind,
    ExecutorEvent,
    ExecutorOutcome,
    ExecutorStatus,
    LimitHit,
    Usage,
)
from tightloop.safety.rubric import Verdict
from tightloop.value import clip, shorten

TEXT_CHARACTERS = 500
TITLE_CHARACTERS = 200
COMMAND_CHARACTERS = 2_000
PATHS = 20
MESSAGE_CHARACTERS = 4_000
"""Maximum length of the tail that is kept of a turn's last message."""
TOOLS_KEPT = 1_000

_QUIET = frozenset(
    {
        "user_message_chunk",
        "agent_thought_chunk",
        "plan",
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
    }
)
_EXIT_CODES = ("exitCode", "exit_code", "exit")
# Options are chosen by kind: their ids differ between agents.
_OPTIONS = {
    Verdict.ALLOW: ("allow_once", "allow_always"),
    Verdict.DENY: ("reject_once", "reject_always"),
}


@dataclass(kw_only=True)
class Turn:
    """A bounded summary of a turn, built from its updates."""

    message: str = ""
    """The tail of the last message, which is text written by a model."""
    tools: int = 0
    successes: int = 0
    """Number of tool calls that succeeded and did more than read."""
    failures: int = 0
    """Number of tool calls that failed."""
    cost_usd: float | None = None
    """The session's cost so far."""
    _open: dict[str, tuple[str, str]] = field(default_factory=dict)
    _in_message: bool = False

    def read(self, update: Mapping[str, Any]) -> list[ExecutorEvent]:
        """Process one `session/update` and return the events to report."""
        kind = str(update.get("sessionUpdate", ""))
        if kind == "agent_message_chunk":
            if text := words(part(update, "content"), "text"):
                self.message = (self.message + text if self._in_message else text)[-MESSAGE_CHARACTERS:]
                self._in_message = True
            return []
        if kind in _QUIET:
            return []
        events = self.flush()
        match kind:
            case "tool_call":
                call = _call(update)
                # Some agents send `tool_call` again when they know the arguments.
                if call not in self._open:
                    self.tools += 1
                    events.append(ExecutorEvent(kind=EventKind.TOOL_START, text=_title(update)))
                self._open[call] = (str(update.get("kind") or "other"), _title(update))
                if len(self._open) > TOOLS_KEPT:
                    # A call without an end stays open; the oldest goes, so that memory is bounded.
                    self._open.pop(next(iter(self._open)))
                return [*events, *self._end(update)]
            case "tool_call_update":
                return [*events, *self._end(update)]
            case "usage_update":
                cost = part(update, "cost")
                if cost.get("currency") == "USD" and isinstance(cost.get("amount"), int | float):
                    self.cost_usd = float(cost["amount"])
                tokens = f"{update.get('used')} of {update.get('size')} tokens"
                return [*events, ExecutorEvent(kind=EventKind.USAGE, text=tokens)]
            case _:
                return [*events, ExecutorEvent(kind=EventKind.UNKNOWN, text=shorten(kind, TEXT_CHARACTERS))]

    def flush(self) -> list[ExecutorEvent]:
        """Return the message assembled from chunks as one event, or an empty list if there is none."""
        if not self._in_message:
            return []
        self._in_message = False
        return [ExecutorEvent(kind=EventKind.MESSAGE, text=clip(self.message, TEXT_CHARACTERS))]

    def _end(self, update: Mapping[str, Any]) -> list[ExecutorEvent]:
        if update.get("status") not in ("completed", "failed"):
            call = _call(update)
            # Many agents first send only the tool's name; a later title is more specific.
            if call in self._open and (title := _title(update)):
                self._open[call] = (self._open[call][0], title)
            return []
        kind, title = self._open.pop(_call(update), ("", ""))
        if not kind:  # some agents report a tool only once it is over
            self.tools += 1
        kind = str(update.get("kind") or kind or "other")
        worked = update["status"] == "completed"
        self.successes += worked and kind not in READING
        self.failures += not worked
        changed = (
            [ExecutorEvent(kind=EventKind.FILE_CHANGE, text=path) for path in _changed_paths(update)] if worked else []
        )
        output = part(update, "rawOutput")
        codes = [table.get(name) for table in (output, part(output, "metadata")) for name in _EXIT_CODES]
        ended = ExecutorEvent(
            kind=EventKind.TOOL_END,
            text=_title(update) or title,
            exit_code=next((int(code) for code in codes if isinstance(code, int)), None) if worked else 1,
        )
        return [*changed, ended]


def usage_of(result: Mapping[str, Any]) -> Usage:
    """Return the token usage from a prompt response. Fields that it does not report are None."""
    usage = part(result, "usage")
    gemini = part(part(part(result, "_meta"), "quota"), "token_count")
    input_tokens = _count(usage.get("inputTokens", gemini.get("input_tokens")))
    output = _count(usage.get("outputTokens", gemini.get("output_tokens")))
    cached, written = _count(usage.get("cachedReadTokens")), _count(usage.get("cachedWriteTokens"))
    cache_tokens = (cached or 0) + (written or 0)
    # Anthropic's input excludes cache reads and writes, OpenAI's includes them.
    if input_tokens is not None and usage.get("totalTokens") == input_tokens + (output or 0) + cache_tokens:
        input_tokens += cache_tokens
    return Usage(input_tokens=input_tokens, cached_tokens=cached, output_tokens=output)


def permission_of(params: Mapping[str, Any]) -> PermissionRequest:
    """Parse the permission request in `session/request_permission`."""
    call = part(params, "toolCall")
    raw_input = part(call, "rawInput")
    # Agents do not agree on the field, nor on text or list.
    command = raw_input.get("command") or raw_input.get("cmd") or ""
    argv = (
        [str(argument) for argument in command]
        if isinstance(command, Sequence) and not isinstance(command, str)
        else []
    )
    title = _title(call) or str(call.get("kind") or "an action without a title")
    paths = [words(location, "path") for location in parts(call, "locations")[:PATHS]]
    return PermissionRequest(
        kind=str(call.get("kind") or ("execute" if command else "other")),
        title=title,
        command=shorten(" ".join(argv) or str(command), COMMAND_CHARACTERS),
        paths=tuple(dict.fromkeys([*filter(None, paths), *_changed_paths(call)]))[:PATHS],
    )


def option_for(rule: Verdict, options: object) -> str:
    """Return the id of the option that matches `rule`, or "" if no option matches.

    Options that apply only once are preferred, so that the next request is decided separately.
    """
    offered = {
        str(option.get("kind")): str(option.get("optionId"))
        # Reversed, so that the first of several options of a kind wins.
        for option in reversed(options if isinstance(options, list) else [])
        if isinstance(option, Mapping) and option.get("optionId")
    }
    return next((offered[kind] for kind in _OPTIONS.get(rule, ()) if kind in offered), "")


def mode_among(session: Mapping[str, Any], mode_name: str) -> str:
    """Return the id of the mode to switch to.

    Return "" if the session does not offer `mode_name` or is already in this mode. An id may be a URL
    that ends with the name.
    """
    modes = part(session, "modes")
    ids = [words(mode, "id") for mode in parts(modes, "availableModes")]
    mode_id = next((name for name in ids if mode_name and (name == mode_name or name.endswith(f"#{mode_name}"))), "")
    return "" if mode_id == modes.get("currentModeId") else mode_id


def _call(update: Mapping[str, Any]) -> str:
    return str(update.get("toolCallId", ""))


def _title(call: Mapping[str, Any]) -> str:
    return shorten(" ".join(str(call.get("title") or "").split()), TITLE_CHARACTERS)


def _changed_paths(call: Mapping[str, Any]) -> list[str]:
    return [words(diff, "path") for diff in parts(call, "content")[:PATHS] if diff.get("type") == "diff"]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


AUTH_REQUIRED = -32000
"""Error code with which the Agent Client Protocol reports that a person has to sign in. In plain JSON-RPC, this code
can stand for any server error."""
# claude-agent-acp sends errorKind, codex-acp codex_error_info; gemini uses the HTTP status as error code.
_ERROR_FIELDS = ("errorKind", "error_kind", "codex_error_info", "codexErrorInfo", "type", "code")
_ERROR_LINES = 20
_SPENT = re.compile(r"reached maximum (number of turns|budget)", re.IGNORECASE)
_BUDGETS = {"number of turns": "max_turns (or max_model_calls)", "budget": "max_budget_usd"}


def turn_outcome(
    reason: str, turn: Turn, denied: tuple[str, ...], *, now: datetime, reads_text: bool
) -> ExecutorOutcome:
    """Return the outcome of a turn that the agent ended.

    Args:
        reason: the protocol's `stopReason`.
        turn: the summary of the turn.
        denied: the denied actions.
        now: time at which the turn ended. Times mentioned in text are in its time zone.
        reads_text: whether to look for limits in the last message. This only applies if the agent did not
            use a tool.
    """
    match reason:
        case "end_turn":
            limit = detect(turn.message, now=now) if reads_text and not turn.tools else None
            if limit is not None:
                return limit_outcome(limit, turn.message)
            # After a denial claude continues its turn and copilot ends it; both report `end_turn`.
            if denied and not turn.successes:
                error = f"the agent did nothing because these actions were denied: {clip('; '.join(denied), 300)}"
                return ExecutorOutcome(status=ExecutorStatus.REFUSED, error=error)
            return ExecutorOutcome(status=ExecutorStatus.COMPLETED)
        case "max_tokens":
            return limit_outcome(_typed_limit(LimitKind.CONTEXT_FULL, reason), "the agent stopped with max_tokens")
        case "max_turn_requests":
            return limit_outcome(
                _typed_limit(LimitKind.TOOL_CALL_LIMIT, reason), "the agent stopped with max_turn_requests"
            )
        case "refusal":
            detail = clip(turn.message or "no reason given", 300)
            return ExecutorOutcome(status=ExecutorStatus.REFUSED, error=f"the agent refused the task: {detail}")
        case "cancelled":
            return failed_outcome("the agent cancelled the turn on its own")
        case _:
            error = f"the agent stopped with {shorten(reason, 80)!r}, which this version of tightloop does not support"
            return failed_outcome(error, ErrorKind.PROTOCOL)


def error_outcome(error: RequestError, *, now: datetime) -> ExecutorOutcome:
    """Return the outcome of a turn that ended with an error from the agent."""
    data: Any = error.data
    fields = mapping(data)
    # Agents put the message into `data`, below a generic "Internal error".
    texts = [str(error), *(str(fields[name]) for name in ("message", "details", "errorName") if fields.get(name))]
    if isinstance(data, str):
        texts.append(data)
    texts = list(dict.fromkeys(filter(None, texts)))
    message = clip(": ".join(texts[1:] or texts), SUMMARY_CHARACTERS)
    code = next((str(fields[name]) for name in _ERROR_FIELDS if fields.get(name)), "")
    signal = LimitSignal(
        text=message,
        # JSON-RPC codes are negative; this range can only be an HTTP status.
        status_code=error.code if 400 <= error.code < 600 else None,
        error_type=code,
        body={"message": str(error), "error": data},
    )
    # Before `detect`, which would take the agent's own limit for one of the provider, and wait.
    if budget := _SPENT.search(message):
        field = _BUDGETS[budget[1].lower()]
        return failed_outcome(f"{message}. Raise the executor's {field} or plan smaller steps", ErrorKind.BUDGET)
    if limit := detect(signal, now=now):
        return limit_outcome(limit, message)
    if code == "model_not_found":
        return fatal_outcome(f"{message}. Choose a different model", ErrorKind.CONFIG)
    # The code alone is not enough: agents use it for any server error.
    if error.code == AUTH_REQUIRED and "auth" in message.lower():
        return fatal_outcome(f"the agent is not signed in: {message}", ErrorKind.AUTH)
    # JSON-RPC: parse error, invalid request, unknown method, invalid parameters.
    kind = ErrorKind.PROTOCOL if error.code in (-32700, -32600, -32601, -32602) else None
    return failed_outcome(f"the agent reported an error: {message}", kind)


def crash_outcome(exit_code: int | None, errors: str, *, now: datetime) -> ExecutorOutcome:
    """Return the outcome of an agent that exited during its turn. `errors` is its standard error."""
    end = "\n".join(errors.rstrip().splitlines()[-_ERROR_LINES:])
    if limit := detect(end, now=now):
        return limit_outcome(limit, clip(end, SUMMARY_CHARACTERS))
    how = "closed the connection" if exit_code is None else f"exited with {exit_code}"
    detail = f": {clip(end, 400)}" if end else " (no output)"
    return failed_outcome(f"the agent {how} before it finished its work{detail}", ErrorKind.CRASHED)


def _typed_limit(kind: LimitKind, evidence: str) -> LimitHit:
    return LimitHit(kind=kind.value, evidence=f"stopReason {evidence}", source=LimitSource.TYPED.value)
