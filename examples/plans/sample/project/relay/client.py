"""Sends requests. Every request is sent once: see docs/open-questions.md before that is changed."""

from collections.abc import Callable

from relay.message import Request, Response

Transport = Callable[[Request], Response]


class Client:
    """Sends requests by a transport."""

    def __init__(self, transport: Transport) -> None:
        """Take what carries requests; it raises `ConnectionError` where nothing answers."""
        self._transport = transport

    def send(self, request: Request) -> Response:
        """Return the answer."""
        return self._transport(request)
