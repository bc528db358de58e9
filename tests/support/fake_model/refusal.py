"""Error answers as the real services send them: status, headers, body."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.model.gateway.wire import Wire
from tests.support.fake_model.exchange import Failure, Json
from tests.support.fake_model.fault import Fault, Trouble

REQUEST_ID = "req_0123456789abcdef"
NO_QUOTA = "You exceeded your current quota, please check your plan and billing details."
SORRY = "The server had an error processing your request. Sorry about that!"
SESSION_WINDOW_MINUTES = 300
WEEK_MINUTES = 10080


def refusal(wire: Wire, fault: Fault) -> Failure | None:
    """Return the error answer of a fault; None for a fault of the connection."""
    makers = {Wire.RESPONSES: OPENAI, Wire.CHAT: OPENAI, Wire.MESSAGES: ANTHROPIC, Wire.GEMINI: GOOGLE}[wire]
    maker = makers.get(fault.trouble)
    return maker(fault) if maker else None


def not_found(wire: Wire | None, path: str) -> Failure:
    """Return what a service says of a path that it does not have."""
    if wire is Wire.MESSAGES:
        return _anthropic(404, "not_found_error", f"no such path: {path}")
    if wire is Wire.GEMINI:
        return _google(404, "NOT_FOUND", f"no such path: {path}")
    return _openai(404, f"Invalid URL (POST {path})", kind="invalid_request_error")


def _openai(
    status: int, message: str, *, kind: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Failure:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Failure(status=status, body={"error": error}, headers={"x-request-id": REQUEST_ID, **(headers or {})})


def _openai_rate(fault: Fault) -> Failure:
    wait = fault.retry_after_s
    text = (
        "Rate limit reached for the model in organization org-0 on tokens per min (TPM): Limit 30000, Used 22999, "
        f"Requested 12528. Please try again in {wait:g}s. Visit https://platform.openai.com/account/rate-limits "
        "to learn more."
    )
    headers = {
        "retry-after": str(math.ceil(wait)),
        "retry-after-ms": str(round(wait * 1000)),
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-tokens": "7001",
        "x-ratelimit-reset-tokens": _go_duration(wait),
    }
    return _openai(429, text, kind="tokens", code="rate_limit_exceeded", headers=headers)


def _go_duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}h{minutes}m{rest:g}s" if hours else f"{minutes}m{rest:g}s" if minutes else f"{rest:g}s"


def _openai_usage(fault: Fault) -> Failure:
    wait = round(fault.retry_after_s)
    error = {
        "type": "usage_limit_reached",
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": round(time.time()) + wait,
        "resets_in_seconds": wait,
    }
    headers = {
        "x-codex-active-limit": "primary",
        "x-codex-primary-used-percent": "100",
        "x-codex-primary-window-minutes": str(SESSION_WINDOW_MINUTES),
        "x-codex-primary-reset-after-seconds": str(wait),
        "x-codex-secondary-used-percent": "41",
        "x-codex-secondary-window-minutes": str(WEEK_MINUTES),
        "x-codex-secondary-reset-after-seconds": str(max(wait, WEEK_MINUTES * 30)),
    }
    return Failure(status=429, body={"error": error}, headers=headers)


def _openai_full() -> Failure:
    text = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return _openai(400, text, kind="invalid_request_error", code="context_length_exceeded")


OPENAI: Mapping[Trouble, Callable[[Fault], Failure]] = {
    Trouble.UNAUTHORIZED: lambda _f: _openai(
        401,
        "Incorrect API key provided. You can find your API key at https://platform.openai.com/account/api-keys.",
        kind="invalid_request_error",
        code="invalid_api_key",
    ),
    Trouble.BAD_REQUEST: lambda f: _openai(
        400, f"Unsupported parameter: '{f.parameter}'.", kind="invalid_request_error", code="unsupported_parameter"
    ),
    Trouble.CONTEXT_FULL: lambda _f: _openai_full(),
    Trouble.UNKNOWN_MODEL: lambda _f: _openai(
        404, "The model does not exist.", kind="invalid_request_error", code="model_not_found"
    ),
    Trouble.RATE_LIMITED: _openai_rate,
    Trouble.USAGE_LIMIT: _openai_usage,
    Trouble.QUOTA: lambda _f: _openai(429, NO_QUOTA, kind="insufficient_quota", code="insufficient_quota"),
    Trouble.SERVER_ERROR: lambda _f: _openai(500, SORRY, kind="server_error"),
    Trouble.OVERLOADED: lambda f: _openai(
        f.status,
        "Our servers are currently overloaded. Please try again later.",
        kind="service_unavailable_error",
        code="server_is_overloaded",
    ),
}


def _anthropic(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Failure:
    error: Json = {"type": kind, "message": message}
    body = {"type": "error", "error": error, "request_id": REQUEST_ID}
    return Failure(status=status, body=body, headers={"request-id": REQUEST_ID, **(headers or {})})


def _anthropic_rate(fault: Fault) -> Failure:
    reset = (datetime.now(UTC) + timedelta(seconds=fault.retry_after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    headers = {
        "retry-after": str(math.ceil(fault.retry_after_s)),
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": reset,
        "anthropic-ratelimit-tokens-limit": "40000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": reset,
    }
    text = "This request would exceed the rate limit for your organization of 50 requests per minute."
    return _anthropic(429, "rate_limit_error", text, headers)


def _anthropic_usage(fault: Fault) -> Failure:
    headers = {
        "retry-after": str(math.ceil(fault.retry_after_s)),
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(round(time.time() + fault.retry_after_s)),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
        "anthropic-ratelimit-unified-5h-utilization": "1.0",
        "anthropic-ratelimit-unified-fallback-percentage": "0.5",
        "anthropic-ratelimit-unified-overage-status": "rejected",
    }
    text = "This request would exceed your account's rate limit. Please try again later."
    return _anthropic(429, "rate_limit_error", text, headers)


ANTHROPIC: Mapping[Trouble, Callable[[Fault], Failure]] = {
    Trouble.UNAUTHORIZED: lambda _f: _anthropic(401, "authentication_error", "invalid x-api-key"),
    Trouble.BAD_REQUEST: lambda _f: _anthropic(400, "invalid_request_error", "messages: at least one is required"),
    Trouble.CONTEXT_FULL: lambda _f: _anthropic(
        400, "invalid_request_error", "prompt is too long: 204511 tokens > 200000 maximum"
    ),
    Trouble.UNKNOWN_MODEL: lambda _f: _anthropic(404, "not_found_error", "model: no-such-model"),
    Trouble.RATE_LIMITED: _anthropic_rate,
    Trouble.USAGE_LIMIT: _anthropic_usage,
    Trouble.QUOTA: lambda _f: _anthropic(
        400,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or "
        "purchase credits.",
    ),
    Trouble.SERVER_ERROR: lambda _f: _anthropic(500, "api_error", "Internal server error"),
    Trouble.OVERLOADED: lambda f: _anthropic(f.status, "overloaded_error", "Overloaded"),
}

TYPES = "type.googleapis.com/google.rpc."


def _google(status: int, name: str, message: str, *details: Json) -> Failure:
    error: dict[str, Any] = {"code": status, "message": message, "status": name}
    return Failure(status=status, body={"error": {**error, **({"details": list(details)} if details else {})}})


def _google_limit(fault: Fault, *, window: str) -> Failure:
    """Google puts the time to wait into the body only."""
    violation = {
        "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
        "quotaId": f"GenerateRequestsPer{window}PerProjectPerModel-FreeTier",
        "quotaDimensions": {"location": "global"},
        "quotaValue": "10",
    }
    details: list[Json] = [{"@type": f"{TYPES}QuotaFailure", "violations": [violation]}]
    if fault.retry_after_s:
        details.append({"@type": f"{TYPES}RetryInfo", "retryDelay": f"{fault.retry_after_s:g}s"})
    return _google(429, "RESOURCE_EXHAUSTED", NO_QUOTA, *details)


GOOGLE: Mapping[Trouble, Callable[[Fault], Failure]] = {
    Trouble.UNAUTHORIZED: lambda _f: _google(
        401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", _reason("API_KEY_INVALID")
    ),
    Trouble.BAD_REQUEST: lambda _f: _google(400, "INVALID_ARGUMENT", "Request contains an invalid argument."),
    Trouble.CONTEXT_FULL: lambda _f: _google(
        400,
        "INVALID_ARGUMENT",
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
    ),
    Trouble.UNKNOWN_MODEL: lambda _f: _google(404, "NOT_FOUND", "models/no-such-model is not found."),
    Trouble.RATE_LIMITED: lambda f: _google_limit(f, window="Minute"),
    Trouble.USAGE_LIMIT: lambda f: _google_limit(f, window="Day"),
    Trouble.QUOTA: lambda f: _google_limit(f, window="Day"),
    Trouble.SERVER_ERROR: lambda _f: _google(500, "INTERNAL", "An internal error has occurred. Please retry."),
    Trouble.OVERLOADED: lambda f: _google(f.status, "UNAVAILABLE", "The model is overloaded. Please try again later."),
}


def _reason(reason: str) -> Json:
    return {"@type": f"{TYPES}ErrorInfo", "reason": reason, "domain": "googleapis.com"}
