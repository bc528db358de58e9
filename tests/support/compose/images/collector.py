"""Takes OTLP over HTTP as a collector does; `GET /` returns what came: paths, and bodies in base64 without gzip."""

import base64
import gzip
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RECEIVED: list[tuple[str, str]] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        RECEIVED.append((self.path, base64.b64encode(body).decode()))
        self.answer(b"", "application/x-protobuf")

    def do_GET(self) -> None:
        self.answer(json.dumps(RECEIVED).encode(), "application/json")

    def answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


ThreadingHTTPServer(("0.0.0.0", 4318), Receiver).serve_forever()
