"""OpenAI Responses: `POST /v1/responses`."""

from typing import Any

from tests.support.fake_model.exchange import Answer, Asked, Json, event, pieces, since_last
from tests.support.fake_model.script import Tool

CREATED_AT = 1_760_000_000


class Responses:
    """The wire format that codex speaks."""

    def read(self, path: str, body: Json) -> Asked:
        items = body["input"] if isinstance(body["input"], list) else [{"role": "user"}]
        return Asked(
            model=str(body.get("model", "")),
            tools=tuple(_tools(body.get("tools") or [])),
            step=since_last(
                [item.get("role") == "user" for item in items],
                [int(str(item.get("type", "")).endswith("_output")) for item in items],
            ),
            stream=bool(body.get("stream")),
        )

    def whole(self, answer: Answer) -> Json:
        return _response(answer, "completed", [_item(answer, "completed")])

    def stream(self, answer: Answer) -> list[bytes]:
        item = _item(answer, "completed")
        return _numbered(
            [
                *_opening(answer),
                ("response.output_item.added", {"output_index": 0, "item": _item(answer, "in_progress")}),
                *_content(answer, item["id"]),
                ("response.output_item.done", {"output_index": 0, "item": item}),
                ("response.completed", {"response": self.whole(answer)}),
            ]
        )

    def broken_stream(self, answer: Answer) -> list[bytes]:
        error = {
            "code": "server_error",
            "message": "The server had an error processing your request. Sorry about that!",
        }
        failed = {**_response(answer, "failed", []), "usage": None, "error": error}
        return _numbered([*_opening(answer), ("response.failed", {"response": failed})])


def _tools(offered: list[Json]) -> list[Tool]:
    found = []
    for tool in offered:
        kind = tool.get("type", "function")
        if kind == "local_shell":
            found.append(Tool("local_shell", hosted=True))
        elif kind in ("function", "custom"):
            found.append(Tool(tool["name"], tool.get("parameters") or {}, freeform=kind == "custom"))
    return found


def _response(answer: Answer, status: str, output: list[Json]) -> Json:
    tokens = answer.tokens
    usage = {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens.input + tokens.output,
    }
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": CREATED_AT,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": answer.asked.model,
        "output": output,
        "parallel_tool_calls": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if status == "completed" else None,
    }


def _item(answer: Answer, status: str) -> Json:
    """Return the one output item, empty while it is in progress."""
    call, done = answer.call, status == "completed"
    if call is None:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{answer.id}", "type": "message", "status": status, "role": "assistant"}
        return {**message, "content": [part] if done else []}
    if call.tool.hosted:
        action = {"type": "exec", "command": call.arguments["command"], "env": {}}
        named = {"call_id": f"call_{answer.id}", "status": status, "action": action}
        return {"id": f"lsh_{answer.id}", "type": "local_shell_call", **named}
    named = {"status": status, "call_id": f"call_{answer.id}", "name": call.tool.name}
    if call.tool.freeform:
        return {"id": f"ctc_{answer.id}", "type": "custom_tool_call", **named, "input": call.text if done else ""}
    return {
        "id": f"fc_{answer.id}",
        "type": "function_call",
        **named,
        "arguments": answer.arguments if done else "",
    }


Event = tuple[str, dict[str, Any]]


def _opening(answer: Answer) -> list[Event]:
    begun = {"response": _response(answer, "in_progress", [])}
    return [("response.created", begun), ("response.in_progress", begun)]


def _content(answer: Answer, item_id: str) -> list[Event]:
    call, at = answer.call, {"item_id": item_id, "output_index": 0}
    if call is None:
        return _said(answer.text, {**at, "content_index": 0})
    if call.tool.hosted:
        return []
    if call.tool.freeform:
        deltas = [("response.custom_tool_call_input.delta", {**at, "delta": piece}) for piece in pieces(call.text)]
        return [*deltas, ("response.custom_tool_call_input.done", {**at, "input": call.text})]
    name = {"name": call.tool.name}
    deltas = [("response.function_call_arguments.delta", {**at, "delta": p}) for p in pieces(answer.arguments)]
    return [*deltas, ("response.function_call_arguments.done", {**at, **name, "arguments": answer.arguments})]


def _said(text: str, at: Json) -> list[Event]:
    part = {"type": "output_text", "annotations": [], "logprobs": []}
    deltas = [("response.output_text.delta", {**at, "delta": piece, "logprobs": []}) for piece in pieces(text)]
    return [
        ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
        *deltas,
        ("response.output_text.done", {**at, "text": text, "logprobs": []}),
        ("response.content_part.done", {**at, "part": {**part, "text": text}}),
    ]


def _numbered(events: list[Event]) -> list[bytes]:
    return [event({"type": name, "sequence_number": n, **data}, name) for n, (name, data) in enumerate(events)]
