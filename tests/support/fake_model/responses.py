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
        status = "incomplete" if answer.cut else "completed"
        return _response(answer, status, [_item(answer, number, status) for number in _places(answer)])

    def stream(self, answer: Answer) -> list[bytes]:
        whole = self.whole(answer)
        events = [
            event for index, number in enumerate(_places(answer)) for event in _item_events(answer, index, number)
        ]
        return _numbered([*_opening(answer), *events, (f"response.{whole['status']}", {"response": whole})])

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
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": answer.asked.model,
        "output": output,
        "parallel_tool_calls": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if status in ("completed", "incomplete") else None,
    }


def _places(answer: Answer) -> list[int | None]:
    """Return the output items: None for what is said, the number of each call."""
    said: list[int | None] = [None] if answer.text or not answer.calls else []
    return [*said, *range(len(answer.calls))]


def _item(answer: Answer, number: int | None, status: str) -> Json:
    """Return an output item, empty while it is in progress."""
    done = status != "in_progress"
    if number is None:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{answer.id}", "type": "message", "status": status, "role": "assistant"}
        return {**message, "content": [part] if done else []}
    call, call_id = answer.calls[number], answer.call_id(number)
    own_id = call_id.removeprefix("call_")
    if call.tool.hosted:
        action = {"type": "exec", "command": call.arguments["command"], "env": {}}
        return {
            "id": f"lsh_{own_id}",
            "type": "local_shell_call",
            "call_id": call_id,
            "status": status,
            "action": action,
        }
    named = {"status": status, "call_id": call_id, "name": call.tool.name}
    if call.tool.freeform:
        return {"id": f"ctc_{own_id}", "type": "custom_tool_call", **named, "input": call.text if done else ""}
    return {"id": f"fc_{own_id}", "type": "function_call", **named, "arguments": call.written if done else ""}


Event = tuple[str, dict[str, Any]]


def _opening(answer: Answer) -> list[Event]:
    begun = {"response": _response(answer, "in_progress", [])}
    return [("response.created", begun), ("response.in_progress", begun)]


def _item_events(answer: Answer, index: int, number: int | None) -> list[Event]:
    item = _item(answer, number, "completed")
    return [
        ("response.output_item.added", {"output_index": index, "item": _item(answer, number, "in_progress")}),
        *_content(answer, number, {"item_id": item["id"], "output_index": index}),
        ("response.output_item.done", {"output_index": index, "item": item}),
    ]


def _content(answer: Answer, number: int | None, at: Json) -> list[Event]:
    if number is None:
        return _said(answer.text, {**at, "content_index": 0})
    call = answer.calls[number]
    if call.tool.hosted:
        return []
    if call.tool.freeform:
        deltas = [("response.custom_tool_call_input.delta", {**at, "delta": piece}) for piece in pieces(call.text)]
        return [*deltas, ("response.custom_tool_call_input.done", {**at, "input": call.text})]
    name = {"name": call.tool.name}
    deltas = [("response.function_call_arguments.delta", {**at, "delta": p}) for p in pieces(call.written)]
    return [*deltas, ("response.function_call_arguments.done", {**at, **name, "arguments": call.written})]


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
