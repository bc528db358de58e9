"""OpenAI Chat Completions: `POST /v1/chat/completions`."""

from typing import Any

from tests.support.fake_model.exchange import Answer, Asked, Json, event, pieces, since_last
from tests.support.fake_model.script import Tool

CREATED = 1_760_000_000


class Chat:
    """The wire format that most services speak."""

    def read(self, path: str, body: Json) -> Asked:
        turns = body["messages"]
        functions = [tool["function"] for tool in body.get("tools") or [] if tool.get("type") == "function"]
        return Asked(
            model=str(body.get("model", "")),
            tools=tuple(Tool(function["name"], function.get("parameters") or {}) for function in functions),
            step=since_last(
                [turn["role"] == "user" for turn in turns],
                [int(turn["role"] == "tool") for turn in turns],
            ),
            stream=bool(body.get("stream")),
            usage_in_stream=bool((body.get("stream_options") or {}).get("include_usage")),
        )

    def whole(self, answer: Answer) -> Json:
        message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None, "annotations": []}
        if answer.calls:
            message["tool_calls"] = [_call(answer, n, call.written) for n, call in enumerate(answer.calls)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(answer)}
        return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}

    def stream(self, answer: Answer) -> list[bytes]:
        chunks = [*_deltas(answer), _chunk(answer, {}, _reason(answer))]
        if answer.asked.usage_in_stream:
            chunks.append({**_head(answer, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)})
        return [*(event(chunk) for chunk in chunks), event("[DONE]")]

    def broken_stream(self, answer: Answer) -> list[bytes]:
        text = "The server had an error processing your request. Sorry about that!"
        error = {"message": text, "type": "server_error", "param": None, "code": None}
        return [event(_deltas(answer)[0]), event({"error": error})]


def _head(answer: Answer, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": CREATED,
        "model": answer.asked.model,
        "service_tier": "default",
        "system_fingerprint": "fp_0",
    }


def _usage(answer: Answer) -> Json:
    tokens = answer.tokens
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        **({} if tokens.cost_usd is None else {"cost": tokens.cost_usd}),
    }


def _reason(answer: Answer) -> str:
    if answer.cut:
        return "length"
    return "tool_calls" if answer.calls else "stop"


def _call(answer: Answer, number: int, arguments: str) -> Json:
    function = {"name": answer.calls[number].tool.name, "arguments": arguments}
    return {"id": answer.call_id(number), "type": "function", "function": function}


def _chunk(answer: Answer, delta: dict[str, Any], reason: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    usage = {"usage": None} if answer.asked.usage_in_stream else {}
    return {**_head(answer, "chat.completion.chunk"), "choices": [choice], **usage}


def _deltas(answer: Answer) -> list[Json]:
    said: list[Json] = []
    if answer.text or not answer.calls:
        first = _chunk(answer, {"role": "assistant", "content": "", "refusal": None})
        said = [first, *(_chunk(answer, {"content": piece}) for piece in pieces(answer.text))]
    called = [delta for number in range(len(answer.calls)) for delta in _call_deltas(answer, number)]
    if called and not said:
        called[0] = {"role": "assistant", "content": None, **called[0]}
    return [*said, *(_chunk(answer, delta) for delta in called)]


def _call_deltas(answer: Answer, number: int) -> list[Json]:
    begun = {"tool_calls": [{"index": number, **_call(answer, number, "")}]}
    parts = pieces(answer.calls[number].written)
    return [begun, *({"tool_calls": [{"index": number, "function": {"arguments": part}}]} for part in parts)]
