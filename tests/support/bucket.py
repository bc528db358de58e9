"""A real server of the S3 protocol that honours conditional writes (moto), and one that does not."""

import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tightloop.settings import RemoteSettings

BUCKET = "copies"
START_SECONDS = 60.0


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[RemoteSettings]:
    """Run the server with an empty bucket."""
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    command = (sys.executable, "-m", "moto.server", "-H", host, "-p", str(port))
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://{host}:{port}"
    try:
        _make_bucket(f"{endpoint}/{BUCKET}")
        yield _settings(endpoint)
    finally:
        server.kill()
        server.wait(10)


@contextmanager
def careless_server() -> Iterator[RemoteSettings]:
    """Run a server that accepts every write, whatever its condition is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Careless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield _settings(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


class _Careless(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _settings(endpoint: str) -> RemoteSettings:
    return RemoteSettings.model_validate(
        {"bucket": BUCKET, "endpoint": endpoint, "access_key": "key", "secret_key": "secret", "timeout_s": 10}
    )


def _make_bucket(url: str) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
