"""Error translation for a model service, and the size limit for its responses."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx2
import openai

from activities.model.repair import AnswerError, Unpacker
from tightloop.errors import PlannerError, PlannerUnavailableError, TightloopError
from tightloop.executor.limit import LimitAction, LimitSignal, choose_action, detect
from tightloop.value import shorten

_DETAIL_CHARACTERS = 300
_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached"})

# OpenAI's error code, and the error type of llama.cpp's server.
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})

# Advice to the operator by HTTP status, shown with the service's own text.
_ADVICE = {
    400: "the service rejected the request. Choose a model that supports JSON schemas and has a large enough context",
    401: "the key is not valid. Set OPENAI_API_KEY to a valid key, and check that the key belongs to this base URL",
    403: "the key lacks a required permission. Check the key's permissions, its project and the region",
    404: "the address or model does not exist. Check the base URL (it must end in /v1) and the model names",
    422: "the service rejected the request. Choose a model that supports JSON schemas",
}


def model_missing(error: openai.APIStatusError) -> bool:
    """Return whether an error means that this key cannot use the model. If so, another model may work."""
    if error.code == "model_not_found" or error.status_code == 404:
        return True
    if error.status_code not in (400, 403) or error.code == "context_length_exceeded":
        return False
    return error.param == "model" or (error.status_code == 403 and "model" in error.message.lower())


def too_large(error: AnswerError, model: str) -> PlannerError:
    """Create the error for a response that exceeds the size limit."""
    return PlannerError(f"model {model}: {error}. Check the base URL, and make sure that no proxy is interfering")


def translate_error(error: openai.APIError, model: str) -> TightloopError:
    detail = shorten(" ".join(error.message.split()), _DETAIL_CHARACTERS)
    # The SDK turns what is raised while it reads into an error of its own.
    if isinstance(error.__cause__, AnswerError):
        return too_large(error.__cause__, model)
    if isinstance(error, openai.APITimeoutError):
        return PlannerUnavailableError(f"model {model} did not respond in time")
    if not isinstance(error, openai.APIStatusError):
        return PlannerUnavailableError(f"the model service cannot be reached ({detail})")
    status = error.status_code
    # Before the retryable statuses: OpenAI reports a spent quota as 429, for which waiting does not help.
    if status == 402 or error.code in _QUOTA or error.type in _QUOTA:
        return PlannerError(f"the key's quota is used up ({detail}). Add credit or use another key, then resume")
    if status in (408, 409, 425, 429) or status >= 500:
        # The request (`error.request`) is not part of the signal: a prompt may mention limits as well.
        signal = LimitSignal(
            status_code=status,
            error_type=error.type or "",
            error_code=error.code or "",
            body={"message": error.message},
            headers=dict(error.response.headers),
        )
        limit = detect(signal, now=datetime.now(UTC))
        if limit is not None and choose_action(limit) is LimitAction.PERSON:
            when = "" if limit.retry_after is None else f", which resets in {limit.retry_after}"
            return PlannerError(
                f"model {model} has reached a limit{when} ({detail}). Add credit, use another key or model, "
                "or resume after the reset"
            )
        wait = limit.retry_after if limit else None
        return PlannerUnavailableError(f"model {model} is busy or down ({status}: {detail})", retry_after=wait)
    if error.code in _TOO_LONG or error.type in _TOO_LONG:
        return PlannerError(
            f"the prompt is too long for model {model} ({detail}). Choose a model with a larger context, or "
            "lower coder.context_tokens (for the planner: planner.context_characters)"
        )
    advice = _ADVICE.get(status, "the service rejected the request. Check the base URL and the model")
    return PlannerError(f"model {model} returned status {status} ({detail}): {advice}")


LARGEST_ANSWER_BYTES = 16 * 2**20
"""Maximum size of a response after decompression. A response with 8 000 tokens has about 50 kB."""


def bounded_client() -> httpx2.AsyncClient:
    """Create an HTTP client with the SDK's defaults.

    The client raises `AnswerError` while reading a response that exceeds the size limit.
    """
    return openai.DefaultAsyncHttpxClient(event_hooks={"response": [_bound]})


async def _bound(response: httpx2.Response) -> None:
    """Limit the size of a response body before it is read."""
    # The header is removed, so that httpx2 does not decompress the body again.
    unpacker = Unpacker(response.headers.pop("content-encoding", ""), LARGEST_ANSWER_BYTES)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedStream(response.stream, unpacker)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, unpacker: Unpacker) -> None:
        self._stream = stream
        self._unpacker = unpacker

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            for part in self._unpacker.feed(chunk):
                yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
