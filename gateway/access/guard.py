"""Judges every request before a route sees it, and signs people in."""

import html
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from string import Template
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.body import RefusedError, body_of
from gateway.access.rules import Access, SignIn
from gateway.access.site import FORM, host_of, is_page
from tightloop.client.sign_in.ui_session import PARAMETER
from tightloop.safety.person import Person, Role

logger = logging.getLogger("tightloop")

SIGN_OUT = "/logout"
_LARGEST_FORM = 4096
_SAFE = ("GET", "HEAD")
_PATH = re.compile(r"[\w/.~%?=&:@!$'()*+,;-]*", re.ASCII)
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
    """ASGI application around another one; routes find the person in `request.state.person`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            # Websockets of pages elsewhere carry the session's cookie; no door has any.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        cors = self._access.site.cors(request)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(MutableHeaders(scope=message), request.url.path, cors)
            await send(message)

        try:
            answer: ASGIApp = await self._answer(request) or self._app
        except RefusedError as refused:
            answer = self._access.refusal(refused)
        except ClientDisconnect:
            return
        try:
            await answer(scope, receive, with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - outermost handler; a traceback could hold content
            logger.error("the gateway failed with %s at %s", type(error).__name__, request.url.path[:40])

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer where no route may see the request.

        Raises:
            RefusedError: it is not answered.
        """
        site, path = self._access.site, request.url.path
        if request.method in _SAFE and path in self._access.open_paths:
            return None
        site.check_sender(request)
        if request.method == "OPTIONS":
            return self._preflight(request)
        opens_page = request.method == "GET" and is_page(request)
        if opens_page and site.hosts and host_of(request) != site.host:
            return RedirectResponse(f"{site.page}{_target(request)}", HTTPStatus.TEMPORARY_REDIRECT)
        if (answer := await self._sign_in(request)) is not None:
            return answer
        person = await self._person(request)
        if person is None:
            return self._unknown(opens_page=opens_page)
        judged = request.method in _SAFE or path in self._access.own_roles
        if not judged and not person.role.includes(Role.OPERATOR):
            raise RefusedError(
                HTTPStatus.FORBIDDEN, f"{person.name} is a {person.role.value} and changes nothing. Ask an operator"
            )
        request.state.person = person
        return None

    async def _sign_in(self, request: Request) -> Response | None:
        """Return the answer to a link, the sign-in form, or a sign-out; None for everything else."""
        own, path = self._access.sign_in.path, request.url.path
        if request.method == "POST" and own and path == SIGN_OUT:
            return RedirectResponse(own, HTTPStatus.SEE_OTHER, {"Set-Cookie": self._access.sessions.no_cookie})
        if own and path != own:
            return None
        if request.method == "POST" and request.headers.get("content-type", "").startswith(FORM):
            return await self._read_form(request)
        if request.method != "GET":
            return None
        if link := request.query_params.get(PARAMETER):
            # Who is signed in may click it again; it is used up all the same.
            redeemed = self._access.sessions.redeem(link)
            if not redeemed and await self._person(request) is None:
                note = "This link was used already, or is too old."
                return sign_in_page(self._access.sign_in, note, HTTPStatus.UNAUTHORIZED)
            return self._signed_in(request, self._access.owner if redeemed else None)
        return sign_in_page(self._access.sign_in, "Not signed in.", HTTPStatus.UNAUTHORIZED) if own else None

    async def _person(self, request: Request) -> Person | None:
        """Return who proves to have access: by a bearer token, else by the cookie of a sign-in."""
        authorization = request.headers.get("authorization", "")
        if authorization:
            scheme, _, bearer = authorization.partition(" ")
            account = await self._access.accounts.by_token(bearer.strip()) if scheme.lower() == "bearer" else None
            return None if account is None else account.person
        subject = self._access.sessions.subject_of(request.headers.get("cookie", ""), host_of(request))
        return None if subject is None else await self._access.accounts.by_subject(subject)

    def _unknown(self, *, opens_page: bool) -> Response:
        if opens_page:
            return sign_in_page(self._access.sign_in, "Not signed in.", HTTPStatus.UNAUTHORIZED)
        raise RefusedError(HTTPStatus.UNAUTHORIZED, f"the token is missing, wrong or expired. {self._access.hint}")

    def _preflight(self, request: Request) -> Response:
        if not self._access.site.cors(request):
            raise RefusedError(HTTPStatus.FORBIDDEN, "this page may not ask here")
        headers = {
            "Access-Control-Allow-Methods": "POST, OPTIONS",
            # Those that Temporal's UI sends.
            "Access-Control-Allow-Headers": "authorization,content-type,x-namespace",
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)

    async def _read_form(self, request: Request) -> Response:
        fields = parse_qs((await body_of(request, _LARGEST_FORM)).decode("utf-8", "replace"))
        account = await self._access.accounts.by_token(fields.get("token", [""])[0].strip())
        if account is None:
            return sign_in_page(self._access.sign_in, "That is not the token.", HTTPStatus.UNAUTHORIZED)
        return self._signed_in(request, account.subject)

    def _signed_in(self, request: Request, subject: str | None) -> Response:
        # The path alone: the token must not stay in the address bar, nor in the browser's history.
        own = self._access.sign_in.path
        path = request.query_params.get("next", "/") if own else request.scope["raw_path"].decode("latin-1")
        headers = {} if subject is None else {"Set-Cookie": self._access.sessions.cookie(host_of(request), subject)}
        # `//host`, and what browsers read as that, would be another site.
        target = f"/{path.lstrip('/')}" if _PATH.fullmatch(path) else "/"
        return RedirectResponse(target, HTTPStatus.SEE_OTHER, headers)

    def _add_headers(self, headers: MutableHeaders, path: str, cors: Mapping[str, str]) -> None:
        for name, value in {**_HEADERS, **cors}.items():
            headers[name] = value
        headers.setdefault("Content-Security-Policy", self._access.policy)
        headers.add_vary_header("Origin")
        if not (self._access.cached and path.startswith(self._access.cached)):
            headers["Cache-Control"] = "no-store"


def sign_in_page(words: SignIn, note: str, status: HTTPStatus) -> Response:
    """Return the page where people sign in; its form goes to the address that they asked for."""
    said = {name: html.escape(text) for name, text in {**words._asdict(), "note": note}.items()}
    return HTMLResponse(_PAGE.substitute(said), status, {"Content-Security-Policy": _PAGE_POLICY})


def _target(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return f"{request.scope['raw_path'].decode('latin-1')}{query and '?'}{query}"
