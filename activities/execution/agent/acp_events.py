"""Reads what an agent sends over the Agent Client Protocol: updates, permission requests, session offers.

Messages are read as plain JSON and leniently: agents add fields and kinds of updates with every release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightloop.budget import Usage
from tightloop.executor import EventKind, ExecutorEvent, PermissionRule
from tightloop.permission import READING, PermissionRequest
from tightloop.value import clip, shorten

TEXT_CHARACTERS = 500
TITLE_CHARACTERS = 200
COMMAND_CHARACTERS = 2_000
PATHS = 20
MESSAGE_CHARACTERS = 4_000
"""Of the last message of a turn its end is kept."""
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
_OPTIONS = {
    PermissionRule.ALLOW: ("allow_once", "allow_always"),
    PermissionRule.DENY: ("reject_once", "reject_always"),
}


@dataclass(kw_only=True)
class Turn:
    """What one turn of an agent came to, as far as its updates tell; bounded."""

    message: str = ""
    """The end of its last message; the words of a model."""
    tools: int = 0
    done: int = 0
    """Tools that succeeded and did more than reading."""
    usage: Usage | None = None
    _open: dict[str, tuple[str, str]] = field(default_factory=dict)
    _said: bool = False

    def read(self, update: Mapping[str, Any]) -> list[ExecutorEvent]:
        """Take one `session/update` and return what a person would want to know of it."""
        kind = str(update.get("sessionUpdate", ""))
        if kind == "agent_message_chunk":
            self._hear(text_of(update.get("content")))
            return []
        if kind in _QUIET:
            return []
        return [*self.flush(), *self._act(kind, update)]

    def flush(self) -> list[ExecutorEvent]:
        """Return the message that was being said, if any: chunks make one event."""
        if not self._said:
            return []
        self._said = False
        return [ExecutorEvent(kind=EventKind.MESSAGE, text=clip(self.message, TEXT_CHARACTERS))]

    def _hear(self, text: str) -> None:
        if not text:
            return
        self.message = (self.message + text if self._said else text)[-MESSAGE_CHARACTERS:]
        self._said = True

    def _act(self, kind: str, update: Mapping[str, Any]) -> list[ExecutorEvent]:
        match kind:
            case "tool_call":
                return self._start(update)
            case "tool_call_update":
                return self._end(update)
            case "usage_update":
                return [
                    ExecutorEvent(kind=EventKind.USAGE, text=f"{update.get('used')} of {update.get('size')} tokens")
                ]
            case _:
                return [ExecutorEvent(kind=EventKind.UNKNOWN, text=shorten(kind, TEXT_CHARACTERS))]

    def _start(self, update: Mapping[str, Any]) -> list[ExecutorEvent]:
        call = _call(update)
        known = call in self._open
        self._open[call] = (str(update.get("kind") or "other"), _title(update))
        if len(self._open) > TOOLS_KEPT:
            self._open.pop(next(iter(self._open)))
        if known:
            return self._end(update)
        self.tools += 1
        return [ExecutorEvent(kind=EventKind.TOOL_START, text=_title(update)), *self._end(update)]

    def _end(self, update: Mapping[str, Any]) -> list[ExecutorEvent]:
        if update.get("status") not in ("completed", "failed"):
            self._rename(update)
            return []
        kind, title = self._open.pop(_call(update), ("", ""))
        if not kind:  # some agents tell of a tool only once it is over
            self.tools += 1
        kind = str(update.get("kind") or kind or "other")
        worked = update["status"] == "completed"
        self.done += worked and kind not in READING
        changed = [ExecutorEvent(kind=EventKind.FILE_CHANGE, text=path) for path in _changed(update)] if worked else []
        ended = ExecutorEvent(
            kind=EventKind.TOOL_END,
            text=_title(update) or title,
            exit_code=_exit_code(update.get("rawOutput")) if worked else 1,
        )
        return [*changed, ended]

    def _rename(self, update: Mapping[str, Any]) -> None:
        """Keep a later title: at first many agents only name the tool, and not what it does."""
        call = _call(update)
        if call in self._open and (title := _title(update)):
            self._open[call] = (self._open[call][0], title)


def text_of(content: object) -> str:
    """Return the text of a content block; empty for images and the like."""
    return str(content.get("text") or "") if isinstance(content, Mapping) else ""


def usage_of(result: Mapping[str, Any]) -> Usage:
    """Return what the answer to a prompt says of tokens; unknown where it says nothing."""
    given = mapping(result.get("usage"))
    gemini = mapping(mapping(mapping(result.get("_meta")).get("quota")).get("token_count"))
    return Usage(
        input_tokens=_count(given.get("inputTokens", gemini.get("input_tokens"))),
        cached_tokens=_count(given.get("cachedReadTokens")),
        output_tokens=_count(given.get("outputTokens", gemini.get("output_tokens"))),
    )


def permission_of(params: Mapping[str, Any]) -> PermissionRequest:
    """Return what an agent asks for with `session/request_permission`."""
    call = mapping(params.get("toolCall"))
    given = mapping(call.get("rawInput"))
    command = given.get("command") or given.get("cmd") or ""
    words = [str(word) for word in command] if isinstance(command, Sequence) and not isinstance(command, str) else []
    title = _title(call) or str(call.get("kind") or "something without a title")
    return PermissionRequest(
        kind=str(call.get("kind") or ("execute" if command else "other")),
        title=title,
        command=shorten(" ".join(words) or str(command), COMMAND_CHARACTERS),
        paths=tuple(dict.fromkeys([*_locations(call), *_changed(call)]))[:PATHS],
    )


def option_for(rule: PermissionRule, options: object) -> str:
    """Return the id of the option that says `rule`, chosen by its kind; empty where none does.

    What is granted once is preferred, so that the next request is decided anew.
    """
    offered = {
        str(option.get("kind")): str(option.get("optionId"))
        for option in reversed(options if isinstance(options, list) else [])
        if isinstance(option, Mapping) and option.get("optionId")
    }
    return next((offered[kind] for kind in _OPTIONS.get(rule, ()) if kind in offered), "")


def mode_among(session: Mapping[str, Any], wanted: str) -> str:
    """Return the id of the mode `wanted` if the session offers it and is not in it; ids may be URLs that end in it."""
    modes = mapping(session.get("modes"))
    offered = modes.get("availableModes")
    ids = [str(mapping(mode).get("id", "")) for mode in (offered if isinstance(offered, list) else [])]
    found = next((name for name in ids if wanted and (name == wanted or name.endswith(f"#{wanted}"))), "")
    return "" if found == modes.get("currentModeId") else found


def mapping(value: object) -> Mapping[str, Any]:
    """Return `value` where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _call(update: Mapping[str, Any]) -> str:
    return str(update.get("toolCallId", ""))


def _title(call: Mapping[str, Any]) -> str:
    return shorten(" ".join(str(call.get("title") or "").split()), TITLE_CHARACTERS)


def _locations(call: Mapping[str, Any]) -> list[str]:
    places = call.get("locations")
    paths = [str(mapping(place).get("path") or "") for place in (places if isinstance(places, list) else [])[:PATHS]]
    return [path for path in paths if path]


def _changed(call: Mapping[str, Any]) -> list[str]:
    parts = call.get("content")
    diffs = [mapping(part) for part in (parts if isinstance(parts, list) else [])[:PATHS]]
    return [str(diff.get("path") or "") for diff in diffs if diff.get("type") == "diff"]


def _exit_code(output: object) -> int | None:
    given = mapping(output)
    codes = (given, mapping(given.get("metadata")))
    names = ("exitCode", "exit_code", "exit")
    found = next((part[name] for part in codes for name in names if isinstance(part.get(name), int)), None)
    return None if found is None else int(found)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
