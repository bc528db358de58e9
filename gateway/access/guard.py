"""The guard in front of a server: host and origin checks, sessions and tokens."""

import asyncio
import html
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple, Protocol
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.site import FORM, RefusedError, Site, body_of, host_of, is_page
from tightloop.client.sign_in import PARAMETER
from tightloop.database.access import Token, Tokens
from tightloop.host.access import cookie_name, session_of, session_purpose, ticket_time
from tightloop.safety.seal import Person, Role

AGAIN_MS = 5_000
"""Time in milliseconds for which a used link is accepted again, because browsers repeat a request if its response was
lost.
"""


def now_ms() -> int:
    """Return the current Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """The sign-in links and session cookies of one server."""

    secret: str = field(repr=False)
    site: Site
    purpose: str
    """Purpose of the tickets in the server's links."""
    link_seconds: int
    cookie_seconds: int
    same_site: Literal["Lax", "Strict"]
    clock: Callable[[], int] = now_ms
    opened_ms: int = field(default_factory=now_ms)
    _used: dict[str, int] = field(default_factory=dict, repr=False)
    """Time at which each link was first used."""

    def redeem(self, link: str) -> bool:
        """Return whether a sign-in link is valid, and mark it as used. Links older than this process are invalid."""
        issued_ms, now = ticket_time(self.secret, self.purpose, link), self.clock()
        # Used links are kept in memory only, so the previous process may have consumed an older one.
        if issued_ms is None or issued_ms < max(self.opened_ms, now - self.link_seconds * 1_000):
            return False
        return now - self._used.setdefault(link, now) < AGAIN_MS

    def cookie(self, host: str, subject: str = "") -> str:
        """Return the Set-Cookie header that signs a person in.

        The cookie contains no secret and is only valid for this host name.

        Args:
            host: the request's Host header.
            subject: person who signed in. It must not contain a dot.
        """
        expires = self.clock() + self.cookie_seconds * 1_000
        cookie = f"{cookie_name(self.site.host)}={session_of(self.secret, host, subject, expires)}"
        # A page of another site calls the codec, which a Strict or Lax cookie would not allow. Browsers accept `Secure`
        # over plain HTTP on loopback.
        site = "SameSite=None; Secure" if self.site.origins else f"SameSite={self.same_site}"
        secure = "; Secure" if self.site.page.startswith("https:") and not self.site.origins else ""
        # Max-Age only tells the browser when to forget it; the server checks the time inside the proof.
        return f"{cookie}; Path=/; Max-Age={self.cookie_seconds}; HttpOnly; {site}{secure}"

    @property
    def no_cookie(self) -> str:
        """Set-Cookie header that ends the session."""
        return f"{cookie_name(self.site.host)}=; Path=/; Max-Age=0; HttpOnly"

    def subject_of(self, cookies: str, host: str) -> str | None:
        """Return the subject of the session in a Cookie header, or None if there is no valid session."""
        try:
            morsel = SimpleCookie(cookies).get(cookie_name(self.site.host))
        except CookieError:
            return None
        if morsel is None:
            return None
        # The proof covers host and subject, so neither can be replaced in the cookie.
        subject, _, proof = morsel.value.partition(".")
        expires = ticket_time(self.secret, session_purpose(host, subject), proof)
        return subject if expires is not None and self.clock() < expires else None


class Account(NamedTuple):
    """A person's account, with the subject that is stored in sessions."""

    subject: str
    person: Person


class Accounts(Protocol):
    """Looks up people by token or session."""

    async def by_token(self, token: str) -> Account | None:
        """Return the account of a token, or None if the token is unknown or has expired."""
        ...

    async def by_subject(self, subject: str) -> Person | None:
        """Return the person who opened a session, or None if the person's access was revoked."""
        ...


class SignIn(NamedTuple):
    """Text on the sign-in page."""

    title: str
    command: str
    """Command that prints a sign-in link."""
    other: str
    """Description of the token that can be pasted instead."""
    path: str = ""
    """Path of the page. If it is empty, the page is shown at every requested path."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """One server's access rules."""

    site: Site
    sessions: Sessions
    accounts: Accounts
    owner: str
    """Subject of sessions that were opened with a link."""
    sign_in: SignIn
    refusal: Callable[[RefusedError], Response]
    """Builds the response to a refused request."""
    policy: str
    """Default Content-Security-Policy of responses."""
    open_paths: frozenset[str] = frozenset()
    """Paths that anyone can read, under any host name."""
    own_roles: frozenset[str] = frozenset()
    """Paths whose handlers check the role for each message, because one HTTP method serves both reads and changes."""
    cached: str = ""
    """Prefix of paths whose responses browsers may cache."""
    hint: str = ""
    """Sign-in instructions for programs."""


logger = logging.getLogger("tightloop")

SIGN_OUT = "/logout"
_LARGEST_FORM = 4096
_SAFE = ("GET", "HEAD")
# Without the backslash, which browsers read as a slash: `/\host` would lead to another site.
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
    """ASGI middleware for access control. Sets `request.state.person`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on or refuse it."""
        if scope["type"] != "http":
            # Drop WebSockets: pages of other sites could open them with the session cookie, and no server has any.
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
            # Refusals get the headers, too: without those for CORS a page cannot read the reason.
            answer = self._access.refusal(refused)
        except ClientDisconnect:
            return
        try:
            await answer(scope, receive, with_headers)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - outermost handler; a traceback could hold content
            logger.error("the gateway failed with %s while handling %s", type(error).__name__, request.url.path[:40])

    async def _answer(self, request: Request) -> Response | None:
        """Return the guard's own response, or None if the request should be passed on.

        Raises:
            RefusedError: the request is refused.
        """
        site, path = self._access.site, request.url.path
        # Before the host check: probes of an orchestrator use the address of the container as the host name.
        if request.method in _SAFE and path in self._access.open_paths:
            return None
        site.check_sender(request)
        # Browsers send a preflight without credentials, so it cannot wait for the sign-in.
        if request.method == "OPTIONS":
            return self._preflight(request)
        opens_page = request.method == "GET" and is_page(request)
        # One name for the page: browsers keep cookies and settings of `localhost` and `127.0.0.1` apart.
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
                HTTPStatus.FORBIDDEN,
                f"{person.name} is a {person.role.value} and has read-only access. Ask an operator to make the change",
            )
        request.state.person = person
        return None

    async def _sign_in(self, request: Request) -> Response | None:
        """Return the response to a sign-in link, a sign-in form or a sign-out. Return None for other requests."""
        sign_in_path, path = self._access.sign_in.path, request.url.path
        if request.method == "POST" and sign_in_path and path == SIGN_OUT:
            return RedirectResponse(sign_in_path, HTTPStatus.SEE_OTHER, {"Set-Cookie": self._access.sessions.no_cookie})
        if sign_in_path and path != sign_in_path:
            return None
        if request.method == "POST" and request.headers.get("content-type", "").startswith(FORM):
            return await self._read_form(request)
        if request.method != "GET":
            return None
        if link := request.query_params.get(PARAMETER):
            # A signed-in person may click a link again, and consumes it nevertheless.
            redeemed = self._access.sessions.redeem(link)
            if not redeemed and await self._person(request) is None:
                note = "This link was already used or has expired."
                return sign_in_page(self._access.sign_in, note, HTTPStatus.UNAUTHORIZED)
            return self._signed_in(request, self._access.owner if redeemed else None)
        return sign_in_page(self._access.sign_in, "Not signed in.", HTTPStatus.UNAUTHORIZED) if sign_in_path else None

    async def _person(self, request: Request) -> Person | None:
        """Return the person that the bearer token identifies. Without a token, use the session cookie.

        Return None if the token or the cookie is not valid.
        """
        authorization = request.headers.get("authorization", "")
        # A wrong token does not fall back to the cookie: a program must notice that its token has expired.
        if authorization:
            scheme, _, bearer = authorization.partition(" ")
            account = await self._access.accounts.by_token(bearer.strip()) if scheme.lower() == "bearer" else None
            return None if account is None else account.person
        subject = self._access.sessions.subject_of(request.headers.get("cookie", ""), host_of(request))
        return None if subject is None else await self._access.accounts.by_subject(subject)

    def _unknown(self, *, opens_page: bool) -> Response:
        if opens_page:
            return sign_in_page(self._access.sign_in, "Not signed in.", HTTPStatus.UNAUTHORIZED)
        raise RefusedError(HTTPStatus.UNAUTHORIZED, f"the token is missing, invalid or expired. {self._access.hint}")

    def _preflight(self, request: Request) -> Response:
        if not self._access.site.cors(request):
            raise RefusedError(HTTPStatus.FORBIDDEN, "this page is not allowed to call this server")
        headers = {
            "Access-Control-Allow-Methods": "POST, OPTIONS",
            # The headers that Temporal's UI sends.
            "Access-Control-Allow-Headers": "authorization,content-type,x-namespace",
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)

    async def _read_form(self, request: Request) -> Response:
        fields = parse_qs((await body_of(request, _LARGEST_FORM)).decode("utf-8", "replace"))
        account = await self._access.accounts.by_token(fields.get("token", [""])[0].strip())
        if account is None:
            return sign_in_page(self._access.sign_in, "This token is not valid.", HTTPStatus.UNAUTHORIZED)
        return self._signed_in(request, account.subject)

    def _signed_in(self, request: Request, subject: str | None) -> Response:
        # Redirect to the path alone: the token must not stay in the address bar or the browser history.
        sign_in_path = self._access.sign_in.path
        path = request.query_params.get("next", "/") if sign_in_path else request.scope["raw_path"].decode("latin-1")
        headers = {} if subject is None else {"Set-Cookie": self._access.sessions.cookie(host_of(request), subject)}
        # `//host` and similar forms would redirect to another site.
        target = f"/{path.lstrip('/')}" if _PATH.fullmatch(path) else "/"
        return RedirectResponse(target, HTTPStatus.SEE_OTHER, headers)

    def _add_headers(self, headers: MutableHeaders, path: str, cors: Mapping[str, str]) -> None:
        for name, value in {**_HEADERS, **cors}.items():
            headers[name] = value
        # The sign-in page brings a policy of its own, which allows its inline style.
        headers.setdefault("Content-Security-Policy", self._access.policy)
        headers.add_vary_header("Origin")
        if not (self._access.cached and path.startswith(self._access.cached)):
            headers["Cache-Control"] = "no-store"


def sign_in_page(texts: SignIn, note: str, status: HTTPStatus) -> Response:
    """Return the sign-in page. Its form is submitted to the requested path."""
    escaped = {name: html.escape(text) for name, text in {**texts._asdict(), "note": note}.items()}
    return HTMLResponse(_PAGE.substitute(escaped), status, {"Content-Security-Policy": _PAGE_POLICY})


def _target(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    return f"{request.scope['raw_path'].decode('latin-1')}{query and '?'}{query}"


OWNER = "owner"
"""Subject of sign-ins with a link. Only this host's user can create a link."""
FRESH_SECONDS = 2.0
"""Time in seconds for which a token's database row is cached."""
REMEMBERED = 1_000


class _CachedToken(NamedTuple):
    at: float
    token: Token | None


class People:
    """The accounts of this host's owner and of people with tokens."""

    def __init__(self, tokens: Tokens, owner: str) -> None:
        """Store the tokens and the owner.

        `owner` is the name of this host's user, who is an admin.
        """
        self._tokens = tokens
        self._owner = Person(name=owner, role=Role.ADMIN)
        self._cached_tokens: dict[str, _CachedToken] = {}

    async def by_token(self, token: str) -> Account | None:
        """Return the account that a token belongs to."""
        record = await self._look_up(token, lambda: self._tokens.find(token))
        return None if record is None else Account(record.id, record.person)

    async def by_subject(self, subject: str) -> Person | None:
        """Return the person who opened a session. A session that was opened with a token ends when the token ends."""
        if subject == OWNER:
            return self._owner
        record = await self._look_up(f"id {subject}", lambda: self._tokens.by_id(subject))
        return None if record is None else record.person

    async def _look_up(self, key: str, ask: Callable[[], Token | None]) -> Token | None:
        now = time.monotonic()
        # Every request of an open page looks its token up. A revoked token stays valid for the cache time.
        cached = self._cached_tokens.get(key)
        if cached is not None and now - cached.at < FRESH_SECONDS:
            return cached.token
        # Bounded, because anyone can add entries by sending tokens.
        if len(self._cached_tokens) >= REMEMBERED:
            self._cached_tokens.clear()
        token = await asyncio.to_thread(ask)
        self._cached_tokens[key] = _CachedToken(now, token)
        return token
