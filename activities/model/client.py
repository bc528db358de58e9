"""Sends one request to a model service and translates its errors."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from activities.model.calling import FirstAvailable, open_client, read_usage
from activities.model.prompt_privacy import passed
from activities.model.service import ModelService
from tightloop.errors import PlannerUnavailableError
from tightloop.executor.usage import Usage
from tightloop.safety.prompt_privacy import PromptPrivacy
from tightloop.value import shorten


class AnswerSchema(NamedTuple):
    """The object that a model is to answer with."""

    name: str
    schema: Mapping[str, Any]
    """Strict JSON schema: every property is required, none may be added."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The top-level keys."""
        return tuple(self.schema["properties"])


class Turn(NamedTuple):
    """One message of a conversation."""

    role: str
    """`user` or `assistant`."""
    text: str


class ModelAnswer(NamedTuple):
    """The answer of the service, unchanged."""

    text: str = ""
    truncated: bool = False
    """It was cut off: a valid object in it is not the whole answer."""
    refusal: str = ""
    usage: Usage = Usage()
    model: str = ""
    response_id: str = ""
    finish_reason: str = ""


class ModelClient:
    """Asks one model service. Every call is one paid request: the caller's activity does the retrying."""

    def __init__(self, service: ModelService) -> None:
        self._service = service
        self._first = FirstAvailable(service, "planner.models")

    async def ask(
        self,
        system: str,
        user: str,
        schema: AnswerSchema,
        *,
        after: Sequence[Turn] = (),
        prompt_privacy: PromptPrivacy | None = None,
    ) -> ModelAnswer:
        """Ask for a JSON object; the first model of the list that the service has answers.

        `system` is the stable part of the prompt, `user` the changing one; `after` is an answer and what was wrong
        with it. Without `prompt_privacy` the author of the prompt does not say which level it keeps.

        Raises:
            PlannerError: the service refuses; not retryable.
            PlannerUnavailableError: it is busy or down; retryable.
        """
        strictest = self._service.strictest_privacy
        system, *said = (
            passed(text, prompt_privacy, strictest=strictest) for text in (system, user, *(turn.text for turn in after))
        )
        turns = tuple(map(Turn, ("user", *(turn.role for turn in after)), said))
        return await self._first.ask(lambda model: self._ask_model(model, system, turns, schema))

    async def _ask_model(self, model: str, system: str, turns: Sequence[Turn], schema: AnswerSchema) -> ModelAnswer:
        service = self._service
        async with open_client(service) as client:
            # The stable part goes first: providers cache exact prefixes (OpenAI: from 1 024 tokens on).
            messages = [{"role": turn.role, "content": turn.text} for turn in turns]
            strict = {"name": schema.name, "schema": schema.schema, "strict": True}
            # The raw text is read: what is not JSON gets a message of our own, see `_payload`.
            body: dict[str, Any]
            if service.uses_responses:
                body = {
                    "model": model,
                    "instructions": system,
                    "input": messages,
                    "text": {"format": {"type": "json_schema", **strict}},
                    "max_output_tokens": service.max_output_tokens,
                    # Goals and code stay with the caller.
                    "store": False,
                }
                raw = await client.responses.with_raw_response.create(**body)
                return read_response(_payload(raw.http_response.text), model)
            body = {
                "model": model,
                "messages": [{"role": "system", "content": system}, *messages],
                "response_format": {"type": "json_schema", "json_schema": strict},
                # OpenAI's reasoning models refuse the old name; own services may know no other.
                "max_completion_tokens" if service.is_openai else "max_tokens": service.max_output_tokens,
            }
            raw_chat = await client.chat.completions.with_raw_response.create(**body)
            return _from_chat(_payload(raw_chat.http_response.text), model)


def _payload(body: str) -> dict[str, Any]:
    """Read the envelope. It comes from a program, so what is not JSON is a fault on the way, not an answer."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        raise PlannerUnavailableError(
            f"the model service answered with {len(body)} characters that are not its API: {shorten(body, 80)!r}. "
            "Check that the base URL ends in /v1 and that no proxy stands between"
        )
    return payload


def read_response(payload: dict[str, Any], model: str) -> ModelAnswer:
    """Read a whole answer of the Responses API.

    Raises:
        PlannerUnavailableError: it says that the service failed.
    """
    parts = [
        part
        for item in _dicts(payload.get("output"))
        if item.get("type") == "message"
        for part in _dicts(item.get("content"))
    ]
    reported = _dict(payload.get("usage"))
    if payload.get("status") == "failed":
        raise PlannerUnavailableError(f"the model service failed: {_dict(payload.get('error')).get('message', '')}")
    return ModelAnswer(
        text="".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text"),
        truncated=payload.get("status") == "incomplete",
        refusal="".join(str(part.get("refusal") or "") for part in parts if part.get("type") == "refusal"),
        usage=read_usage(reported, "input", "output"),
        model=str(payload.get("model") or model),
        response_id=str(payload.get("id") or ""),
        finish_reason=str(payload.get("status") or ""),
    )


def _from_chat(payload: dict[str, Any], model: str) -> ModelAnswer:
    choice = next(iter(_dicts(payload.get("choices"))), {})
    message = _dict(choice.get("message"))
    reason = choice.get("finish_reason")
    filtered = "the answer was stopped by the service's content filter" if reason == "content_filter" else ""
    return ModelAnswer(
        text=str(message.get("content") or ""),
        truncated=reason == "length",
        refusal=str(message.get("refusal") or filtered),
        usage=read_usage(_dict(payload.get("usage")), "prompt", "completion"),
        model=str(payload.get("model") or model),
        response_id=str(payload.get("id") or ""),
        finish_reason=str(reason or ""),
    )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
