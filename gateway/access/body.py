"""Reads the body of a request within bounds of size; the connection bounds its time."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BYTES = 16 * 2**20


class RefusedError(Exception):
    """A request that is not answered; the text says why and what to do."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def body_of(request: Request, bound: int = LARGEST_BYTES) -> bytes:
    """Return the body.

    Raises:
        RefusedError: it is too large.
        starlette.requests.ClientDisconnect: the client went away, or did not send it in time.
    """
    bounds = _Bounds(request.headers.get("content-length", "0"), bound)
    content = bytearray()
    async for part in request.stream():
        bounds.add(part)
        content += part
    return bytes(content)


class Bounded:
    """ASGI application around another one that reads bodies by itself."""

    def __init__(self, app: ASGIApp, bound: int = 2 * 2**20) -> None:
        self._app = app
        self._bound = bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Within the application, whose handlers answer what is raised here.
        bounds: _Bounds | None = None
        is_read = False

        async def bounded() -> Message:
            nonlocal bounds, is_read
            bounds = bounds or _Bounds(Request(scope).headers.get("content-length", "0"), self._bound)
            if is_read:
                return await receive()
            message = await receive()
            bounds.add(message.get("body", b""))
            is_read = not message.get("more_body", False)
            return message

        await self._app(scope, bounded, send)


class _Bounds:
    """The size of one body so far."""

    def __init__(self, announced: str, bound: int) -> None:
        """Refuse a body that says itself that it is too large."""
        self._left = bound
        self._too_large = RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is too large, {bound} bytes are allowed. Send less at once"
        )
        if int(announced) > bound:
            raise self._too_large

    def add(self, part: bytes) -> None:
        """Count a part of it."""
        self._left -= len(part)
        if self._left < 0:
            raise self._too_large
