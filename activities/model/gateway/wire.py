"""The wire formats: their paths, where the key is, and how errors are written."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from activities.model.gateway.port import Wire

CREDENTIALS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
"""Headers in which agents send what they hold for the provider's key."""
_BEARER = re.compile(r"bearer\s+", re.IGNORECASE)
_VERSION = r"(?:/v\d+\w{0,8})?"
_MODEL = r"[\w.@-]{1,200}(?:/[\w.@-]{1,200}){0,4}"
_OPENAI = {
    r"POST {v}/(?:responses(?:/compact)?|chat/completions)": True,
    r"POST {v}/responses/input_tokens": False,
    r"GET {v}/models(?:/{m})?": False,
}
_ROUTES: Mapping[Wire, Mapping[str, bool]] = {
    Wire.RESPONSES: _OPENAI,
    Wire.CHAT: _OPENAI,
    Wire.MESSAGES: {
        r"POST {v}/messages": True,
        r"POST {v}/messages/count_tokens": False,
        r"GET {v}/models(?:/{m})?": False,
    },
    Wire.GEMINI: {
        r"POST {v}/(?:models|tunedModels)/{m}:(?:generateContent|streamGenerateContent|embedContent)": True,
        r"POST {v}/(?:models|tunedModels)/{m}:countTokens": False,
        r"GET {v}/models(?:/{m})?": False,
    },
}
"""What an agent needs of its provider, and whether it is a model call. The rest of the provider's service (files,
batches, administration) stays shut: the key may be allowed more than the agent."""
_PATTERNS = {
    wire: [(re.compile(text.format(v=_VERSION, m=_MODEL)), counted) for text, counted in routes.items()]
    for wire, routes in _ROUTES.items()
}
_OPENAI_TYPES = {401: "authentication_error", 429: "insufficient_quota"}
_ANTHROPIC_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
                    429: "rate_limit_error"}  # fmt: skip
_GEMINI_STATUSES = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED",
                    504: "DEADLINE_EXCEEDED"}  # fmt: skip


@dataclass(frozen=True)
class Route:
    """Route of a request."""

    tail: str
    """Path after the base URL's own."""
    query: str
    """Without a key."""
    counted: bool
    """It is a model call; token counts and model listings are not."""


def find_route(wire: Wire, method: str, target: str, prefix: str) -> Route | None:
    """Return where a request goes; None where that is not what an agent needs of its provider.

    `target` is path and query as sent, `prefix` the path of the base URL, without a slash at its end.
    """
    path, _, query = target.partition("?")
    if not path.startswith(f"{prefix}/"):
        return None
    tail = path.removeprefix(prefix)
    plain = unquote(tail)
    if any(part in {".", ".."} for part in plain.split("/")):
        return None
    for pattern, counted in _PATTERNS[wire]:
        if pattern.fullmatch(f"{method} {plain}"):
            kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "key"]
            return Route(tail, urlencode(kept) if "key" in dict(parse_qsl(query)) else query, counted)
    return None


def credentials(headers: Mapping[str, str], target: str) -> Iterator[str]:
    """Return what a request shows as its key, wherever that stands."""
    for name in CREDENTIALS & headers.keys():
        yield _BEARER.sub("", headers[name], count=1).strip()
    yield from (value for name, value in parse_qsl(target.partition("?")[2]) if name == "key")


def key_header(wire: Wire, key: str) -> tuple[str, str]:
    """Return the header in which the provider wants its key."""
    match wire:
        case Wire.MESSAGES:
            return "x-api-key", key
        case Wire.GEMINI:
            return "x-goog-api-key", key
        case Wire.RESPONSES | Wire.CHAT:
            return "authorization", f"Bearer {key}"


def refusal(wire: Wire, status: int, message: str) -> bytes:
    """Return the body of an error in the words of a wire format.

    The types of a spent budget (429) are those on which agents give up at once, where there is one.
    """
    body: dict[str, Any]
    match wire:
        case Wire.MESSAGES:
            kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
            body = {"type": "error", "error": {"type": kind, "message": message}}
        case Wire.GEMINI:
            name = _GEMINI_STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "UNAVAILABLE")
            error: dict[str, Any] = {"code": status, "message": message, "status": name}
            if status == HTTPStatus.TOO_MANY_REQUESTS:
                failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure",
                           "violations": [{"quotaId": "TightloopBudgetPerDay"}]}  # fmt: skip
                error["details"] = [failure]
            body = {"error": error}
        case Wire.RESPONSES | Wire.CHAT:
            kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
            code = "insufficient_quota" if status == HTTPStatus.TOO_MANY_REQUESTS else None
            body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return json.dumps(body).encode()
