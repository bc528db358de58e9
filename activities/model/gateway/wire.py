"""The model gateway's interface and its wire formats."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode

from tightloop.executor.model import LimitHit, Usage

if TYPE_CHECKING:
    from activities.model.gateway.server import GatewayServer


class Wire(StrEnum):
    """The wire formats of model providers."""

    RESPONSES = "responses"
    CHAT = "chat"
    MESSAGES = "messages"
    GEMINI = "gemini"


class Cassette(StrEnum):
    """How a recording is used."""

    OFF = "off"
    RECORD = "record"
    REPLAY = "replay"
    """Responses come from the recording. A call that it does not contain fails and never reaches the provider."""


@dataclass(frozen=True, kw_only=True)
class GatewaySpec:
    """The configuration of the gateway for one delivery."""

    wire: Wire
    upstream: str
    """The provider's base URL, for example `https://api.openai.com/v1`."""
    key: str = field(default="", repr=False)
    """The provider's key, which only the gateway knows."""
    max_calls: int | None = None
    max_tokens: int | None = None
    """The budget. Calls beyond this number of calls or tokens receive a 429 that names the budget."""
    cassette: Cassette = Cassette.OFF
    recording: Path | None = None
    """The recording file, with one JSON line per exchange. It is required unless the cassette is off."""
    volatile: tuple[str, ...] = ()
    """Paths that differ between runs (homes, working trees), in a fixed order. A recording contains placeholders for
    them, which a replay replaces with its own paths."""


@dataclass(frozen=True, kw_only=True)
class GatewayCounters:
    """The counters for all calls so far."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    """The reported usage. It is a lower bound if a response does not report any."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """Number of model calls by HTTP status. A status of 0 means that there was no response."""
    limit: LimitHit | None = None
    """The last limit that the provider reported, with its retry time. None once a later call has succeeded."""
    budget_spent: bool = False
    """True if a call was rejected because the budget is spent. The last call within the budget runs to its end."""
    waiting: bool = False
    """True while the provider is processing a call."""
    moved: float = field(default=0.0, compare=False)
    """Time (`time.monotonic`) when a call last started, ended or received a chunk. For an agent that prints nothing,
    this is a sign of life, which a hanging provider does not give."""


Gateways = Callable[[GatewaySpec], AbstractContextManager["GatewayServer"]]
"""Opens a gateway on a free loopback port. Leaving the context closes it within a second. Raises `ExecutorError` if the
upstream, the key or the recording cannot be used."""


CREDENTIALS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
"""Headers in which agents send their key."""
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
"""The requests that an agent may send. The value is True for model calls. The rest of the provider's API (files,
batches, administration) is blocked, because the key may permit more than the agent needs."""
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
    """The target of a request."""

    tail: str
    """The path relative to the base URL."""
    query: str
    """The query without the key."""
    counted: bool
    """True for model calls; False for token counts and model listings."""


def find_route(wire: Wire, method: str, target: str, prefix: str) -> Route | None:
    """Return the route for a request, or None if agents do not need to send this kind of request.

    `target` is the path and query as sent. `prefix` is the base URL's path without a trailing slash.
    """
    path, _, query = target.partition("?")
    if not path.startswith(f"{prefix}/"):
        return None
    tail = path.removeprefix(prefix)
    # Compared as the provider will read it: `%2e%2e` must not reach another path.
    plain = unquote(tail)
    if any(part in {".", ".."} for part in plain.split("/")):
        return None
    for pattern, counted in _PATTERNS[wire]:
        if pattern.fullmatch(f"{method} {plain}"):
            pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "key"]
            # Re-encoded only if a key is removed: encoding could change the rest.
            return Route(tail, urlencode(pairs) if "key" in dict(parse_qsl(query)) else query, counted)
    return None


def credentials(headers: Mapping[str, str], target: str) -> Iterator[str]:
    """Yield all keys in the headers and the query of a request."""
    for name in CREDENTIALS & headers.keys():
        yield _BEARER.sub("", headers[name], count=1).strip()
    yield from (value for name, value in parse_qsl(target.partition("?")[2]) if name == "key")


def key_header(wire: Wire, key: str) -> tuple[str, str]:
    """Return the header that passes the key to the provider."""
    match wire:
        case Wire.MESSAGES:
            return "x-api-key", key
        case Wire.GEMINI:
            return "x-goog-api-key", key
        case Wire.RESPONSES | Wire.CHAT:
            return "authorization", f"Bearer {key}"


def refusal(wire: Wire, status: int, message: str) -> bytes:
    """Build an error body in the wire format.

    If the budget is exhausted (429), the body contains the error type that makes agents stop immediately. Not
    all formats have such a type.
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
                # Gemini CLI gives up on a daily quota, and retries on any other 429.
                failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure",
                           "violations": [{"quotaId": "TightloopBudgetPerDay"}]}  # fmt: skip
                error["details"] = [failure]
            body = {"error": error}
        case Wire.RESPONSES | Wire.CHAT:
            kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
            code = "insufficient_quota" if status == HTTPStatus.TOO_MANY_REQUESTS else None
            body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return json.dumps(body).encode()
