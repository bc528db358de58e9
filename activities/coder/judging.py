"""Parsing of model responses into tool calls, with error messages that the model can act on."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from activities.coder.calls import fit_arguments
from activities.coder.port import Message, ToolError, ToolSpec
from activities.model.observed import ModelAnswer, ProposedCall
from activities.model.repair import read_object
from tightloop.coder.model import FINISH, REPORT_IMPOSSIBLE
from tightloop.errors import did_you_mean, followed_by
from tightloop.value import shorten

MOST_CALLS = 16
"""Maximum number of calls in a response. A model that makes more calls is repeating itself."""
QUOTED_CHARACTERS = 4_000
"""Maximum length of a malformed response that stays in the conversation."""
PROBLEM_CHARACTERS = 800
ARGUMENT_CHARACTERS = 2_000_000
ID_CHARACTERS = 64
"""Maximum length of a call id. OpenAI rejects longer ids."""
_CALL_KEYS = frozenset({"name", "arguments", "id", "type"})
_TAGS = (
    ("<tool_call>", "</tool_call>"),
    ("<|tool_calls|>", "<|/tool_calls|>"),
    ("<|tool_call|>", ""),
    ("<|python_tag|>", "<|eom_id|>"),
    ("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),
    ("[TOOL_CALLS]", ""),
    ("functools", ""),
)
"""Tags that models put around a call or a list of calls. They are used by Hermes and Qwen, Phi, Granite, Llama, LM
Studio, Mistral and functionary."""
_THOUGHTS = re.compile(r"\A\s*<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
# Not strict: models put raw line breaks into strings.
_JSON = json.JSONDecoder(strict=False)


def judge(reply: ModelAnswer, tools: Sequence[ToolSpec], *, number: int) -> tuple[Message, str]:
    """Parse a model's response and check the tool calls in it.

    Args:
        reply: the response.
        tools: the role's tools.
        number: turn number, used to generate call IDs.

    Returns:
        The message for the conversation, and the problem with the response or "". If there is no problem,
        the calls in the message have unique IDs, and their arguments match the schemas.
    """
    by_name = {tool.name: tool for tool in tools}
    way_out = REPORT_IMPOSSIBLE if REPORT_IMPOSSIBLE in by_name else FINISH
    if reply.refusal:
        refusal = reply.refusal.rstrip(".")
        return _reject(
            reply, f"You refused the task: {refusal}. If the task cannot be done, call `{way_out}` and explain why"
        )
    # Calls are dropped, even if they are valid: the last argument may be incomplete.
    if reply.truncated:
        return _reject(
            reply,
            "Your answer was cut off at the output limit, so nothing in it was executed. Write less at a time: make "
            "one call, use smaller edits, and write long files in several steps",
        )
    proposed = reply.calls or _calls_in(reply.text)
    if not proposed:
        names = ", ".join(by_name)
        return _reject(
            reply,
            f"Your answer contains no tool call. Call one of {names}: `{FINISH}` when the work is done, or `{way_out}` "
            "if it cannot be done. A call written as text counts only if the answer contains nothing else",
        )
    if len(proposed) > MOST_CALLS:
        return _reject(
            reply, f"Your answer contains {len(proposed)} calls. Make at most {MOST_CALLS}, then read the results"
        )
    calls: list[ProposedCall] = []
    for index, call in enumerate(proposed):
        try:
            arguments = _arguments(call, by_name)
        except ToolError as error:
            return _reject(reply, str(error))
        # Services send empty or repeated ids, but results are matched to calls by id.
        usable = 0 < len(call.id) <= ID_CHARACTERS and call.id not in {earlier.id for earlier in calls}
        calls.append(ProposedCall(call.id if usable else f"call_{number}_{index}", call.tool, arguments))
    return Message("assistant", replace_surrogates(reply.text) if reply.calls else "", tuple(calls)), ""


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates in text. JSON allows them, but UTF-8 files do not."""
    return text.encode("utf-8", "replace").decode()


def _reject(reply: ModelAnswer, problem: str) -> tuple[Message, str]:
    """Reject a response.

    The response is kept as plain text, because services reject conversations with invalid calls.
    """
    parts = (reply.text, reply.refusal, *(f"{call.tool}({call.arguments})" for call in reply.calls))
    text = shorten("\n".join(part for part in parts if part), QUOTED_CHARACTERS)
    # Otherwise the model may assume that the valid ones of several calls were made.
    note = "Nothing in this answer was executed." if len(reply.calls) > 1 and not reply.truncated else ""
    message = followed_by(shorten(problem.rstrip("."), PROBLEM_CHARACTERS), note).rstrip()
    return Message("assistant", replace_surrogates(text) or "(empty)"), message


def _calls_in(text: str) -> tuple[ProposedCall, ...]:
    """Return the tool calls in a response that consists only of calls.

    Small models write calls as plain text. A call that is surrounded by other text is only a quotation,
    for example from a file, from a rejected instruction or from the model's own thoughts.
    """
    answer = _THOUGHTS.sub("", text, count=1).strip()
    fence = _FENCE.fullmatch(answer)
    values = _values_in_tags(answer) or _json_values(fence[1] if fence else answer)
    calls = [_read_call(value) for value in values]
    # All or none: a list that holds something else is an example, not a request.
    return tuple(call for call in calls if call) if all(calls) else ()


def _values_in_tags(answer: str) -> list[Any]:
    """Return the values in a response that consists of call tags of one kind.

    The result is empty for other responses.
    """
    begin, end = next(((begin, end) for begin, end in _TAGS if answer.startswith(begin)), ("", ""))
    values: list[Any] = []
    rest = answer
    while begin and rest:
        if not rest.startswith(begin):
            return []
        rest = rest.removeprefix(begin).lstrip()
        try:
            value, stop = _JSON.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        values += value if isinstance(value, list) else [value]
        # The last end tag may be missing, if it is the service's stop token.
        rest = rest[stop:].lstrip().removeprefix(end).lstrip()
    return values


def _json_values(answer: str) -> list[Any]:
    """Return the items of a JSON response. The result is empty if the response is not JSON.

    A response with a single value has one item.
    """
    try:
        value = _JSON.decode(answer)
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict) and value.keys() == {"tool_calls"}:
        value = value["tool_calls"]
    return value if isinstance(value, list) else [value]


def _read_call(value: Any) -> ProposedCall | None:
    """Read a tool call from a JSON value. Return None if the value has other fields or types."""
    if isinstance(value, dict) and value.keys() <= {"id", "type", "function"}:
        value = value.get("function")
    if not isinstance(value, dict) or not value.keys() <= _CALL_KEYS:
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    return ProposedCall("", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def _arguments(call: ProposedCall, tools: Mapping[str, ToolSpec]) -> str:
    """Return the arguments of a call as JSON that matches the tool's schema.

    Raises:
        ToolError: the arguments do not match or the tool is unknown.
    """
    tool = tools.get(call.tool)
    if tool is None:
        raise ToolError(f"Unknown tool {shorten(call.tool, 60)!r}. {did_you_mean(call.tool, tools)}")
    properties: Mapping[str, Any] = tool.parameters["properties"]
    pairs = _object(call, tuple(properties)).items()
    read = {name: _unwrap(value, properties.get(name, {})) for name, value in pairs}
    written = replace_surrogates(json.dumps(read, ensure_ascii=False))
    if len(written) > ARGUMENT_CHARACTERS:
        raise ToolError(
            f"The arguments of {call.tool} are longer than {ARGUMENT_CHARACTERS:,} characters. Split the call"
        )
    try:
        return json.dumps(fit_arguments(json.loads(written), tool.parameters), ensure_ascii=False)
    except ToolError as error:
        raise ToolError(f"{call.tool}: {error}") from None


def _object(call: ProposedCall, names: tuple[str, ...]) -> dict[str, Any]:
    if not call.arguments.strip():
        return {}
    value: Any = call.arguments
    # Some models encode the object as a JSON string.
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
        raise ToolError(
            f"The arguments of {call.tool} are too long and were truncated. Split the call into smaller calls"
        )
    if reading.value is None:
        raise ToolError(
            f"The arguments of {call.tool} are not a JSON object: {shorten(call.arguments, 120)!r}. "
            f"Pass an object with {', '.join(names)}"
        )
    return reading.value


def _unwrap(value: Any, schema: Mapping[str, Any]) -> Any:
    """Decode an argument that the model wrote as a string although the schema does not allow a string."""
    if not isinstance(value, str) or "string" in schema.get("type", "string"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
