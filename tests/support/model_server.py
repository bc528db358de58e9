"""A loopback stand-in for model services: scripted answers and faults over real HTTP.

A test queues `Reply`s; each request takes the next one, and the last one is repeated. What was asked is kept in
`requests`. A wire format is one class in `WIRES`, so that another one (server-sent events, another provider) is added
next to the others.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.support.loopback import Loopback

CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server does with one request."""

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    """Body of an error answer."""
    body: bytes | None = None
    """Sent as it is instead of an envelope."""
    content_type: str = "application/json"
    truncated: bool = False
    refusal: str = ""
    usage: bool = True
    hang_s: float = 0.0


def says(answer: object, **options: Any) -> Reply:
    """Answer with a text, or with an object as JSON."""
    return Reply(text=answer if isinstance(answer, str) else json.dumps(answer), **options)


def fails(
    status: int,
    message: str = "scripted",
    *,
    code: str = "",
    kind: str = "",
    param: str = "",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Answer with an error in the API's envelope."""
    error = {"message": message, "type": kind or "invalid_request_error", "code": code or None, "param": param or None}
    return Reply(status=status, error=error, headers=headers or {})


def rate_limited(message: str = "Rate limit reached", **headers: str) -> Reply:
    """Answer 429; header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return fails(429, message, code="rate_limit_exceeded", kind="tokens", headers=named)


def out_of_quota() -> Reply:
    """Answer 429 as OpenAI does when nothing is left to spend."""
    text = "You exceeded your current quota, please check your plan and billing details."
    return fails(429, text, code="insufficient_quota", kind="insufficient_quota")


def raw(body: bytes, *, content_type: str = "application/json", status: int = 200) -> Reply:
    """Answer with these bytes."""
    return Reply(body=body, content_type=content_type, status=status)


def hangs(seconds: float) -> Reply:
    """Answer only after a while."""
    return Reply(text="too late", hang_s=seconds)


@dataclass(frozen=True)
class Asked:
    """A request that was made."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Everything that the model was told, in order."""
        turns = self.body.get("input") or self.body.get("messages") or []
        return "\n".join([str(self.body.get("instructions", "")), *(str(turn["content"]) for turn in turns)])


class Wire(Protocol):
    """Builds the envelope of one API."""

    def envelope(self, asked: Asked, reply: Reply) -> dict[str, Any]:
        """Return the body of a good answer."""
        ...


class ResponsesWire:
    """`POST /v1/responses`."""

    def envelope(self, asked: Asked, reply: Reply) -> dict[str, Any]:
        """Return a response object."""
        kind = "refusal" if reply.refusal else "output_text"
        part = {"type": kind, "refusal": reply.refusal} if reply.refusal else {"type": kind, "text": reply.text}
        came_in, went_out = _tokens(asked, reply)
        usage = {
            "input_tokens": came_in,
            "input_tokens_details": {"cached_tokens": came_in // 2},
            "output_tokens": went_out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": came_in + went_out,
        }
        return {
            "id": "resp_1",
            "object": "response",
            "model": asked.body.get("model"),
            "status": "incomplete" if reply.truncated else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if reply.truncated else None,
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]},
            ],
            "usage": usage if reply.usage else None,
        }


class ChatWire:
    """`POST /v1/chat/completions`."""

    def envelope(self, asked: Asked, reply: Reply) -> dict[str, Any]:
        """Return a chat completion object."""
        came_in, went_out = _tokens(asked, reply)
        usage = {"prompt_tokens": came_in, "completion_tokens": went_out, "total_tokens": came_in + went_out}
        message = {
            "role": "assistant",
            "content": None if reply.refusal else reply.text,
            "refusal": reply.refusal or None,
        }
        return {
            "id": "chatcmpl_1",
            "object": "chat.completion",
            "model": asked.body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": "length" if reply.truncated else "stop"}],
            "usage": usage if reply.usage else None,
        }


WIRES: Mapping[str, Wire] = {"/v1/responses": ResponsesWire(), "/v1/chat/completions": ChatWire()}


def _tokens(asked: Asked, reply: Reply) -> tuple[int, int]:
    return len(asked.text) // CHARACTERS_PER_TOKEN, len(reply.text) // CHARACTERS_PER_TOKEN


class ModelServer(Loopback):
    """The server; use it as a context manager."""

    def __init__(self, *replies: Reply | Callable[[Asked], Reply], models: Sequence[str] | None = None) -> None:
        """Take the script, whose replies may depend on the request, and the models that exist (None: any)."""
        self._replies = list(replies)
        self._models = models
        self._lock = threading.Lock()
        self.requests: list[Asked] = []
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), self._handler()))

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def queue(self, *replies: Reply) -> None:
        """Add replies to the script."""
        with self._lock:
            self._replies.extend(replies)

    def _next(self, asked: Asked) -> Reply:
        with self._lock:
            self.requests.append(asked)
            model = asked.body.get("model")
            if self._models is not None and model not in self._models:
                return fails(404, f"The model `{model}` does not exist", code="model_not_found", param="model")
            if not self._replies:
                return fails(500, "the script is empty")
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
            return reply(asked) if callable(reply) else reply

    def _answer(self, asked: Asked) -> tuple[Reply, bytes]:
        reply = self._next(asked)
        if reply.hang_s:
            self.closing.wait(reply.hang_s)
        if reply.body is not None:
            return reply, reply.body
        if reply.error is not None:
            return reply, json.dumps({"error": reply.error}).encode()
        return reply, json.dumps(WIRES[asked.path].envelope(asked, reply)).encode()

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length", "0")))
                if self.path not in WIRES:
                    self._send(fails(404, f"no route {self.path}"), b'{"error": {"message": "no such route"}}')
                    return
                asked = Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(content))
                self._send(*server._answer(asked))

            def _send(self, reply: Reply, content: bytes) -> None:
                try:
                    self.send_response(reply.status)
                    self.send_header("content-type", reply.content_type)
                    self.send_header("content-length", str(len(content)))
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                """Keep the output of the tests clean."""

        return Handler
