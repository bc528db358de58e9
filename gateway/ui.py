"""`python -m gateway.ui`: codec server for a Temporal cluster.

With `--embedded`, it serves the Web UI of `up` with sign-in.
"""

import argparse
import asyncio
import hmac
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import httpx2
import uvicorn
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from gateway.access.guard import Access, Account, Guard, Sessions, SignIn, sign_in_page
from gateway.access.site import RefusedError, Site, body_of, http_server, listening, origin_of
from tightloop.client.encryption import operator_codec
from tightloop.client.sign_in import UI_LINK, UI_LINK_SECONDS, ui_token
from tightloop.errors import InvalidRequestError, SettingsError, TightloopError
from tightloop.host import load_settings
from tightloop.host.log import set_up
from tightloop.safety.seal import Person, Role
from tightloop.settings import LOOPBACK_HOSTS, Settings

CODEC_PATH = "/codec/"
COOKIE_SECONDS = 30 * 86_400
_UNCHANGING = "/_app/immutable/"
_OWNER = Account("", Person(name="operator", role=Role.ADMIN))
_SIGN_IN = SignIn(
    title="Temporal Web UI", command="tightloop ui", other="the token from the file ui-token in the state folder"
)


class OneToken:
    """Accounts with a single token that belongs to the owner."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def by_token(self, token: str) -> Account | None:
        """Return the owner if the token matches."""
        # Constant time, so that the response time does not reveal the token.
        return _OWNER if hmac.compare_digest(token.encode("utf-8", "replace"), self._token) else None

    async def by_subject(self, subject: str) -> Person | None:
        """Return the owner if the subject matches."""
        return _OWNER.person if subject == _OWNER.subject else None


def ui_access(settings: Settings, token: str) -> Access:
    """Return the access rules for the embedded server's Web UI."""
    page = origin_of(settings.temporal.ui_url)
    hosts = {page.partition("://")[2], *(f"{host}:{settings.temporal.ui_port}" for host in LOOPBACK_HOSTS)}
    return _access(token, Site(page=page, hosts=frozenset(hosts)))


def codec_access(settings: Settings, token: str) -> Access:
    """Return the access rules for the codec server of a cluster whose Web UI is on another host."""
    listen, codec = settings.codec.listen, settings.codec
    host, _, port = listen.rpartition(":")
    hosts = frozenset(f"{name}:{port}" for name in LOOPBACK_HOSTS) if host in LOOPBACK_HOSTS else None
    origins = {origin.lower() for origin in codec.origins} | {origin_of(settings.temporal.ui_url)}
    site = Site(
        page=f"http://{listen}",
        hosts=hosts,
        origins=frozenset(origins),
        shared=CODEC_PATH,
        origins_setting="codec.origins",
    )
    return _access(token, site)


def _access(token: str, site: Site) -> Access:
    return Access(
        site=site,
        sessions=Sessions(
            secret=token,
            site=site,
            purpose=UI_LINK,
            link_seconds=UI_LINK_SECONDS,
            cookie_seconds=COOKIE_SECONDS,
            same_site="Strict",
        ),
        accounts=OneToken(token),
        owner=_OWNER.subject,
        sign_in=_SIGN_IN,
        refusal=refusal,
        policy="frame-ancestors 'self'",
        cached=_UNCHANGING,
        hint='In a browser, open the link that `tightloop ui` prints. For the Temporal CLI: eval "$(tightloop env)"',
    )


def refusal(refused: RefusedError) -> Response:
    """Return the response to a refused request."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status is HTTPStatus.UNAUTHORIZED else None
    content = json.dumps({"error": refused.message})
    return Response(content, refused.status, headers, "application/json")


ROUTES = ("encode", "decode", "download")
_REFERENCE = b"temporal.api.sdk.v1.ExternalStorageReference"


def transform_payloads(codec: PayloadCodec | None, route: str, body: bytes) -> bytes:
    """Encode or decode the payloads of a codec request, and return JSON with the same structure.

    `decode` does not change payloads that the codec did not create. These include references to external
    storage (with and without `preserveStorageRefs`), which tightloop does not use.

    Raises:
        InvalidRequestError: the body is not a list of payloads, or a payload is in external storage.
        SettingsError: a key is missing.
    """
    payloads = _read(body).payloads
    if codec is None:
        return _written(payloads)
    if route == "encode":
        # The codec is asynchronous, and this runs in a worker thread without an event loop.
        return _written(asyncio.run(codec.encode(payloads)))
    # Temporal's UI also posts payloads that were never encrypted, such as summaries; they pass through.
    plain = asyncio.run(codec.decode(payloads))
    if route == "download" and any(payload.metadata.get("messageType") == _REFERENCE for payload in plain):
        raise InvalidRequestError("this payload is in another program's external storage, which tightloop cannot read")
    return _written(plain)


def _read(body: bytes) -> Payloads:
    try:
        return Parse(body, Payloads(), ignore_unknown_fields=True)
    except (ParseError, ValueError, RecursionError):
        # The parser's message quotes the content, so it is not repeated.
        raise InvalidRequestError(
            'the request body must be JSON of the form {"payloads": [{"metadata": {...}, "data": "..."}]}'
        ) from None


def _written(payloads: Iterable[Payload]) -> bytes:
    return MessageToJson(Payloads(payloads=payloads), indent=None).encode()


CONNECTIONS = 64
# The UI's longest request waits a minute for new history events.
TIMEOUT = httpx2.Timeout(connect=5, read=120, write=30, pool=10)
# All other paths get the UI's single page, so that no new path of the upstream server becomes reachable.
_PREFIXES = ("/api/", "/_app/")
_FILES = ("/favicon.ico", "/render")
_CSRF = "_csrf"
"""The UI's only cookie. Requests repeat its value in the X-CSRF-TOKEN header."""
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade")
)  # fmt: skip
"""Hop-by-hop headers (RFC 9110, section 7.6.1)."""
_OURS = frozenset(("host", "authorization", "cookie", "origin", "referer", "content-length", "expect", "forwarded"))
"""Request headers that are intended for this server or are set again."""


class Proxy:
    """A reverse proxy for one Web UI."""

    def __init__(self, upstream: str) -> None:
        """Prepare to forward requests to the Web UI at `upstream`, given as `host:port`."""
        limits = httpx2.Limits(max_connections=CONNECTIONS)
        # Without proxy settings from the environment, which are meant for the internet.
        self._url = f"http://{upstream}/"
        self._client = httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT, limits=limits)

    async def close(self) -> None:
        """Close all connections to the Web UI."""
        await self._client.aclose()

    async def answer(self, request: Request) -> Response:
        """Forward a request to the Web UI and return its response.

        Raises:
            RefusedError: the UI does not respond, or the path is not allowed.
        """
        target = _target(request)
        # Not `build_request`, which adds headers of its own.
        onward = httpx2.Request(
            request.method,
            self._url,
            content=await body_of(request) or None,
            headers=_forwarded_headers(request.headers.raw, _OURS) + _csrf_cookie(request),
            # The exact bytes: the URL class would normalize percent-encoded ids.
            extensions={"target": target.encode("latin-1"), "timeout": TIMEOUT.as_dict()},
        )
        try:
            answer = await self._client.send(onward, stream=True)
        except httpx2.ConnectError:
            # Right after the start of `up` the port of the UI is not open yet.
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the Temporal Web UI is not responding yet. Reload the page in a moment"
            ) from None
        except httpx2.TimeoutException:
            raise RefusedError(
                HTTPStatus.GATEWAY_TIMEOUT, "the Temporal Web UI did not respond in time. Reload the page"
            ) from None
        except httpx2.TransportError as error:
            raise RefusedError(
                HTTPStatus.BAD_GATEWAY,
                f"the Temporal Web UI closed the connection: {type(error).__name__}. Reload the page",
            ) from None
        response = StreamingResponse(_content(answer), answer.status_code)
        # A list, because a mapping would merge repeated headers such as Set-Cookie.
        response.raw_headers = _forwarded_headers(answer.headers.raw, frozenset(("server", "date")))
        return response


async def _content(answer: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        # Not decompressed, because Content-Encoding and Content-Length are forwarded unchanged.
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def _target(request: Request) -> str:
    """Return the path and query to request from the Web UI.

    Raises:
        RefusedError: the path contains dot segments, or the request writes to a page.
    """
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    if not path.startswith(_PREFIXES) and path not in _FILES:
        if request.method not in ("GET", "HEAD"):
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "this page is read-only")
        return "/"
    # The upstream server would resolve dot segments and leave the allowed prefixes.
    if any(segment in (".", "..") for segment in unquote(path).replace("\\", "/").split("/")):
        raise RefusedError(HTTPStatus.NOT_FOUND, "not found")
    return f"{path}?{query}" if query else path


def _forwarded_headers(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[str]) -> list[tuple[bytes, bytes]]:
    """Return the headers to forward.

    Hop-by-hop headers, headers named in Connection and headers in `dropped` are removed.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")}
    forwarded = []
    for name, value in pairs:
        text = name.decode("latin-1")
        if text not in _HOP_BY_HOP and text not in dropped and name not in named and not text.startswith("x-forwarded"):
            forwarded.append((name, value))
    return forwarded


def _csrf_cookie(request: Request) -> list[tuple[bytes, bytes]]:
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(_CSRF)
    except CookieError:
        return []
    return [] if morsel is None else [(b"cookie", f"{_CSRF}={morsel.value}".encode("latin-1", "replace"))]


_JSON = "application/json"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def application(access: Access, codec: PayloadCodec | None, upstream: str | None = None) -> ASGIApp:
    """Return the complete codec and Web UI application, protected by its guard.

    Args:
        access: access rules.
        codec: encodes and decodes payloads. If None, payloads are not changed.
        upstream: `host:port` of the server's own Web UI. If None, only the codec routes are served.
    """

    async def transform(request: Request) -> Response:
        route = request.path_params["route"]
        if route not in ROUTES or request.method != "POST":
            raise RefusedError(
                HTTPStatus.NOT_FOUND, f"not found. Send a POST request to {CODEC_PATH}{{{','.join(ROUTES)}}}"
            )
        # Forms and plain text could be posted by any page without a preflight.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise RefusedError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the request must have the header Content-Type: {_JSON}"
            )
        return Response(
            await run_in_threadpool(transform_payloads, codec, route, await body_of(request)), media_type=_JSON
        )

    async def signed_in(request: Request) -> Response:  # noqa: ARG001 - Starlette's signature
        return sign_in_page(access.sign_in, "This browser is signed in.", HTTPStatus.OK)

    routes = [Route(f"{CODEC_PATH}{{route}}", transform, methods=_METHODS)]
    proxy = None if upstream is None else Proxy(upstream)
    if proxy is None:
        routes.append(Route("/", signed_in))
    else:
        routes.append(Route("/{path:path}", proxy.answer, methods=_METHODS))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if proxy is not None:
            await proxy.close()

    handlers = {RefusedError: _refusal_response, TightloopError: _failure_response}
    return Guard(Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan), access)


def _refusal_response(_: Request, error: Exception) -> Response:
    return refusal(cast(RefusedError, error))


def _failure_response(_: Request, error: Exception) -> Response:
    return refusal(RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, cast(TightloopError, error).message))


READY = "the sign-in listens at"


def main() -> int:
    """Run the server and return its exit code.

    If there is a tightloop error, it is printed as one sentence and the exit code is 1.
    """
    set_up(logging.INFO, content=False)
    # Their request logs contain the UI's secret address.
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m gateway.ui", description=__doc__)
    parser.add_argument("--settings", type=Path, help="settings file")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="read the address of the server's Web UI from standard input, and exit when standard input closes",
    )
    arguments = parser.parse_args()
    try:
        serve(load_settings(arguments.settings), embedded=arguments.embedded)
    except TightloopError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


def serve(settings: Settings, *, embedded: bool) -> None:
    """Serve until SIGTERM or SIGINT. With `embedded`, also stop at the end of standard input.

    Raises:
        TightloopError: a key or the token cannot be used, or the address is already in use.
    """
    codec = operator_codec(settings)
    if embedded:
        # Not an argument, which all users of the machine could see in the process list.
        upstream = sys.stdin.readline().strip()
        access = ui_access(settings, ui_token())
        listen = f"127.0.0.1:{settings.temporal.ui_port}"
        name = "temporal.ui_url"
    elif settings.codec.listen:
        upstream, access, listen, name = None, codec_access(settings, ui_token()), settings.codec.listen, "codec.listen"
    else:
        raise SettingsError(
            "codec.listen is not set. For a cluster, set codec.listen to an address, for example 127.0.0.1:8234. "
            "`tightloop up` serves the codec without this setting"
        )
    listener = listening(listen, name)
    _run(http_server(application(access, codec, upstream)), listener, access.site.page, with_stdin=embedded)


def _run(server: uvicorn.Server, listener: socket.socket, page: str, *, with_stdin: bool) -> None:
    def at_the_end_of_stdin() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        server.should_exit = True

    if with_stdin:
        threading.Thread(target=at_the_end_of_stdin, daemon=True).start()
    print(f"{READY} {page}", flush=True)
    with listener:
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    sys.exit(main())
