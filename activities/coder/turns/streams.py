"""Reads streamed answers, piece by piece, without trust in their form."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from activities.coder.port import ModelReply, ProposedCall
from activities.model.calling import read_usage
from activities.model.client import read_response
from tightloop.errors import PlannerUnavailableError
from tightloop.executor.usage import Usage

Json = dict[str, Any]


class Piece(Protocol):
    """One event of a stream, as the SDK read it."""

    def to_dict(self) -> dict[str, object]:
        """Return what came."""
        ...


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class _ChatAnswer:
    """A Chat Completion, as far as it has come."""

    model: str
    id: str = ""
    text: str = ""
    refusal: str = ""
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    calls: dict[int, _Call] = field(default_factory=dict)

    def take(self, chunk: Json) -> None:
        self.model = str(chunk.get("model") or self.model)
        self.id = str(chunk.get("id") or self.id)
        if usage := _dict(chunk.get("usage")):
            self.usage = read_usage(usage, "prompt", "completion")
        choice = next(iter(_dicts(chunk.get("choices"))), {})
        self.reason = str(choice.get("finish_reason") or self.reason)
        delta = _dict(choice.get("delta"))
        self.text += str(delta.get("content") or "")
        self.refusal += str(delta.get("refusal") or "")
        for part in _dicts(delta.get("tool_calls")):
            self._take_call(part)

    def _take_call(self, part: Json) -> None:
        function, index = _dict(part.get("function")), part.get("index")
        if not isinstance(index, int):
            # Some services leave the number out; a call then begins with its name.
            index = len(self.calls) - (0 if function.get("name") or not self.calls else 1)
        call = self.calls.setdefault(index, _Call())
        call.id = call.id or str(part.get("id") or "")
        call.name = call.name or str(function.get("name") or "")
        call.arguments += str(function.get("arguments") or "")

    @property
    def reply(self) -> ModelReply:
        filtered = "the answer was stopped by the service's content filter" if self.reason == "content_filter" else ""
        return ModelReply(
            text=self.text,
            calls=tuple(ProposedCall(call.id, call.name, call.arguments) for _, call in sorted(self.calls.items())),
            truncated=self.reason == "length",
            refusal=self.refusal or filtered,
            usage=self.usage,
            model=self.model,
            response_id=self.id,
            finish_reason=self.reason,
        )


async def read_chat(stream: AsyncIterator[Piece], model: str, beat: Callable[[], None]) -> ModelReply:
    """Read a Chat Completion to its end.

    Raises:
        PlannerUnavailableError: it ended too early.
    """
    answer = _ChatAnswer(model)
    async for chunk in stream:
        beat()
        answer.take(chunk.to_dict())
    if not answer.reason:
        raise _ended_early(model)
    return answer.reply


async def read_responses(stream: AsyncIterator[Piece], model: str, beat: Callable[[], None]) -> ModelReply:
    """Read an answer of the Responses API to its end; the last event holds all of it.

    Raises:
        PlannerUnavailableError: it ended too early, or the service says that it failed.
    """
    last: Json = {}
    async for event in stream:
        beat()
        piece = event.to_dict()
        if piece.get("type") in ("response.completed", "response.incomplete", "response.failed"):
            last = _dict(piece.get("response"))
    if not last:
        raise _ended_early(model)
    answer = read_response(last, model)
    items = [item for item in _dicts(last.get("output")) if item.get("type") == "function_call"]
    calls = (ProposedCall(*(str(item.get(name) or "") for name in ("call_id", "name", "arguments"))) for item in items)
    return ModelReply(calls=tuple(calls), **answer._asdict())


def _ended_early(model: str) -> PlannerUnavailableError:
    return PlannerUnavailableError(f"the answer of model {model} ended before its end: the connection was closed")


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
