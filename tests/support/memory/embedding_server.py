"""A loopback service of embeddings: it speaks OpenAI's wire format, and can fail in the ways that real ones do."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.loopback import Loopback
from tightloop.memory import hash_text


class EmbeddingServer(Loopback):
    """Answers with hashed vectors; `fault` says what it does instead."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        """The requests, in order."""
        self.fault = ""
        """`busy`, `short`, `few`, `garbage` or `hang`; empty: none."""
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), self._handler()))

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return f"http://127.0.0.1:{self.port}/v1"

    def _answer(self, asked: dict[str, Any]) -> tuple[int, bytes]:
        self.asked.append(asked)
        if self.fault == "busy":
            return 503, json.dumps({"error": {"message": "overloaded"}}).encode()
        if self.fault == "garbage":
            return 200, b"<html>a proxy</html>"
        if self.fault == "hang":
            self.closing.wait(30)
        size = asked["dimensions"] - (1 if self.fault == "short" else 0)
        texts = asked["input"][: -1 if self.fault == "few" else None]
        data = [
            {"object": "embedding", "index": place, "embedding": list(hash_text(text, size))}
            for place, text in enumerate(texts)
        ]
        # The order is not promised: the index is.
        envelope = {"object": "list", "model": asked["model"], "data": data[::-1], "usage": _USAGE}
        return 200, json.dumps(envelope).encode()

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, content = server._answer(body) if self.path == "/v1/embeddings" else (404, b"{}")
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the tests look at `asked`."""

        return Handler


_USAGE = {"prompt_tokens": 1, "total_tokens": 1}
