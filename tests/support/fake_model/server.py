"""The server: routes, faults, what was asked, and an end that waits for nobody."""

import json
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from activities.model.gateway.wire import Wire
from tests.support.fake_model.chat import Chat
from tests.support.fake_model.exchange import Answer, Asked, Failure, Json, Tokens, WireFormat, digest
from tests.support.fake_model.fault import Fault, Trouble
from tests.support.fake_model.gemini import Gemini
from tests.support.fake_model.listings import listing
from tests.support.fake_model.messages import Messages
from tests.support.fake_model.refusal import not_found, refusal
from tests.support.fake_model.responses import Responses
from tests.support.fake_model.script import Step, act, shell
from tests.support.loopback import STOP_TIMEOUT_S, Loopback

FORMATS: Mapping[Wire, WireFormat] = {
    Wire.RESPONSES: Responses(),
    Wire.CHAT: Chat(),
    Wire.MESSAGES: Messages(),
    Wire.GEMINI: Gemini(),
}
NOT_JSON = b'{"id": "cut short", "output": ['


@dataclass(frozen=True)
class Seen:
    """A request that was made."""

    wire: Wire | None
    """None: not a call of a model."""
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Json
    at: float
    """Monotonic seconds."""


@dataclass(frozen=True)
class Reply:
    """What goes back: bytes at once, or the parts of a stream, and what happens after them."""

    status: int
    parts: tuple[bytes, ...]
    headers: Mapping[str, str]
    stream: bool = False
    then: Trouble | None = None
    """`CUT_STREAM`: the connection ends before the answer does; `STALLED_STREAM`: silence."""


class FakeModel(Loopback):
    """A model service on a free loopback port; use it as a context manager.

    `requests` and `calls` hold what was asked of a model; listings of models and counting of tokens are in `others`.
    """

    def __init__(self, *steps: Step, fault: Fault | None = None, tokens: Tokens | None = None) -> None:
        """Take the script, what goes wrong, and the usage that every answer reports (1000 in, 100 out)."""
        self._steps = steps
        self._fault = fault
        self._tokens = tokens or Tokens()
        self._changed = threading.Condition()
        self.requests: list[Seen] = []
        self.others: list[Seen] = []
        super().__init__(_Server(self))

    @property
    def calls(self) -> int:
        """How many calls of a model were made, refused ones too."""
        return len(self.requests)

    def base_url(self, wire: Wire) -> str:
        """Return the base URL as clients of this format want it."""
        with_version = wire in (Wire.RESPONSES, Wire.CHAT)
        return f"http://127.0.0.1:{self.port}{'/v1' if with_version else ''}"

    def rewrite(self, *steps: Step, fault: Fault | None = None) -> None:
        """Go on with another script; the fault's `times` counts from here."""
        with self._changed:
            self._steps = steps
            self._fault = fault.later(self.calls) if fault else None

    def wait_for_calls(self, n: int, seconds: float = 30) -> None:
        """Wait until `n` calls have come in.

        Raises:
            TimeoutError: they did not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.calls >= n, seconds):
                raise TimeoutError(f"the fake model saw {self.calls} of {n} calls within {seconds} s")

    def answer(self, wire: Wire | None, seen: Seen, *, method: str) -> Reply | None:
        """Return what goes back; None where nothing does."""
        if wire is None:
            with self._changed:
                self.others.append(seen)
            other = listing(method, seen.path, self._tokens.input, seen.headers)
            return _json(200, other) if other is not None else _refused(not_found(None, seen.path))
        with self._changed:
            number, steps, fault = self.calls, self._steps, self._fault
            self.requests.append(seen)
            self._changed.notify_all()
        return self._spoken(wire, seen, steps, fault if fault and fault.hits(number) else None)

    def step_of(self, asked: Asked, seen: Seen) -> int:
        """Return which step of the script answers a request."""
        return asked.step

    def wait_for_the_end(self) -> None:
        """Hang until the fake is closed."""
        self.closing.wait()

    def _spoken(self, wire: Wire, seen: Seen, steps: tuple[Step, ...], fault: Fault | None) -> Reply | None:
        trouble = fault.trouble if fault else None
        if trouble is Trouble.HANG:
            self.wait_for_the_end()
            return None
        refused = refusal(wire, fault) if fault else None
        if refused is not None:
            return _refused(refused)
        try:
            asked = FORMATS[wire].read(seen.path, seen.body)
        except (KeyError, TypeError, AttributeError) as error:
            return _refused(Failure(status=400, body={"error": {"message": f"not a {wire} request: {error!r}"}}))
        if fault and trouble is Trouble.ENDLESS_TOOLS:
            done = shell(fault.command)(asked.tools)
        else:
            done = act(steps, self.step_of(asked, seen), asked.tools)
        answer = Answer(asked=asked, act=done, tokens=self._tokens, id=digest(seen.body))
        return _written(wire, answer, trouble, sse=wire is not Wire.GEMINI or "alt=sse" in seen.path)


def _written(wire: Wire, answer: Answer, trouble: Trouble | None, *, sse: bool) -> Reply:
    form, server_error = FORMATS[wire], Fault.server_error()
    broken = trouble is Trouble.SSE_FAILURE
    then = trouble if trouble in (Trouble.CUT_STREAM, Trouble.STALLED_STREAM) else None
    if not (answer.asked.stream and sse):
        if broken:
            refused = refusal(wire, server_error)
            assert refused is not None
            return _refused(refused)
        body: Any = form.whole(answer)
        written = (
            NOT_JSON if trouble is Trouble.BAD_JSON else json.dumps([body] if answer.asked.stream else body).encode()
        )
        return Reply(200, (written,), {"content-type": "application/json"}, then=then)
    events = [b"data: " + NOT_JSON + b"\n\n"] if trouble is Trouble.BAD_JSON else form.stream(answer)
    parts = form.broken_stream(answer) if broken else events
    if then:
        parts = parts[: len(parts) // 2]
    return Reply(200, tuple(parts), {"content-type": "text/event-stream", "cache-control": "no-cache"}, True, then)


def _json(status: int, body: Any) -> Reply:
    return Reply(status, (json.dumps(body).encode(),), {"content-type": "application/json"})


def _refused(failure: Failure) -> Reply:
    body = json.dumps(failure.body).encode()
    return Reply(failure.status, (body,), {"content-type": "application/json", **failure.headers})


def wire_of(path: str) -> Wire | None:
    """Return which format a path belongs to; None: it does not call a model."""
    bare = path.partition("?")[0].rstrip("/")
    for end, wire in (
        ("/responses", Wire.RESPONSES),
        ("/chat/completions", Wire.CHAT),
        ("/messages", Wire.MESSAGES),
        (":generateContent", Wire.GEMINI),
        (":streamGenerateContent", Wire.GEMINI),
    ):
        if bare.endswith(end):
            return wire
    return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self._open: dict[threading.Thread, socket.socket] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._open[thread] = request
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(threading.current_thread(), None)

    def server_close(self) -> None:
        """End every connection, too, and wait for its thread, so that no socket is left open."""
        super().server_close()
        until = time.monotonic() + STOP_TIMEOUT_S
        for thread, connection in list(self._open.items()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(max(until - time.monotonic(), 0))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed in tests: a connection that breaks is no news, anything else is."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = _body(self.rfile.read(int(self.headers.get("content-length") or 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        wire = wire_of(self.path) if self.command == "POST" else None
        seen = Seen(wire, self.path, headers, body, time.monotonic())
        reply = self.server.model.answer(wire, seen, method=self.command)
        if reply is None:
            self.close_connection = True
            return
        self._head(reply)
        if self.command != "HEAD":
            self._send(reply)

    def _head(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.stream:
            self.send_header("transfer-encoding", "chunked")
        else:
            self.send_header("content-length", str(sum(len(part) for part in reply.parts)))
        self.end_headers()

    def _send(self, reply: Reply) -> None:
        parts = reply.parts if reply.stream or not reply.then else (reply.parts[0][: len(reply.parts[0]) // 2],)
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if reply.stream else part)
        if reply.then is Trouble.STALLED_STREAM:
            self.server.model.wait_for_the_end()
        if reply.then:
            self.close_connection = True
        elif reply.stream:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the output of the tests clean."""


def _body(content: bytes) -> Json:
    try:
        body = json.loads(content) if content else {}
    except ValueError:
        body = {"not json": content.decode("utf-8", "replace")}
    return body if isinstance(body, dict) else {"not an object": body}
