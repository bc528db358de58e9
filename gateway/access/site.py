"""Host and origin checks, limits on bodies and connections, and the HTTP server."""

import asyncio
import logging
import resource
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tightloop.errors import ServiceUnavailableError
from tightloop.host.identity import BODY_SECONDS, HEAD_SECONDS

LARGEST_BYTES = 16 * 2**20


class RefusedError(Exception):
    """Raised when a request is refused. The message gives the reason and the next step."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def body_of(request: Request, bound: int = LARGEST_BYTES) -> bytes:
    """Read the request body.

    Raises:
        RefusedError: the body is too large.
        starlette.requests.ClientDisconnect: the client disconnected or timed out.
    """
    bounds = _RemainingBody(request.headers.get("content-length", "0"), bound)
    content = bytearray()
    async for part in request.stream():
        bounds.add(part)
        content += part
    return bytes(content)


class BodyLimiter:
    """ASGI middleware that limits the size of request bodies."""

    def __init__(self, app: ASGIApp, bound: int = 2 * 2**20) -> None:
        self._app = app
        self._bound = bound

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request while limiting the size of its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Checked on the first read inside the application, whose error handlers answer what is raised here.
        bounds: _RemainingBody | None = None
        is_read = False

        async def receive_within_bounds() -> Message:
            nonlocal bounds, is_read
            bounds = bounds or _RemainingBody(Request(scope).headers.get("content-length", "0"), self._bound)
            if is_read:
                return await receive()
            message = await receive()
            bounds.add(message.get("body", b""))
            is_read = not message.get("more_body", False)
            return message

        await self._app(scope, receive_within_bounds, send)


class _RemainingBody:
    """The number of bytes that may still be received for a request body."""

    def __init__(self, announced: str, bound: int) -> None:
        """Set the limit, and raise an error if the announced length exceeds it."""
        self._left = bound
        self._too_large = RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request body is larger than {bound} bytes. Send a smaller request",
        )
        if int(announced) > bound:
            raise self._too_large

    def add(self, part: bytes) -> None:
        """Count a received part of the body, and raise an error if the body exceeds the limit."""
        self._left -= len(part)
        if self._left < 0:
            raise self._too_large


FORM = "application/x-www-form-urlencoded"
# Browsers leave these ports out of the Host and Origin headers.
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Site:
    """The addresses of a server, and the origins of other sites that may access shared paths."""

    page: str
    """Origin that people use to open the server. Browsers treat `localhost` and `127.0.0.1` as different origins."""
    hosts: frozenset[str] | None
    """Allowed Host headers, as protection against DNS rebinding. None allows any, because only a proxy knows its
    names."""
    origins: frozenset[str] = frozenset()
    """Other origins that may use the paths under `shared`."""
    shared: str = ""
    """Prefix of the paths that `origins` may use."""
    origins_setting: str = ""
    """Name of the setting for `origins`."""

    @property
    def host(self) -> str:
        """Host header that browsers send."""
        return self.page.partition("://")[2]

    def names(self, host: str) -> bool:
        """Return whether a Host header refers to this server."""
        return self.hosts is None or host.lower() in self.hosts

    def cors(self, request: Request) -> dict[str, str]:
        """Return the CORS headers if an allowed origin requests a shared path. Otherwise, return no headers."""
        origin = request.headers.get("origin", "")
        if origin.lower() not in self.origins or not request.url.path.startswith(self.shared):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}

    def check_sender(self, request: Request) -> None:
        """Check that a request does not come from another site's page or a rebound host name.

        Raises:
            RefusedError: the request may come from another site or a rebound host name.
        """
        # A rebound name resolves to this address, but the browser still sends the name of the other site.
        if not self.names(host_of(request)):
            raise RefusedError(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this server does not accept requests for this host name. Open {self.page}",
            )
        # HTTP also has the targets `http://host/path` and `*` (RFC 9112, 3.2), which later checks do not expect.
        if not request.scope["raw_path"].startswith(b"/"):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the request target must be a path")
        origin, site = request.headers.get("origin", ""), request.headers.get("sec-fetch-site", "")
        if self.cors(request):
            return
        # Compared without the scheme, which differs behind a proxy that ends TLS.
        is_own = origin.partition("://")[2].lower() == host_of(request)
        if origin and not is_own:
            advice = f". If the page is yours, add its origin to {self.origins_setting}" if self.origins else ""
            raise RefusedError(
                HTTPStatus.FORBIDDEN, f"pages from {origin[:200]!r} are not allowed to call this server{advice}"
            )
        # `same-site` includes other ports of this host, which belong to other programs. Links must still work.
        if site in ("cross-site", "same-site") and not (request.method == "GET" and is_page(request)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "pages from other sites are not allowed to call this server")
        is_safe = request.method in ("GET", "HEAD", "OPTIONS")
        if not (is_safe or is_own or site == "same-origin" or "authorization" in request.headers):
            # A request without a cookie and a form body comes from a program that lacks its token.
            from_browser = "cookie" in request.headers or request.headers.get("content-type", "").startswith(FORM)
            status = HTTPStatus.FORBIDDEN if from_browser else HTTPStatus.UNAUTHORIZED
            raise RefusedError(status, "the request must have an Origin header or a bearer token")


def host_of(request: Request) -> str:
    """Return a request's Host header in lower case."""
    return request.headers.get("host", "").lower()


def is_page(request: Request) -> bool:
    """Return whether a browser is opening a page in a tab instead of a frame."""
    destination = request.headers.get("sec-fetch-dest", "")
    return destination == "document" or (not destination and "text/html" in request.headers.get("accept", ""))


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers write it, without a default port."""
    parts = urlsplit(url.lower())
    port = "" if parts.port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"


BODY_TIMEOUT_TEXT = f"the request body did not arrive within {BODY_SECONDS:g} s"


class BoundedConnection(H11Protocol):
    """An HTTP connection with time limits for receiving the request head and body.

    Without these limits, uvicorn would wait forever. If there are too many connections, a new connection
    replaces the one that has waited longest for a complete head.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: tuple[object, object] | None = None
        """The request cycle and the h11 state in which data is awaited."""
        self._since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If the limit is reached, drop the connection that has waited longest."""
        # uvicorn answers 503 once the last slot is taken.
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency - 1:
            self._displace()
        super().connection_made(transport)
        self._bound()

    def data_received(self, data: bytes) -> None:
        """Process data and adjust the time limit."""
        super().data_received(data)
        self._bound()

    def on_response_complete(self) -> None:
        """Prepare for the next request and adjust the time limit."""
        super().on_response_complete()
        self._bound()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        self._await(None)
        super().connection_lost(exc)

    @property
    def _awaits_head(self) -> bool:
        # Between two requests uvicorn's keep-alive timeout applies until the first byte of the next one.
        return self.conn.their_state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0]))

    @property
    def _is_waiting(self) -> bool:
        return self._awaits_head and not self.transport.is_closing()

    def _bound(self) -> None:
        if self.transport.is_closing():
            self._await(None)
        elif self._awaits_head or self.conn.their_state is h11.SEND_BODY:
            self._await((self.cycle, self.conn.their_state))
        else:
            self._await(None)

    def _await(self, awaited: tuple[object, object] | None) -> None:
        """Start the time limit for receiving data.

        Receiving more data of the same kind does not restart the time limit.
        """
        if awaited == self._awaited:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._awaited, self._timer = awaited, None
        if awaited is not None:
            self._since = self.loop.time()
            seconds = HEAD_SECONDS if awaited[1] is h11.IDLE else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        # A 408 fits only between a complete head and the start of the response; otherwise nothing can be sent.
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.SEND_RESPONSE:
            self.transport.abort()
            return
        # uvicorn now drops what the application sends, so that the 408 is the only response.
        self.cycle.disconnected = True
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(BODY_TIMEOUT_TEXT)))]
        head = h11.Response(status_code=408, reason="Request Timeout", headers=[*headers, ("Connection", "close")])
        for event in (head, h11.Data(data=BODY_TIMEOUT_TEXT.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _displace(self) -> None:
        waiting = [other for other in self.connections if isinstance(other, BoundedConnection) and other._is_waiting]
        if waiting:
            min(waiting, key=lambda other: other._since).transport.abort()


CONNECTIONS = 256
OTHER_FILES = 256
"""Number of open files to reserve for purposes other than connections."""
IDLE_SECONDS = 30
# Open event streams would otherwise keep the process alive forever.
END_SECONDS = 1


def listening(address: str, setting: str) -> socket.socket:
    """Return a socket that listens on `host:port`.

    Raises:
        ServiceUnavailableError: the address cannot be bound. The message names the setting to change.
    """
    host, _, port = address.rpartition(":")
    # Not `create_server`: without the protocol asyncio leaves Nagle's algorithm on: 44 ms per response instead of 2.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A restart must not wait for old connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(CONNECTIONS)
        return listener
    except OSError as error:
        listener.close()
        raise ServiceUnavailableError(
            f"cannot listen on {address}: {error.strerror or error}. Stop the program that uses this address, or "
            f"change {setting}"
        ) from error


def http_server(app: ASGIApp, connections: int = CONNECTIONS) -> uvicorn.Server:
    """Create an HTTP server that does not log anything and does not trust proxy headers.

    Args:
        app: application to serve.
        connections: maximum number of connections. Above this number, idle connections are closed and
            requests receive a 503 response.
    """
    connections = _with_files_for(connections)
    # Access logs would contain sign-in links, and tracebacks content; the guard logs failures instead.
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
            http=BoundedConnection, loop="asyncio", limit_concurrency=connections,
            timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=END_SECONDS,
        )
    )  # fmt: skip


def _with_files_for(connections: int) -> int:
    """Raise this process's limit on open files. Return the number of connections that the limit allows.

    The limit is usually 1 024, or 256 on macOS.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed_files = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed_files:
        soft = needed_files if hard == resource.RLIM_INFINITY else min(needed_files, hard)
        # The soft limit can be raised up to the hard one without privileges (setrlimit(2)).
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connections = min(connections, max(soft - OTHER_FILES, 1))
    return connections


class CallersTrace:
    """ASGI middleware that continues a request's trace in the calls to Temporal."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request in its trace context."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A malformed header is ignored, as the specification requires.
        token = context.attach(self._propagator.extract(Headers(scope=scope)))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)
