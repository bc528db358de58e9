"""Passes requests on to the server's own Web UI, and its answers back."""

from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote

import httpx2
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.access.body import RefusedError, body_of

CONNECTIONS = 64
# The UI's longest request waits a minute for new events of a history.
TIMEOUT = httpx2.Timeout(connect=5, read=120, write=30, pool=10)
# Everything else is one page, whose script reads the address: so nothing that the server may add is reached.
_PREFIXES = ("/api/", "/_app/")
_FILES = ("/favicon.ico", "/render")
_CSRF = "_csrf"
"""The one cookie of the UI; its value comes back as X-CSRF-TOKEN."""
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade")
)  # fmt: skip
"""RFC 9110, section 7.6.1"""
_OURS = frozenset(("host", "authorization", "cookie", "origin", "referer", "content-length", "expect", "forwarded"))
"""Headers of a request that are for us, or made again."""


class Proxy:
    """One Web UI."""

    def __init__(self, upstream: str) -> None:
        """Take the address, `host:port`."""
        limits = httpx2.Limits(max_connections=CONNECTIONS)
        # Without the environment: a proxy for the internet is not asked for a page of this machine.
        self._url = f"http://{upstream}/"
        self._client = httpx2.AsyncClient(trust_env=False, timeout=TIMEOUT, limits=limits)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def answer(self, request: Request) -> Response:
        """Pass one request on.

        Raises:
            RefusedError: the UI does not answer, or the path is not one of its own.
        """
        target = _target(request)
        # Not `build_request`, which would add headers of its own.
        onward = httpx2.Request(
            request.method,
            self._url,
            content=await body_of(request) or None,
            headers=_passed(request.headers.raw, _OURS) + _csrf_cookie(request),
            extensions={"target": target.encode("latin-1"), "timeout": TIMEOUT.as_dict()},
        )
        try:
            answer = await self._client.send(onward, stream=True)
        except httpx2.ConnectError:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the Temporal Web UI does not answer yet. Reload in a moment"
            ) from None
        except httpx2.TimeoutException:
            raise RefusedError(HTTPStatus.GATEWAY_TIMEOUT, "the Temporal Web UI takes too long. Reload") from None
        except httpx2.TransportError as error:
            raise RefusedError(
                HTTPStatus.BAD_GATEWAY, f"the Temporal Web UI broke off: {type(error).__name__}. Reload"
            ) from None
        response = StreamingResponse(_content(answer), answer.status_code)
        response.raw_headers = _passed(answer.headers.raw, frozenset(("server", "date")))
        return response


async def _content(answer: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def _target(request: Request) -> str:
    """Return what to ask the UI for.

    Raises:
        RefusedError: the path leads out of where it begins, or a page is written to.
    """
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    if not path.startswith(_PREFIXES) and path not in _FILES:
        if request.method not in ("GET", "HEAD"):
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read")
        return "/"
    if any(segment in (".", "..") for segment in unquote(path).replace("\\", "/").split("/")):
        raise RefusedError(HTTPStatus.NOT_FOUND, "not found")
    return f"{path}?{query}" if query else path


def _passed(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[str]) -> list[tuple[bytes, bytes]]:
    """Return the headers that go through: neither those of one connection, nor those that it names, nor `dropped`."""
    given = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in given if name == b"connection" for part in value.split(b",")}
    kept = []
    for name, value in given:
        text = name.decode("latin-1")
        if text not in _HOP_BY_HOP and text not in dropped and name not in named and not text.startswith("x-forwarded"):
            kept.append((name, value))
    return kept


def _csrf_cookie(request: Request) -> list[tuple[bytes, bytes]]:
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(_CSRF)
    except CookieError:
        return []
    return [] if morsel is None else [(b"cookie", f"{_CSRF}={morsel.value}".encode("latin-1", "replace"))]
