"""Anthropic Messages: `POST /v1/messages`."""

from typing import Any

from tests.support.fake_model.exchange import Answer, Asked, Json, event, pieces, since_last
from tests.support.fake_model.script import Tool


class Messages:
    """The wire format that claude speaks."""

    def read(self, path: str, body: Json) -> Asked:
        turns = [(turn["role"], _results(turn["content"])) for turn in body["messages"]]
        own = [tool for tool in body.get("tools") or [] if "input_schema" in tool]
        return Asked(
            model=str(body.get("model", "")),
            tools=tuple(Tool(tool["name"], tool["input_schema"]) for tool in own),
            step=since_last(
                [role == "user" and not results for role, results in turns], [results for _role, results in turns]
            ),
            stream=bool(body.get("stream")),
        )

    def whole(self, answer: Answer) -> Json:
        block = _block(answer, dict(answer.call.arguments)) if answer.call else {"type": "text", "text": answer.text}
        ended = {"content": [block], "stop_reason": _reason(answer)}
        return {**_head(answer), **ended, "usage": _usage(answer, answer.tokens.output)}

    def stream(self, answer: Answer) -> list[bytes]:
        if answer.call:
            start: Json = _block(answer, {})
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(answer.arguments)]]
        else:
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(answer.text)]
        ended = {"delta": {"stop_reason": _reason(answer), "stop_sequence": None}}
        return [
            *_opening(answer),
            _event("content_block_start", index=0, content_block=start),
            _event("ping"),
            *(_event("content_block_delta", index=0, delta=delta) for delta in deltas),
            _event("content_block_stop", index=0),
            _event("message_delta", **ended, usage=_usage(answer, answer.tokens.output)),
            _event("message_stop"),
        ]

    def broken_stream(self, answer: Answer) -> list[bytes]:
        error = {"type": "api_error", "message": "Internal server error", "details": None}
        return [*_opening(answer), _event("error", error=error, request_id=f"req_{answer.id}")]


def _results(content: Any) -> int:
    blocks = content if isinstance(content, list) else []
    return sum(block.get("type") == "tool_result" for block in blocks)


def _head(answer: Answer) -> Json:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(answer: Answer, output: int) -> Json:
    """Here what came from the cache is not part of `input_tokens`."""
    tokens = answer.tokens
    return {
        "input_tokens": tokens.input - tokens.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": output,
        "service_tier": "standard",
    }


def _reason(answer: Answer) -> str:
    return "tool_use" if answer.call else "end_turn"


def _block(answer: Answer, arguments: Json) -> Json:
    name = answer.call.tool.name if answer.call else ""
    return {"type": "tool_use", "id": f"toolu_{answer.id}", "name": name, "input": arguments}


def _opening(answer: Answer) -> list[bytes]:
    return [_event("message_start", message={**_head(answer), "usage": _usage(answer, 1)})]


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)
