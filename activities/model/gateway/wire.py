"""Wire format of the model gateway, and its port."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlencode

from tightloop.executor.model import LimitHit, Usage


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
    """Answers come from the recording; a call that is not in it gets an error, never the provider."""


@dataclass(frozen=True, kw_only=True)
class GatewaySpec:
    """One delivery's gateway."""

    wire: Wire
    upstream: str
    """Base URL of the provider, such as `https://api.openai.com/v1`."""
    key: str = field(default="", repr=False)
    """The provider's key; only the gateway has it."""
    max_calls: int | None = None
    max_tokens: int | None = None
    """Calls beyond this number of calls or tokens get a 429 that names the budget."""
    cassette: Cassette = Cassette.OFF
    recording: Path | None = None
    """File of the cassette; one JSON line for each exchange. Needed unless the cassette is off."""
    volatile: tuple[str, ...] = ()
    """Paths that differ from run to run (homes, working trees), in an order that does not. In a recording they are
    placeholders; a replay puts its own in their place."""


@dataclass(frozen=True, kw_only=True)
class GatewaySeen:
    """Counts of the calls so far."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    """What was reported; a lower bound where an answer reports nothing."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """How often the provider answered model calls with each HTTP status; 0: it gave no answer."""
    limit: LimitHit | None = None
    """The last limit that the provider reported, with its own time to retry; None once a call succeeded after it."""
    budget_spent: bool = False
    """A call was refused, as the budget is spent; the last call within it is let through to its end."""
    waiting: bool = False
    """A call is with the provider right now."""
    moved: float = field(default=0.0, compare=False)
    """When a call last began, ended or brought a piece of its answer (`time.monotonic`): a sign of life of an agent
    that prints nothing. A provider that hangs gives none."""


class Gateway(Protocol):
    """An open gateway."""

    @property
    def base_url(self) -> str:
        """Loopback address for the agent, with the same path as `upstream` has after its host."""
        ...

    @property
    def token(self) -> str:
        """What the agent must send as its key; worth nothing elsewhere, and only while the gateway is open."""
        ...

    def seen(self) -> GatewaySeen:
        """Return what passed through; may be called from any thread."""
        ...


Gateways = Callable[[GatewaySpec], AbstractContextManager[Gateway]]
"""Opens a gateway on a free loopback port; it is shut on leaving, within a second.

Raises `ExecutorError` where the upstream, the key or the recording cannot be used.
"""


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
