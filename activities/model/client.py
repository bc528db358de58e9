"""Client for a model service: requests, responses and TLS."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx2

from activities.model.observed import ModelAnswer, operation
from tightloop import telemetry
from tightloop.episode.model import planner_problem
from tightloop.errors import PlannerError, PlannerUnavailableError
from tightloop.executor.model import Usage
from tightloop.safety.drift import PromptPrivacy
from tightloop.value import shorten

if TYPE_CHECKING:
    import openai


OPENAI_URL = "https://api.openai.com/v1"
DEFAULT_MODELS = ("gpt-5.1", "gpt-5-mini")


@dataclass(frozen=True, kw_only=True)
class ModelService:
    """An OpenAI-compatible service and its options."""

    api_key: str = field(default="", repr=False)
    base_url: str = OPENAI_URL
    models: tuple[str, ...] = DEFAULT_MODELS
    """Models in order of preference. If the service does not offer a model, the next one is used."""
    api: Literal["auto", "responses", "chat"] = "auto"
    """API to use. `auto` uses Responses for OpenAI itself and Chat Completions elsewhere, where Responses often ignores
    the schema.
    """
    timeout_s: float = 100.0
    """Timeout for each request. It must be shorter than the activity's timeout."""
    silence_s: float = 120.0
    """Longest pause between the chunks of a streamed response."""
    max_output_tokens: int = 8_000
    corrections: int = 2
    """Maximum number of times that a malformed response is sent back."""
    context_characters: int = 60_000
    """Size limit for the part of a prompt that varies."""
    strictest_privacy: PromptPrivacy = PromptPrivacy.FULL
    """The strictest level of all served projects. It applies to prompts that do not have their own level."""
    planner: str = "auto"
    """The planner from the settings, which is used if a request says `auto`."""

    @property
    def configured(self) -> bool:
        """True if the service has a key or is self-hosted. A self-hosted service may not need a key."""
        return bool(self.api_key) or not self.is_openai

    def plans(self, planner: str) -> bool:
        """Return whether planners of this kind use the model."""
        return self.configured and self._kind(planner) in ("auto", "openai")

    def must_plan(self, planner: str) -> bool:
        """Like `plans`, but raise an error if this kind of planner cannot be used.

        Raises:
            PlannerError: the kind is unknown or its key is missing.
        """
        if problem := planner_problem(planner):
            raise PlannerError(problem)
        if not self.configured and self._kind(planner) == "openai":
            raise PlannerError(
                "planner 'openai' has no API key. Set OPENAI_API_KEY, set the base URL of your service, "
                "or use 'heuristic'"
            )
        return self.plans(planner)

    def _kind(self, planner: str) -> str:
        return self.planner if planner == "auto" else planner

    @property
    def is_openai(self) -> bool:
        host = urlsplit(self.base_url or OPENAI_URL).hostname or ""
        # Regional endpoints have names such as eu.api.openai.com. With the dot, because notopenai.com is another host.
        return host == "openai.com" or host.endswith(".openai.com")

    @property
    def uses_responses(self) -> bool:
        return self.api == "responses" or (self.api == "auto" and self.is_openai)


def open_client(service: ModelService, *, silence_s: float | None = None) -> "openai.AsyncOpenAI":
    """Open a client for a service. Use the client as a context manager.

    Args:
        service: the service to connect to.
        silence_s: the longest pause allowed within a streamed response. It is also the time limit for a
            response that is not streamed.
    """
    # Importing the SDK takes most of a second: a worker that asks no model never pays for it.
    import httpx2
    import openai

    from activities.model.failure import bounded_client

    return openai.AsyncOpenAI(
        http_client=bounded_client(),
        # A dummy key: self-hosted services need none, and the SDK must not look for one in the environment.
        api_key=service.api_key or "none",
        base_url=service.base_url or OPENAI_URL,
        # A read timeout limits the silence between two chunks, not the whole answer.
        timeout=httpx2.Timeout(service.timeout_s, read=min(silence_s or service.timeout_s, service.timeout_s)),
        # Temporal retries instead: durable, visible, and after the delay that the service asks for.
        max_retries=0,
    )


def load_client(service: ModelService) -> None:
    """Import the modules that the SDK would otherwise import during the first request."""
    client = open_client(service)
    _ = client.responses if service.uses_responses else client.chat.completions


class FirstAvailable:
    """Sends requests to the first available model in a list."""

    def __init__(self, service: ModelService, setting: str, missing: set[str] | None = None) -> None:
        """Set the service, the setting to name in errors and the models known to be missing."""
        self._service = service
        self._setting = setting
        self._missing = set() if missing is None else missing

    async def ask(
        self, call: Callable[[str], Awaitable[ModelAnswer]], *, conversation: str = "", agent: str = ""
    ) -> ModelAnswer:
        """Call the first available model and return the result.

        Args:
            call: asks a model.
            conversation: the conversation's id for telemetry.
            agent: name of the calling agent, for telemetry.

        Raises:
            PlannerError: the service refuses or offers none of the models. Not retryable.
            PlannerUnavailableError: the service is busy or down. Retryable.
        """
        import openai

        from activities.model.failure import model_missing, too_large, translate_error
        from activities.model.repair import AnswerError

        refused: list[str] = []
        models = self._service.models
        # If all were missing, try all again: access may have been granted since.
        for model in tuple(candidate for candidate in models if candidate not in self._missing) or models:
            try:
                # The telemetry conventions use this name for every service with OpenAI's API.
                attributes = {telemetry.PROVIDER: "openai", telemetry.REQUEST_MODEL: model}
                attributes |= {telemetry.CONVERSATION: conversation, telemetry.AGENT: agent}
                with operation(telemetry.CHAT, model, attributes) as span:
                    answer = await call(model)
                    span.record_answer(answer)
                return answer
            except openai.APIStatusError as error:
                if not model_missing(error):
                    raise translate_error(error, model) from error
                # Remembered, because every further attempt would cost a request.
                self._missing.add(model)
                refused.append(f"{model} ({error.status_code})")
            except AnswerError as error:
                raise too_large(error, model) from error
            except openai.APIError as error:
                raise translate_error(error, model) from error
        raise PlannerError(
            f"{self._service.base_url} offers none of the models {', '.join(refused) or '(none configured)'}. "
            f"Set {self._setting} to models that this key can access, and check the base URL"
        )


def read_usage(reported: dict[str, Any], came_in: str, went_out: str) -> Usage:
    """Read the token usage that a service reported.

    Args:
        reported: the response's `usage` object, or an empty dict.
        came_in: the API's prefix for prompt tokens: `input` or `prompt`.
        went_out: the API's prefix for response tokens: `output` or `completion`.
    """
    details = reported.get(f"{came_in}_tokens_details")
    cost = reported.get("cost")
    return Usage(
        input_tokens=_count(reported.get(f"{came_in}_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        output_tokens=_count(reported.get(f"{went_out}_tokens")),
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


class AnswerSchema(NamedTuple):
    """The schema of the object that a model must return."""

    name: str
    schema: Mapping[str, Any]
    """Strict JSON schema. All properties are required and no others are allowed."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.schema["properties"])


async def request_answer(
    service: ModelService, model: str, messages: Sequence[Mapping[str, str]], schema: AnswerSchema
) -> ModelAnswer:
    """Ask a model for a JSON object in a single paid request. The calling activity handles retries.

    Args:
        service: the service that offers the model.
        model: the model's name.
        messages: the messages, each with `role` and `content`. The system message comes first.
        schema: the object's schema.

    Raises:
        PlannerUnavailableError: the response does not come from a model API or reports a failure.
            Retryable.
    """
    async with open_client(service) as client:
        # The stable part comes first: providers cache exact prefixes (OpenAI: of 1 024 tokens or more).
        strict = {"name": schema.name, "schema": schema.schema, "strict": True}
        # Read the raw text, so that non-JSON gets our own error message, see `_payload`.
        body: dict[str, Any]
        if service.uses_responses:
            body = {
                "model": model,
                "instructions": messages[0]["content"],
                "input": messages[1:],
                "text": {"format": {"type": "json_schema", **strict}},
                "max_output_tokens": service.max_output_tokens,
                # The service must not store goals and code.
                "store": False,
            }
            raw = await client.responses.with_raw_response.create(**body)
            return read_response(_payload(raw.http_response.text), model)
        body = {
            "model": model,
            "messages": messages,
            "response_format": {"type": "json_schema", "json_schema": strict},
            # OpenAI's reasoning models reject the old name; self-hosted services may know no other.
            "max_completion_tokens" if service.is_openai else "max_tokens": service.max_output_tokens,
        }
        raw_chat = await client.chat.completions.with_raw_response.create(**body)
        payload = _payload(raw_chat.http_response.text)
        choice = next(iter(as_dicts(payload.get("choices"))), {})
        message = as_dict(choice.get("message"))
        reason = choice.get("finish_reason")
        # As a refusal: a filtered answer is empty, and would otherwise be asked for again.
        filtered = "the service's content filter stopped the answer" if reason == "content_filter" else ""
        return ModelAnswer(
            text=str(message.get("content") or ""),
            truncated=reason == "length",
            refusal=str(message.get("refusal") or filtered),
            usage=read_usage(as_dict(payload.get("usage")), "prompt", "completion"),
            model=str(payload.get("model") or model),
            response_id=str(payload.get("id") or ""),
            finish_reason=str(reason or ""),
        )


def _payload(body: str) -> dict[str, Any]:
    """Parse the body of a service's response.

    A program generates the body. Anything other than JSON is therefore a transport error.
    """
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        raise PlannerUnavailableError(
            f"the model service returned {len(body)} characters that are not a JSON object: {shorten(body, 80)!r}. "
            "Check that the base URL ends in /v1 and that no proxy interferes"
        )
    return payload


def read_response(payload: dict[str, Any], model: str) -> ModelAnswer:
    """Parse a complete, unstreamed response from the Responses API.

    Raises:
        PlannerUnavailableError: the response reports that the service failed.
    """
    parts = [
        part
        for item in as_dicts(payload.get("output"))
        if item.get("type") == "message"
        for part in as_dicts(item.get("content"))
    ]
    reported = as_dict(payload.get("usage"))
    if payload.get("status") == "failed":
        raise PlannerUnavailableError(f"the model service failed: {as_dict(payload.get('error')).get('message', '')}")
    return ModelAnswer(
        text="".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text"),
        truncated=payload.get("status") == "incomplete",
        refusal="".join(str(part.get("refusal") or "") for part in parts if part.get("type") == "refusal"),
        usage=read_usage(reported, "input", "output"),
        model=str(payload.get("model") or model),
        response_id=str(payload.get("id") or ""),
        finish_reason=str(payload.get("status") or ""),
    )


def as_dict(value: object) -> dict[str, Any]:
    """Return a JSON object unchanged, or an empty dict for any other value."""
    return value if isinstance(value, dict) else {}


def as_dicts(value: object) -> list[dict[str, Any]]:
    """Return the objects in a JSON list, or an empty list for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def certificates() -> SSLContext:
    """Create the TLS context. It trusts the system's authorities or those in `SSL_CERT_FILE` and `SSL_CERT_DIR`."""
    return _load_certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _load_certificates(_file: str | None, _folder: str | None) -> SSLContext:
    # Cached: loading them takes longer than the rest of opening a connection.
    # The arguments are only the key of the cache: httpx2 reads the same two variables.
    return httpx2.create_ssl_context()
