"""Gemini: `POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent?alt=sse`."""

from typing import Any

from tests.support.fake_model.exchange import Answer, Asked, Json, event, pieces, since_last
from tests.support.fake_model.script import Tool


class Gemini:
    """The wire format that gemini speaks."""

    def read(self, path: str, body: Json) -> Asked:
        turns = [(turn.get("role", "user"), _results(turn.get("parts") or [])) for turn in body["contents"]]
        model, _colon, method = path.partition("?")[0].rpartition("/")[2].partition(":")
        return Asked(
            model=model,
            tools=tuple(_tools(body.get("tools") or [])),
            step=since_last(
                [role == "user" and not results for role, results in turns], [results for _role, results in turns]
            ),
            stream=method == "streamGenerateContent",
        )

    def whole(self, answer: Answer) -> Json:
        return _chunk(answer, _part(answer), last=True)

    def stream(self, answer: Answer) -> list[bytes]:
        """The service tells the usage in every chunk, and in the last one why it ended."""
        if answer.call:
            return [event(self.whole(answer))]
        texts = [*pieces(answer.text)]
        return [event(_chunk(answer, {"text": text}, last=at == len(texts) - 1)) for at, text in enumerate(texts)]

    def broken_stream(self, answer: Answer) -> list[bytes]:
        text = "An internal error has occurred. Please retry or report in https://developers.generativeai.google/guide/troubleshooting"
        error = {"code": 500, "message": text, "status": "INTERNAL"}
        return [event(_chunk(answer, {"text": ""}, last=False)), event({"error": error})]


def _results(parts: list[Json]) -> int:
    return sum("functionResponse" in part for part in parts)


def _tools(offered: list[Json]) -> list[Tool]:
    functions = [function for group in offered for function in group.get("functionDeclarations") or []]
    return [Tool(f["name"], f.get("parametersJsonSchema") or f.get("parameters") or {}) for f in functions]


def _part(answer: Answer) -> Json:
    if answer.call is None:
        return {"text": answer.text}
    return {"functionCall": {"name": answer.call.tool.name, "args": dict(answer.call.arguments)}}


def _chunk(answer: Answer, part: dict[str, Any], *, last: bool) -> Json:
    tokens = answer.tokens
    candidate: Json = {"content": {"parts": [part], "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = "STOP"
    usage = {
        "promptTokenCount": tokens.input,
        "candidatesTokenCount": tokens.output if last else 0,
        "totalTokenCount": tokens.input + (tokens.output if last else 0),
        "cachedContentTokenCount": tokens.cached,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens.input}],
    }
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": answer.asked.model,
        "responseId": answer.id,
    }
