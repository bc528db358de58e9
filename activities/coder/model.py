"""The coder's model client: requests, streams and wire formats."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from activities.coder.port import Message, ToolSpec
from activities.coder.turns import tool_as_dict
from activities.model.asking import redact_text
from activities.model.client import (
    FirstAvailable,
    ModelService,
    as_dict,
    as_dicts,
    open_client,
    read_response,
    read_usage,
)
from activities.model.observed import ModelAnswer, ProposedCall
from tightloop.coder.model import Role
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.model import Usage
from tightloop.safety.drift import PromptPrivacy

if TYPE_CHECKING:
    # Imported by the first turn: see `open_client`.
    import openai

Json = dict[str, Any]


@dataclass
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class _ChatAnswer:
    """A partially received Chat Completion."""

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
        if usage := as_dict(chunk.get("usage")):
            self.usage = read_usage(usage, "prompt", "completion")
        choice = next(iter(as_dicts(chunk.get("choices"))), {})
        self.reason = str(choice.get("finish_reason") or self.reason)
        delta = as_dict(choice.get("delta"))
        self.text += str(delta.get("content") or "")
        self.refusal += str(delta.get("refusal") or "")
        for part in as_dicts(delta.get("tool_calls")):
            function, index = as_dict(part.get("function")), part.get("index")
            if not isinstance(index, int):
                # Some services omit the index; a new call then starts with its name.
                index = len(self.calls) - (0 if function.get("name") or not self.calls else 1)
            call = self.calls.setdefault(index, _Call())
            call.id = call.id or str(part.get("id") or "")
            call.name = call.name or str(function.get("name") or "")
            call.arguments += str(function.get("arguments") or "")

    @property
    def reply(self) -> ModelAnswer:
        filtered = "the service's content filter stopped the answer" if self.reason == "content_filter" else ""
        return ModelAnswer(
            text=self.text,
            calls=tuple(ProposedCall(call.id, call.name, call.arguments) for _, call in sorted(self.calls.items())),
            truncated=self.reason == "length",
            refusal=self.refusal or filtered,
            usage=self.usage,
            model=self.model,
            response_id=self.id,
            finish_reason=self.reason,
        )


async def read_chat(stream: "AsyncIterator[openai.BaseModel]", model: str, beat: Callable[[], None]) -> ModelAnswer:
    """Read a streamed Chat Completion to its end.

    Raises:
        PlannerUnavailableError: the stream ended early.
    """
    answer = _ChatAnswer(model)
    async for chunk in stream:
        beat()
        answer.take(chunk.to_dict())
    # A closed connection looks like the end of the stream; only the finish reason proves that it is complete.
    if not answer.reason:
        raise _ended_early(model)
    return answer.reply


async def read_responses(
    stream: "AsyncIterator[openai.BaseModel]", model: str, beat: Callable[[], None]
) -> ModelAnswer:
    """Read a streamed response from the Responses API. Its last event contains the entire response.

    Raises:
        PlannerUnavailableError: the stream ended early or the service reports a failure.
    """
    last: Json = {}
    async for event in stream:
        beat()
        piece = event.to_dict()
        if piece.get("type") in ("response.completed", "response.incomplete", "response.failed"):
            last = as_dict(piece.get("response"))
    if not last:
        raise _ended_early(model)
    items = [item for item in as_dicts(last.get("output")) if item.get("type") == "function_call"]
    calls = (ProposedCall(*(str(item.get(name) or "") for name in ("call_id", "name", "arguments"))) for item in items)
    return read_response(last, model)._replace(calls=tuple(calls))


def _ended_early(model: str) -> PlannerUnavailableError:
    return PlannerUnavailableError(f"the answer from model {model} is incomplete because the connection was closed")


def chat_request(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Json:
    """Build the messages and tools of a streamed Chat Completions request."""
    return {
        "tools": [{"type": "function", "function": tool_as_dict(tool)} for tool in tools],
        "messages": [_chat_message(message) for message in join_user_messages(messages)],
        "parallel_tool_calls": True,
        "stream": True,
        # Without it a streamed answer reports no usage.
        "stream_options": {"include_usage": True},
    }


def responses_request(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Json:
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    rest = join_user_messages([message for message in messages if message.role != "system"])
    return {
        "tools": [{"type": "function", **tool_as_dict(tool)} for tool in tools],
        "instructions": system,
        "input": [item for message in rest for item in _items(message)],
        "parallel_tool_calls": True,
        "stream": True,
        # The service must not store goals and code.
        "store": False,
    }


def join_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Join consecutive user messages, because the chat templates of some local models reject them."""
    result: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        if role == "user":
            result.append(Message("user", "\n\n".join(message.text for message in group)))
        else:
            result.extend(group)
    return result


def _chat_message(message: Message) -> Json:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if not message.calls:
        return {"role": message.role, "content": message.text}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.arguments}}
        for call in message.calls
    ]
    # Some services reject null as the text of a message with calls.
    return {"role": "assistant", "content": message.text, "tool_calls": calls}


def _items(message: Message) -> list[Json]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.call_id, "output": message.text}]
    texts = [{"role": message.role, "content": message.text}] if message.text or not message.calls else []
    calls = (
        {"type": "function_call", "call_id": call.id, "name": call.tool, "arguments": call.arguments}
        for call in message.calls
    )
    return [*texts, *calls]


def map_texts(message: Message, change: Callable[[str], str]) -> Message:
    """Apply `change` to all text in a message, including the text in call arguments."""
    # Applied to decoded values: on raw JSON, a placeholder could replace a quote and break it.
    mapped = [
        json.dumps(_mapped_value(json.loads(call.arguments), change), ensure_ascii=False) for call in message.calls
    ]
    calls = tuple(call._replace(arguments=new) for call, new in zip(message.calls, mapped, strict=True))
    return message._replace(text=change(message.text), calls=calls)


def _mapped_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped_value(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _mapped_value(item, change) for key, item in value.items()}
    return value


AGENT = "coder"
OPTIONAL = ("temperature", "top_p", "parallel_tool_calls", "tool_choice", "stream_options", "prompt_cache_key")
"""Optional parameters that a service may reject by name. OpenAI's reasoning models do not accept `temperature`, and
older servers do not accept `parallel_tool_calls`."""


@dataclass(frozen=True)
class OpenAIModel:
    """The models of one service. Each reply is one paid request. The calling activity handles retries."""

    service: ModelService
    missing: set[str] = field(default_factory=set)
    """Models that the service reported as unknown."""
    refused: dict[str, set[str]] = field(default_factory=dict)
    """The parameters that the service rejected, by model."""

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        role: Role,
        session: str,
        privacy: PromptPrivacy,
        beat: Callable[[], None],
    ) -> ModelAnswer:
        """Send one request and return the response. Cancelling the task closes the connection."""
        service = replace(self.service, models=role.models or self.service.models)
        # Scrubbing a long conversation would block the event loop for too long.
        cleared = await asyncio.to_thread(self._apply_privacy, messages, privacy)
        request = (responses_request if service.uses_responses else chat_request)(cleared, tools)
        body = {**request, **request_options(service, role, session)}
        return await FirstAvailable(service, "coder.models", self.missing).ask(
            lambda model: self._ask(model, body, beat), conversation=session, agent=AGENT
        )

    def _apply_privacy(self, messages: Sequence[Message], privacy: PromptPrivacy) -> Sequence[Message]:
        if privacy is PromptPrivacy.SUMMARY:
            raise PlannerError(
                "cannot start the coder: it sends code to its model, but privacy.prompts is 'summary' for this "
                "project. Set privacy.prompts to 'redacted' or 'full', or choose an executor that has its own model"
            )
        if privacy is PromptPrivacy.FULL:
            return messages
        strictest = self.service.strictest_privacy
        return [
            map_texts(message, lambda text: redact_text(text, privacy, strictest=strictest)) for message in messages
        ]

    async def _ask(self, model: str, body: Json, beat: Callable[[], None]) -> ModelAnswer:
        import openai

        service = self.service
        read = read_responses if service.uses_responses else read_chat
        try:
            # For the whole answer; the timeout of the client limits only the silence within it.
            async with asyncio.timeout(service.timeout_s), open_client(service, silence_s=service.silence_s) as client:
                create = client.responses.create if service.uses_responses else client.chat.completions.create
                # Close the stream: an abandoned one continues and is billed.
                async with await self._begin(create, {"model": model, **body}) as stream:
                    return await read(stream, model, beat)
        except TimeoutError:
            problem = f"did not finish its answer within {service.timeout_s:g} s (coder.timeout_s)"
        except openai.APITimeoutError:
            problem = f"sent nothing for {service.silence_s:g} s (coder.silence_s)"
        except ValueError as error:
            # The SDK parses each event as JSON.
            problem = f"sent an event that is not JSON: {error}"
        raise PlannerUnavailableError(f"model {model} {problem}")

    async def _begin(self, create: Any, body: dict[str, Any]) -> Any:
        """Send a request.

        If the service rejects parameters by name, the request is sent again without these parameters. A
        rejected request costs nothing.
        """
        import openai

        refused = self.refused.setdefault(body["model"], set())
        # Ends, because each round removes one of the few optional parameters.
        while True:
            try:
                return await create(**{name: value for name, value in body.items() if name not in refused})
            except openai.APIStatusError as error:
                named = _find_rejected_name(error, [name for name in OPTIONAL if name in body and name not in refused])
                if error.status_code not in (400, 422) or not named:
                    raise
                refused.add(named)


def request_options(service: ModelService, role: Role, session: str) -> dict[str, Any]:
    """Return the request options for a role: limits, sampling parameters and OpenAI-only options."""
    limit = "max_output_tokens" if service.uses_responses else "max_completion_tokens"
    if not service.uses_responses and not service.is_openai:
        # OpenAI's reasoning models reject the old name; self-hosted services may know no other.
        limit = "max_tokens"
    options: dict[str, Any] = {limit: role.max_output_tokens}
    for name, value in (("temperature", role.temperature), ("top_p", role.top_p)):
        if value is not None:
            options[name] = value
    if service.is_openai:
        # Many other servers reject the first option or do not know the second.
        options["tool_choice"] = "required"
        if session:
            options["prompt_cache_key"] = session
    return options


def _find_rejected_name(error: "openai.APIStatusError", names: Sequence[str]) -> str:
    """Return the name of the parameter that the service rejected, or ""."""
    return next((name for name in names if error.param == name or re.search(rf"\b{name}\b", error.message)), "")
