"""What the tests of the model gateway share: clients without habits, and providers that a test writes."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import openai

from activities.model.gateway.server import GatewayServer, serve_gateway
from activities.model.gateway.wire import GatewaySpec, Wire
from tests.support.fake_model import FakeModel

open_gateway = serve_gateway

KEY = "sk-real-5f2c9a71d3"
TEXT = "A sentence that is long enough for more than one delta of a stream."
PATHS = {
    Wire.RESPONSES: "/responses",
    Wire.CHAT: "/chat/completions",
    Wire.MESSAGES: "/v1/messages",
    Wire.GEMINI: "/v1beta/models/gemini-x:generateContent",
}
STREAMS = {**PATHS, Wire.GEMINI: "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"}
KEY_HEADERS = {
    Wire.RESPONSES: ("authorization", f"Bearer {KEY}"),
    Wire.CHAT: ("authorization", f"Bearer {KEY}"),
    Wire.MESSAGES: ("x-api-key", KEY),
    Wire.GEMINI: ("x-goog-api-key", KEY),
}


def body_of(wire: Wire, *, stream: bool = False, text: str = "hello") -> dict[str, Any]:
    match wire:
        case Wire.RESPONSES:
            return {"model": "m", "stream": stream, "input": [{"role": "user", "content": text}]}
        case Wire.CHAT:
            asked = {"stream_options": {"include_usage": True}} if stream else {}
            return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}], **asked}
        case Wire.MESSAGES:
            return {"model": "m", "stream": stream, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
        case Wire.GEMINI:
            return {"contents": [{"role": "user", "parts": [{"text": text}]}]}


Reply = tuple[int, Mapping[str, str], bytes]


def send(
    base_url: str, path: str, body: Any = None, *, method: str = "POST", headers: Mapping[str, str] | None = None
) -> Reply:
    """Make one request without any client's habits; the body of a stream is read to its end."""
    parts = urlsplit(base_url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as connection:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, parts.path + path, content, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def ask(gateway: GatewayServer, path: str, body: Any = None, **options: Any) -> Reply:
    return send(gateway.base_url, path, body, headers={"authorization": f"Bearer {gateway.token}"}, **options)


def spec_of(model: FakeModel, wire: Wire = Wire.RESPONSES, **changes: Any) -> GatewaySpec:
    return GatewaySpec(**{"wire": wire, "upstream": model.base_url(wire), "key": KEY, **changes})


def client_of(gateway: GatewayServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.base_url, api_key=gateway.token, max_retries=0, timeout=20)


def assert_soon(seen: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that happens in another thread; it must within the time."""
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@contextmanager
def provider(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A provider whose answers are written by the test, byte by byte."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer(self)

        def log_message(self, format: str, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None: ...

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
