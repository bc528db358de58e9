"""Reads an answer: calls that can be made, or what is wrong with it in a sentence that the model can act on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from activities.coder.calls.arguments import ArgumentsError, read_arguments
from activities.coder.port import ModelReply, ProposedCall, ToolSpec
from activities.model.repair import read_object
from tightloop.coder.role import FINISH
from tightloop.errors import did_you_mean, followed_by
from tightloop.value import shorten

MOST_CALLS = 16
"""Of one answer: a model that makes more repeats itself."""
QUOTED_CHARACTERS = 4_000
"""Bound of a malformed answer that stays in the conversation."""
PROBLEM_CHARACTERS = 800
ID_CHARACTERS = 64
"""OpenAI refuses longer ids."""
_CALL_KEYS = ("name", "arguments")


class Verdict(NamedTuple):
    """What an answer is good for."""

    text: str
    calls: tuple[ProposedCall, ...] = ()
    """Arguments follow the schemas; ids are unique. Empty where there is a problem."""
    problem: str = ""


class _Wrong(Exception):  # noqa: N818
    """What is wrong with a call."""


def judge(reply: ModelReply, tools: Sequence[ToolSpec], *, number: int) -> Verdict:
    """Read an answer. `number` is that of the turn; it goes into the ids that are made here."""
    if reply.refusal:
        refusal = reply.refusal.rstrip(".")
        return _wrong(reply, f"You refused: {refusal}. If the task cannot be done, call `{FINISH}` and say why")
    if reply.truncated:
        return _wrong(
            reply,
            "Your answer was cut off at the output limit and nothing of it was done. Write less at once: one call, "
            "smaller edits, long files in several steps",
        )
    by_name = {tool.name: tool for tool in tools}
    proposed = reply.calls or tuple(_calls_in(reply.text, by_name))
    if not proposed:
        known = ", ".join(by_name)
        return _wrong(
            reply,
            f"Your answer calls no tool. Call one of {known}; when the work is done or cannot be done: `{FINISH}`",
        )
    if len(proposed) > MOST_CALLS:
        return _wrong(
            reply, f"Your answer makes {len(proposed)} calls. Make at most {MOST_CALLS}, then read the results"
        )
    calls: list[ProposedCall] = []
    for index, call in enumerate(proposed):
        try:
            arguments = _arguments(call, by_name)
        except _Wrong as error:
            return _wrong(reply, str(error))
        usable = 0 < len(call.id) <= ID_CHARACTERS and call.id not in {earlier.id for earlier in calls}
        calls.append(ProposedCall(call.id if usable else f"call_{number}_{index}", call.tool, arguments))
    return Verdict(sound(reply.text) if reply.calls else "", tuple(calls))


def sound(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can hold and files cannot."""
    return text.encode("utf-8", "replace").decode()


def _wrong(reply: ModelReply, problem: str) -> Verdict:
    """Return a problem. The answer stays as text: services refuse conversations with calls that they cannot read."""
    parts = (reply.text, reply.refusal, *(f"{call.tool}({call.arguments})" for call in reply.calls))
    text = shorten("\n".join(part for part in parts if part), QUOTED_CHARACTERS)
    others = "Nothing of this answer was done." if len(reply.calls) > 1 and not reply.truncated else ""
    said = followed_by(shorten(problem.rstrip("."), PROBLEM_CHARACTERS), others).rstrip()
    return Verdict(sound(text) or "(empty)", problem=said)


def _calls_in(text: str, tools: Mapping[str, ToolSpec]) -> Iterator[ProposedCall]:
    """Find the call that a model wrote as text, as small ones do where their server does not read it for them."""
    reading = read_object(text, _CALL_KEYS) if "{" in text else None
    if reading is None or reading.value is None or reading.truncated:
        return
    name, arguments = reading.value.get("name"), reading.value.get("arguments")
    if isinstance(name, str) and name in tools and isinstance(arguments, dict | str):
        yield ProposedCall("", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def _arguments(call: ProposedCall, tools: Mapping[str, ToolSpec]) -> str:
    """Return the arguments of a call as JSON that follows the schema.

    Raises:
        _Wrong: they do not, or the tool is unknown.
    """
    tool = tools.get(call.tool)
    if tool is None:
        raise _Wrong(f"Unknown tool {shorten(call.tool, 60)!r}. {did_you_mean(call.tool, tools)}")
    properties: Mapping[str, Any] = tool.parameters["properties"]
    given = _object(call, tuple(properties)).items()
    read = {name: _unwrapped(value, properties.get(name, {})) for name, value in given}
    try:
        fitting = read_arguments(sound(json.dumps(read, ensure_ascii=False)), tool.parameters)
        return json.dumps(fitting, ensure_ascii=False)
    except ArgumentsError as error:
        raise _Wrong(f"{call.tool}: {error}") from None


def _object(call: ProposedCall, names: tuple[str, ...]) -> dict[str, Any]:
    if not call.arguments.strip():
        return {}
    value: Any = call.arguments
    # Some models write the object as a JSON string.
    for _ in range(2):
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            break
    reading = read_object(call.arguments, names)
    if reading.truncated:
        raise _Wrong(f"The arguments of {call.tool} have no end. Write less at once")
    if reading.value is None:
        raise _Wrong(
            f"The arguments of {call.tool} are not a JSON object: {shorten(call.arguments, 120)!r}. "
            f"Write an object with {', '.join(names)}"
        )
    return reading.value


def _unwrapped(value: Any, schema: Mapping[str, Any]) -> Any:
    """Read a value that was written as a text although its schema takes none."""
    if not isinstance(value, str) or "string" in schema.get("type", "string"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
