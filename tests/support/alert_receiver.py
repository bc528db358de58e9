"""A loopback receiver of webhooks over real HTTP: scripted answers, and what came with the time it came."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "whsec_" + base64.b64encode(b"a secret of the tests, 32 bytes.").decode()


@dataclass(frozen=True)
class Answer:
    """What the receiver says to one request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0


@dataclass(frozen=True)
class Came:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    """Seconds since 1970."""

    @property
    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told

    @property
    def genuine(self) -> bool:
        """Verify the signature, as the specification of Standard Webhooks says it, without code of ours."""
        moment, key = self.headers["webhook-timestamp"], base64.b64decode(SECRET.removeprefix("whsec_"))
        content = b".".join((self.headers["webhook-id"].encode(), moment.encode(), self.body))
        wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        given = [part.partition(",")[2] for part in self.headers["webhook-signature"].split()]
        return any(hmac.compare_digest(wanted, one) for one in given) and abs(time.time() - int(moment)) < 300


class Receiver:
    """Answers each request with the next of `answers`; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer()]
        self.came: list[Came] = []
        self.port = 0
        self._lock = threading.Lock()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/alerts"

    def take(self, came: Came) -> Answer:
        with self._lock:
            self.came.append(came)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def of(self, episode_id: str) -> list[Came]:
        return [came for came in self.came if came.told["episode_id"] == episode_id]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that went away is no news."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(Came(self.path, headers, body, time.time()))
            receiver.closing.wait(answer.hang_s)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            receiver.take(Came(f"GET {self.path}", {}, b"{}", time.time()))
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.closing.set()
            server.shutdown()
            thread.join(10)
