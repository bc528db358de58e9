"""The sign-in in a thread, and requests to it as clients send them."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from gateway.access.site import http_server, listening


class Served(NamedTuple):
    """A running server."""

    address: str

    @property
    def url(self) -> str:
        return f"http://{self.address}"


class Answer(NamedTuple):
    """What it says."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@contextmanager
def serving(app: ASGIApp, address: str) -> Iterator[Served]:
    """Serve an application in a thread."""
    server = http_server(app)
    with listening(address, "it") as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Served(address)
        finally:
            server.should_exit = True
            thread.join(30)


def ask(server: Served, path: str, body: Any = None, *, method: str = "GET", **headers: str) -> Answer:
    """Send one request: a body as JSON, bytes as they are; a header `Content_Type` as Content-Type."""
    given = {name.replace("_", "-"): value for name, value in headers.items() if value}
    data = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
    host, _, port = server.address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, data, given)
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()
