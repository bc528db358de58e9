"""The HTTP server around the payload codec, for one machine."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from typing import Any, cast
from urllib.parse import parse_qs

from temporalio.converter import PayloadCodec

from gateway.codec.access import COOKIE, COOKIE_SECONDS, Access, access_of, own_page
from gateway.codec.payloads import LARGEST_BYTES, ROUTES, transformed
from tightloop.errors import ServiceUnavailableError, TightloopError
from tightloop.settings import Settings

logger = logging.getLogger("tightloop")

# Temporal's UI sends one request for each payload that it shows.
CONNECTIONS = 64
IDLE_S = 30.0
"""Longest silence on a connection, and longest time for one body."""
LINGER_S = 2.0
SIGN_IN = "/sign-in"
_LARGEST_FORM = 4096
_CHUNK = 64 * 2**10
_PAGE = Template((Path(__file__).parent / "sign_in.html").read_text(encoding="utf-8"))
_JSON, _HTML = "application/json", "text/html; charset=utf-8"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}


class RefusedError(Exception):
    """A request that is not answered; the text says why and what to do."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class CodecServer(ThreadingHTTPServer):
    """Answers until `shutdown`; a thread for each connection, of which there is a bounded number."""

    # A browser that keeps its connection open must not keep the process alive.
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, codec: PayloadCodec, settings: Settings, token: str | None) -> None:
        """Take the address; nothing is answered before `serve_forever`.

        Raises:
            ServiceUnavailableError: the address cannot be listened at.
        """
        host, _, port = settings.codec.listen.rpartition(":")
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((host, int(port)), Exchange)
        except OSError as error:
            raise ServiceUnavailableError(
                f"the codec server cannot listen at {settings.codec.listen}: {error.strerror or error}. "
                "End what listens there, or choose another codec.listen"
            ) from error
        self.codec = codec
        self.access: Access = access_of(settings, token, self.server_address[1])
        self.endpoint = f"http://{host}:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread, or close it when there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as the base class has it
        """Say nothing of a client that went away, or of what it sent."""
        logger.debug("a connection to the codec server broke off")


class Exchange(BaseHTTPRequestHandler):
    """One connection: HTTP/1.1, one request after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "tightloop"
    sys_version = ""
    timeout = IDLE_S
    disable_nagle_algorithm = True

    def do_OPTIONS(self) -> None:
        """Tell a browser what a page may send."""
        self._guarded(lambda: self._reply(HTTPStatus.NO_CONTENT, b"", _JSON, self._preflight()))

    def do_GET(self) -> None:
        """Show the sign-in."""
        self._guarded(self._show)

    def do_POST(self) -> None:
        """Transform payloads, or sign in."""
        self._guarded(self._sign_in if self._path == SIGN_IN else self._transform)

    def _show(self) -> None:
        if self._path != "/":
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing here. POST to one of: /{', /'.join(ROUTES)}")
        note = "Not signed in." if self._codec.access.token else "No token is needed here (codec.require_token: false)."
        if self._codec.access.token and self._has_access:
            note = "This browser is signed in."
        self._reply(HTTPStatus.OK, self._page(note), _HTML, _PAGE_HEADERS)

    def _sign_in(self) -> None:
        if not own_page(self._header("Origin"), self._header("Host")):
            raise RefusedError(HTTPStatus.FORBIDDEN, "sign in on the page of the codec server itself")
        fields = parse_qs(self._body(_LARGEST_FORM).decode("utf-8", "replace"))
        if not self._codec.access.knows(fields.get("token", [""])[0]):
            self._reply(HTTPStatus.FORBIDDEN, self._page("That is not the token."), _HTML, _PAGE_HEADERS)
            return
        # A path for each: cookies go to every port of a host, and so other local servers get none of these.
        cookies = [
            f"{COOKIE}={self._codec.access.cookie}; Path=/{route}; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
            for route in ROUTES
        ]
        self._reply(HTTPStatus.OK, self._page("This browser is signed in."), _HTML, _PAGE_HEADERS, cookies)

    def _transform(self) -> None:
        route = self._path.removeprefix("/")
        if route not in ROUTES:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is nothing here. POST to one of: /{', /'.join(ROUTES)}")
        origin = self._header("Origin")
        if origin and origin.lower() not in self._codec.access.origins:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                f"pages of {origin[:200]!r} may not ask here. Add it to codec.origins, if it is a Temporal UI of yours",
            )
        if not self._has_access:
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong. CLI: TEMPORAL_CODEC_AUTH='Bearer TOKEN'; browser: sign in at "
                f"{self._codec.endpoint}/",
            )
        if self._header("Content-Type").partition(";")[0].strip().lower() != _JSON:
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {_JSON}")
        self._reply(HTTPStatus.OK, transformed(self._codec.codec, route, self._body(LARGEST_BYTES)), _JSON)

    def _page(self, note: str) -> bytes:
        return _PAGE.substitute(note=note, endpoint=self._codec.endpoint).encode()

    @property
    def _codec(self) -> CodecServer:
        return cast(CodecServer, self.server)

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    @property
    def _has_access(self) -> bool:
        return self._codec.access.allows(self._header("Authorization"), self._header("Cookie"))

    def _header(self, name: str) -> str:
        return str(self.headers.get(name, ""))

    def _body(self, bound: int) -> bytes:
        lengths = self.headers.get_all("Content-Length") or []
        if self._header("Transfer-Encoding") or len(lengths) != 1 or not lengths[0].isdecimal():
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "send the body with one Content-Length")
        wanted = int(lengths[0][:12])
        if wanted > bound:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {wanted} bytes, {bound} are allowed. Send less at once",
            )
        parts: list[bytes] = []
        deadline = time.monotonic() + IDLE_S
        while wanted:
            part = self.rfile.read1(min(wanted, _CHUNK))
            if not part or time.monotonic() > deadline:
                raise ConnectionAbortedError
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def _guarded(self, answer: Callable[[], None]) -> None:
        """Answer; a refusal is a sentence, and ends the connection since its body may be unread."""
        self._cors = self._allowed_origin()
        try:
            if not self._codec.access.names(self._header("Host")):
                raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, f"ask for {self._codec.endpoint}, under that name")
            answer()
        except RefusedError as refused:
            self._refuse(refused.status, refused.message)
        except TightloopError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, error.message)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # noqa: BLE001 - outermost handler; a traceback could hold content
            logger.error("the codec server failed with %s at %s", type(error).__name__, self._path[:40])
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the codec server failed: {type(error).__name__}")

    def _allowed_origin(self) -> dict[str, str]:
        origin = self._header("Origin")
        if origin.lower() not in self._codec.access.origins:
            return {}
        headers = {"Access-Control-Allow-Origin": origin}
        if self._codec.access.token is not None:
            headers["Access-Control-Allow-Credentials"] = "true"
        return headers

    def _preflight(self) -> dict[str, str]:
        if not self._cors:
            raise RefusedError(HTTPStatus.FORBIDDEN, "this page may not ask here. Name its origin in codec.origins")
        return {
            "Access-Control-Allow-Methods": "POST, OPTIONS",
            # Those that Temporal's UI sends.
            "Access-Control-Allow-Headers": "authorization,content-type,x-namespace",
            "Access-Control-Max-Age": "600",
        }

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True
        extra = {"Connection": "close"}
        if status is HTTPStatus.UNAUTHORIZED:
            extra["WWW-Authenticate"] = "Bearer"
        with suppress(OSError):
            self._reply(status, json.dumps({"error": message}).encode(), _JSON, extra)
            self.wfile.flush()
            # Read on for a while: closing with bytes unread would take the answer away from the client.
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(LINGER_S)
            deadline = time.monotonic() + LINGER_S
            while time.monotonic() < deadline and self.connection.recv(_CHUNK):
                pass

    def _reply(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str,
        headers: Mapping[str, str] | None = None,
        cookies: list[str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**self._cors, **(headers or {})}.items():
            self.send_header(name, value)
        for cookie in cookies or ():
            self.send_header("Set-Cookie", cookie)
        self.send_header("Vary", "Origin")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing that a client sent."""
