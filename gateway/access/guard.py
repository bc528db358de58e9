"""Who may ask the gateway: host, origin, session, token."""

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
"""Time in which a used link works again: browsers repeat a request whose answer they lost."""


def now_ms() -> int:
    """Return the time, in ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """The sessions of one door."""

    secret: str = field(repr=False)
    site: Site
    purpose: str
    """Of the tickets in its links."""
    link_seconds: int
    cookie_seconds: int
    same_site: Literal["Lax", "Strict"]
    clock: Callable[[], int] = now_ms
    opened_ms: int = field(default_factory=now_ms)
    _used: dict[str, int] = field(default_factory=dict, repr=False)
    """When each link was used first."""

    def redeem(self, link: str) -> bool:
        """Tell whether this is the ticket of a link that was not used before; now it is used.

        A link that is older than this process is refused: its predecessor may have taken it.
        """
        made, now = ticket_time(self.secret, self.purpose, link), self.clock()
        if made is None or made < max(self.opened_ms, now - self.link_seconds * 1_000):
            return False
        return now - self._used.setdefault(link, now) < AGAIN_MS

    def cookie(self, host: str, subject: str = "") -> str:
        """Return the Set-Cookie header of a sign-in: no secret itself, and of no use under another host name.

        Args:
            host: the Host header of the request.
            subject: who signed in, without a dot.
        """
        expires = self.clock() + self.cookie_seconds * 1_000
        cookie = f"{cookie_name(self.site.host)}={session_of(self.secret, host, subject, expires)}"
        # A page of another site sends its requests to the codec without a Strict cookie. Browsers take `Secure` over
        # plain HTTP from loopback.
        site = "SameSite=None; Secure" if self.site.origins else f"SameSite={self.same_site}"
        secure = "; Secure" if self.site.page.startswith("https:") and not self.site.origins else ""
        return f"{cookie}; Path=/; Max-Age={self.cookie_seconds}; HttpOnly; {site}{secure}"

    @property
    def no_cookie(self) -> str:
        """The Set-Cookie header that ends a session in its browser."""
        return f"{cookie_name(self.site.host)}=; Path=/; Max-Age=0; HttpOnly"

    def subject_of(self, cookies: str, host: str) -> str | None:
        """Return who signed in, by the Cookie header; None without a session."""
        try:
            morsel = SimpleCookie(cookies).get(cookie_name(self.site.host))
        except CookieError:
            return None
        if morsel is None:
            return None
        subject, _, proof = morsel.value.partition(".")
        expires = ticket_time(self.secret, session_purpose(host, subject), proof)
        return subject if expires is not None and self.clock() < expires else None


class Account(NamedTuple):
    """A person, and the word under which a session remembers who that is."""

    subject: str
    person: Person


class Accounts(Protocol):
    """Knows people by their tokens."""

    async def by_token(self, token: str) -> Account | None:
        """Return whose token this is; None where it is nobody's, or not valid any more."""
        ...

    async def by_subject(self, subject: str) -> Person | None:
        """Return who a session belongs to; None where that person has no access any more."""
        ...


class SignIn(NamedTuple):
    """The page where people sign in."""

    title: str
    command: str
    """Prints a link that signs in."""
    other: str
    """What else can be pasted there."""
    path: str = ""
    """Where it is; empty: at every address that is asked for without a session."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may use one door, and how it answers those who may not."""

    site: Site
    sessions: Sessions
    accounts: Accounts
    owner: str
    """Subject of those who come by a sign-in link."""
    sign_in: SignIn
    refusal: Callable[[RefusedError], Response]
    """Makes the answer of a request that is refused."""
    policy: str
    """Content-Security-Policy of every answer that does not set one itself."""
    open_paths: frozenset[str] = frozenset()
    """Read by anybody, under any host name."""
    own_roles: frozenset[str] = frozenset()
    """Paths that judge the role of each message themselves: what reads and what changes come by the same method."""
    cached: str = ""
    """Prefix of the paths whose answers may be kept by browsers."""
    hint: str = ""
    """How programs get in."""


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


OWNER = "owner"
"""Subject of who signs in by a link: only the user of this host can make one."""
FRESH_SECONDS = 2.0
"""So long a token counts as it was last seen in the database."""
REMEMBERED = 1_000


class _Seen(NamedTuple):
    at: float
    token: Token | None


class People:
    """The owner of this host, and everybody with a token."""

    def __init__(self, tokens: Tokens, owner: str) -> None:
        """Take the tokens, and the owner's name."""
        self._tokens = tokens
        self._owner = Person(name=owner, role=Role.ADMIN)
        self._seen: dict[str, _Seen] = {}

    async def by_token(self, token: str) -> Account | None:
        """Return whose token this is."""
        found = await self._look(token, lambda: self._tokens.find(token))
        return None if found is None else Account(found.id, found.person)

    async def by_subject(self, subject: str) -> Person | None:
        """Return who a session belongs to; the session of a token ends with it."""
        if subject == OWNER:
            return self._owner
        found = await self._look(f"id {subject}", lambda: self._tokens.by_id(subject))
        return None if found is None else found.person

    async def _look(self, key: str, ask: Callable[[], Token | None]) -> Token | None:
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is not None and now - seen.at < FRESH_SECONDS:
            return seen.token
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        found = await asyncio.to_thread(ask)
        self._seen[key] = _Seen(now, found)
        return found
