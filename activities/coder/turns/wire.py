"""Requests as the two APIs of OpenAI want them. Keys and order are the same in every turn: providers cache prefixes."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from activities.coder.port import Message, ProposedCall, ToolSpec
from activities.coder.turns.conversation import tool_as_dict

Json = dict[str, Any]


def chat_request(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Json:
    """Return messages and tools of a streamed Chat Completions request."""
    return {
        "tools": [{"type": "function", "function": tool_as_dict(tool)} for tool in tools],
        "messages": [_chat_message(message) for message in joined(messages)],
        "parallel_tool_calls": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def responses_request(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Json:
    """Return messages and tools of a streamed Responses request."""
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    rest = joined([message for message in messages if message.role != "system"])
    return {
        "tools": [{"type": "function", **tool_as_dict(tool)} for tool in tools],
        "instructions": system,
        "input": [item for message in rest for item in _items(message)],
        "parallel_tool_calls": True,
        "stream": True,
        # Goals and code stay with the caller.
        "store": False,
    }


def joined(messages: Sequence[Message]) -> list[Message]:
    """Join messages of the user that follow each other: templates of some local models refuse two in a row."""
    found: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "user":
            found.append(Message("user", "\n\n".join(message.text for message in group)))
        else:
            found.extend(group)
    return found


def _chat_message(message: Message) -> Json:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if not message.calls:
        return {"role": message.role, "content": message.text}
    # Some services take no null for the text beside calls.
    return {"role": "assistant", "content": message.text, "tool_calls": [_chat_call(call) for call in message.calls]}


def _chat_call(call: ProposedCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.arguments}}


def _items(message: Message) -> list[Json]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id, "output": message.text}]
    said = [{"role": message.role, "content": message.text}] if message.text or not message.calls else []
    calls = (
        {"type": "function_call", "call_id": call.id, "name": call.tool, "arguments": call.arguments}
        for call in message.calls
    )
    return [*said, *calls]


def mapped(message: Message, change: Callable[[str], str]) -> Message:
    """Return a message with all its texts changed, those within the arguments of calls too."""
    calls = tuple(call._replace(arguments=_mapped_arguments(call.arguments, change)) for call in message.calls)
    return message._replace(text=change(message.text), calls=calls)


def _mapped_arguments(arguments: str, change: Callable[[str], str]) -> str:
    # As JSON they would not be JSON any more where a mark takes the place of a quote.
    return json.dumps(_mapped_value(json.loads(arguments), change), ensure_ascii=False)


def _mapped_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped_value(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _mapped_value(item, change) for key, item in value.items()}
    return value
