"""Limits of connections and bodies."""

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


FORM = "application/x-www-form-urlencoded"
# Browsers leave these ports out of the Host and Origin headers.
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Site:
    """The addresses of one door, and the pages elsewhere that may use a part of it."""

    page: str
    """Origin under which people open this server. `localhost` and `127.0.0.1` differ for a browser."""
    hosts: frozenset[str] | None
    """Allowed values of the Host header, against DNS rebinding; None: any, since only a proxy knows its names."""
    origins: frozenset[str] = frozenset()
    """Pages elsewhere that may use the paths below `shared`."""
    shared: str = ""
    """Prefix of the paths that `origins` may use."""
    origins_setting: str = ""
    """The setting that names `origins`."""

    @property
    def host(self) -> str:
        """The Host header of people's browsers."""
        return self.page.partition("://")[2]

    def names(self, host: str) -> bool:
        """Tell whether a Host header means this server."""
        return self.hosts is None or host.lower() in self.hosts

    def cors(self, request: Request) -> dict[str, str]:
        """Return the headers that let a page elsewhere use what is shared; none for all other requests."""
        origin = request.headers.get("origin", "")
        if origin.lower() not in self.origins or not request.url.path.startswith(self.shared):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}

    def check_sender(self, request: Request) -> None:
        """Refuse what a page of another site, or a name that somebody let point here, may have sent.

        Raises:
            RefusedError: it may have.
        """
        if not self.names(host_of(request)):
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, f"ask for {self.page}, under that name")
        if not request.scope["raw_path"].startswith(b"/"):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "ask for a path")
        origin, site = request.headers.get("origin", ""), request.headers.get("sec-fetch-site", "")
        if self.cors(request):
            return
        is_own = origin.partition("://")[2].lower() == host_of(request)
        if origin and not is_own:
            advice = f". Add it to {self.origins_setting}, if it is a page of yours" if self.origins else ""
            raise RefusedError(HTTPStatus.FORBIDDEN, f"pages of {origin[:200]!r} may not ask here{advice}")
        if site in ("cross-site", "same-site") and not (request.method == "GET" and is_page(request)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "pages of other sites may not ask here")
        is_safe = request.method in ("GET", "HEAD", "OPTIONS")
        if not (is_safe or is_own or site == "same-origin" or "authorization" in request.headers):
            # Without a session, and not a form, it is a program that lacks its token.
            from_browser = "cookie" in request.headers or request.headers.get("content-type", "").startswith(FORM)
            status = HTTPStatus.FORBIDDEN if from_browser else HTTPStatus.UNAUTHORIZED
            raise RefusedError(status, "send an Origin header, or a token as a bearer")


def host_of(request: Request) -> str:
    """Return the Host header in lower case."""
    return request.headers.get("host", "").lower()


def is_page(request: Request) -> bool:
    """Tell whether a browser opens a page, in a tab and not in a frame."""
    destination = request.headers.get("sec-fetch-dest", "")
    return destination == "document" or (not destination and "text/html" in request.headers.get("accept", ""))


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers write it."""
    parts = urlsplit(url.lower())
    port = "" if parts.port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"


LATE = f"the body did not come within {BODY_SECONDS:g} s"


class BoundedConnection(H11Protocol):
    """A connection that is closed where a request does not come in time; uvicorn itself waits for ever.

    When there are too many, a new one takes the place of the one that has waited longest for a whole head.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: tuple[object, object] | None = None
        """The request of which something is to come, and the state that h11 is in until it has come."""
        self._since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        # uvicorn answers 503 when the last place is taken.
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency - 1:
            self._displace()
        super().connection_made(transport)
        self._bound()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        self._bound()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._bound()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._await(None)
        super().connection_lost(exc)

    @property
    def _awaits_head(self) -> bool:
        # Between two requests uvicorn's own timeout holds, until the first byte of the next one.
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
        """Start the time for something; a byte of it does not start it again."""
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
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.SEND_RESPONSE:
            self.transport.abort()
            return
        self.cycle.disconnected = True
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(LATE)))]
        head = h11.Response(status_code=408, reason="Request Timeout", headers=[*headers, ("Connection", "close")])
        for event in (head, h11.Data(data=LATE.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _displace(self) -> None:
        waiting = [other for other in self.connections if isinstance(other, BoundedConnection) and other._is_waiting]
        if waiting:
            min(waiting, key=lambda other: other._since).transport.abort()


CONNECTIONS = 256
OTHER_FILES = 256
"""Open files of the process that are no connections."""
IDLE_SECONDS = 30
# Open streams of a browser would hold the process for ever.
END_SECONDS = 1


def listening(address: str, setting: str) -> socket.socket:
    """Return a socket that listens at `host:port`.

    Raises:
        ServiceUnavailableError: the address is taken; the message names the setting to change.
    """
    host, _, port = address.rpartition(":")
    # Not `create_server`: without the protocol asyncio leaves Nagle's algorithm on, and an answer takes 44 ms, not 2.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(CONNECTIONS)
        return listener
    except OSError as error:
        listener.close()
        raise ServiceUnavailableError(
            f"nothing can listen at {address}: {error.strerror or error}. End what listens there, or change {setting}"
        ) from error


def http_server(app: ASGIApp, connections: int = CONNECTIONS) -> uvicorn.Server:
    """Return a server that logs nothing and trusts no header of a proxy.

    Args:
        app: answers.
        connections: beyond them those that send no request are closed, and requests are answered with 503.
    """
    connections = _with_files_for(connections)
    # Its lines have addresses with sign-in links in them, its tracebacks could have content; the guard logs what fails.
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
    """Return how many connections the process may have; the usual limits are 1 024 files, on macOS 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connections = min(connections, max(soft - OTHER_FILES, 1))
    return connections


class CallersTrace:
    """ASGI application around another one: what a request does in Temporal belongs to the trace that it names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # What is malformed is left out, as the specification wants it.
        token = context.attach(self._propagator.extract(Headers(scope=scope)))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)
