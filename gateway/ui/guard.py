"""Judges every request before a route sees it, and signs people in.

Rules: https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html
(Fetch metadata, Origin), and the Host header against DNS rebinding.
"""

import html
import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from string import Template
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.ui.access import Access
from gateway.ui.body import RefusedError, body_of
from tightloop.client.ui_session import PARAMETER

logger = logging.getLogger("tightloop")

CODEC_PATH = "/codec/"
_UNCHANGING = "/_app/immutable/"
_FORM = "application/x-www-form-urlencoded"
_LARGEST_FORM = 4096
_PAGE = Template((Path(__file__).parent / "sign_in.html").read_text(encoding="utf-8"))
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI application around another one."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        cors = self._cors(request)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), request.url.path, cors)
            await send(message)

        try:
            answer: ASGIApp = await self._answer(request) or self._app
        except RefusedError as refused:
            answer = refusal(refused)
        except ClientDisconnect:
            return
        try:
            await answer(scope, receive, with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - outermost handler; a traceback could hold content
            logger.error("the Web UI's sign-in failed with %s at %s", type(error).__name__, request.url.path[:40])

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer where no route may see the request.

        Raises:
            RefusedError: it is not answered.
        """
        self._check_sender(request)
        if request.method == "OPTIONS":
            return self._preflight(request)
        is_page = request.method == "GET" and self._is_page(request)
        if is_page and self._access.hosts and _host(request) != self._access.host:
            return RedirectResponse(f"{self._access.page}{_target(request)}", HTTPStatus.TEMPORARY_REDIRECT)
        if request.method == "POST" and request.headers.get("content-type", "").startswith(_FORM):
            return await self._read_form(request)
        headers = request.headers
        has_access = self._access.allows(headers.get("authorization", ""), headers.get("cookie", ""), _host(request))
        if request.method == "GET" and (link := request.query_params.get(PARAMETER)):
            return self._open_link(request, link, has_access=has_access)
        if has_access:
            return None
        if is_page:
            return sign_in_page("Not signed in.", HTTPStatus.UNAUTHORIZED)
        raise RefusedError(
            HTTPStatus.UNAUTHORIZED,
            "the token is missing or wrong. Browser: open the link that `tightloop ui` prints; "
            'Temporal CLI: eval "$(tightloop env)"',
        )

    def _check_sender(self, request: Request) -> None:
        """Refuse what a page of another site, or a name that somebody let point here, may have sent."""
        if not self._access.names(_host(request)):
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, f"ask for {self._access.page}, under that name")
        if not request.scope["raw_path"].startswith(b"/"):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "ask for a path")
        origin, site = request.headers.get("origin", ""), request.headers.get("sec-fetch-site", "")
        if self._cors(request):
            return
        is_own = origin.partition("://")[2].lower() == _host(request)
        if origin and not is_own:
            advice = ". Add it to codec.origins, if it is a Temporal UI of yours" if self._access.origins else ""
            raise RefusedError(HTTPStatus.FORBIDDEN, f"pages of {origin[:200]!r} may not ask here{advice}")
        if site in ("cross-site", "same-site") and not (request.method == "GET" and self._is_page(request)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "pages of other sites may not ask here")
        is_safe = request.method in ("GET", "HEAD", "OPTIONS")
        if not (is_safe or is_own or site == "same-origin" or "authorization" in request.headers):
            raise RefusedError(HTTPStatus.FORBIDDEN, "send an Origin header, or the token as a bearer")

    def _cors(self, request: Request) -> dict[str, str]:
        """Return the headers that let a page elsewhere use the codec; none for all other requests."""
        origin = request.headers.get("origin", "")
        if origin.lower() not in self._access.origins or not request.url.path.startswith(CODEC_PATH):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}

    def _preflight(self, request: Request) -> Response:
        if not self._cors(request):
            raise RefusedError(HTTPStatus.FORBIDDEN, "this page may not ask here")
        headers = {
            "Access-Control-Allow-Methods": "POST, OPTIONS",
            # Those that Temporal's UI sends.
            "Access-Control-Allow-Headers": "authorization,content-type,x-namespace",
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)

    def _open_link(self, request: Request, link: str, *, has_access: bool) -> Response:
        # Who is signed in may click it again; it is used up all the same.
        if not self._access.redeem(link) and not has_access:
            return sign_in_page("This link was used already, or is too old.", HTTPStatus.UNAUTHORIZED)
        return self._signed_in(request)

    async def _read_form(self, request: Request) -> Response:
        fields = parse_qs((await body_of(request, _LARGEST_FORM)).decode("utf-8", "replace"))
        if not self._access.knows(fields.get("token", [""])[0]):
            return sign_in_page("That is not the token.", HTTPStatus.UNAUTHORIZED)
        return self._signed_in(request)

    def _signed_in(self, request: Request) -> Response:
        # The path alone: the token must not stay in the address bar, nor in the browser's history.
        path = request.scope["raw_path"].decode("latin-1")
        return RedirectResponse(
            # `//host` would be another site.
            f"/{path.lstrip('/')}",
            HTTPStatus.SEE_OTHER,
            {"Set-Cookie": self._access.cookie(_host(request))},
        )

    @staticmethod
    def _is_page(request: Request) -> bool:
        """Tell whether a browser opens a page, in a tab and not in a frame."""
        destination = request.headers.get("sec-fetch-dest", "")
        return destination == "document" or (not destination and "text/html" in request.headers.get("accept", ""))


def sign_in_page(note: str, status: HTTPStatus) -> Response:
    """Return the page where people sign in; its form goes to the address that they asked for."""
    return HTMLResponse(_PAGE.substitute(note=html.escape(note)), status, {"Content-Security-Policy": _PAGE_POLICY})


def refusal(refused: RefusedError) -> Response:
    """Return the answer of a request that is refused."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status is HTTPStatus.UNAUTHORIZED else None
    content = json.dumps({"error": refused.message})
    return Response(content, refused.status, headers, "application/json")


def _host(request: Request) -> str:
    return request.headers.get("host", "").lower()


def _target(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return f"{request.scope['raw_path'].decode('latin-1')}{query and '?'}{query}"


def _add_headers(headers: MutableHeaders, path: str, cors: Mapping[str, str]) -> None:
    for name, value in {**_HEADERS, **cors}.items():
        headers[name] = value
    headers.setdefault("Content-Security-Policy", "frame-ancestors 'self'")
    headers.add_vary_header("Origin")
    if not path.startswith(_UNCHANGING):
        headers["Cache-Control"] = "no-store"
