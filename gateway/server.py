"""The gateway server: the guard, the API under `/api`, MCP at `/mcp`, and the web page everywhere else."""

import asyncio
import getpass
import json
from collections.abc import Awaitable
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access.guard import OWNER, Access, Guard, People, Sessions, SignIn
from gateway.access.scope import Services
from gateway.access.site import Site, origin_of
from gateway.http.app import api, refusal
from gateway.http.hub import Hub
from gateway.mcp.server import PATH as MCP
from gateway.mcp.server import Endpoint
from gateway.web.app import web_app
from tightloop.client import TightloopClient
from tightloop.client.sign_in import LINK, LINK_SECONDS, PATH
from tightloop.database.access import IdempotencyKeys, Tokens
from tightloop.database.ledger import Ledger
from tightloop.errors import TightloopError
from tightloop.host.access import page_key
from tightloop.settings import LOOPBACK_HOSTS, Settings

COOKIE_SECONDS = 12 * 3_600
LIVE, READY = "/live", "/ready"
READY_SECONDS = 5.0
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SIGN_IN = SignIn(
    title="tightloop",
    command="tightloop open",
    other="a token created with `tightloop token create`",
    path=PATH,
)

_HINT = (
    "In a browser, open the link that `tightloop open` prints. For a program, run tightloop token create NAME "
    "--role operator and send Authorization: Bearer TOKEN"
)


def application(ledger: Ledger, client: TightloopClient, settings: Settings) -> ASGIApp:
    """Return the complete gateway application, protected by its guard."""
    services, hub = Services(ledger, client, settings), Hub(ledger)
    http = api(services, hub, IdempotencyKeys(ledger.database))
    router = _Router(http, web_app(services), services, hub)
    return Guard(router, gateway_access(settings, Tokens(ledger.database)))


def gateway_access(settings: Settings, tokens: Tokens) -> Access:
    """Return the access rules for the web page and the API."""
    page = origin_of(settings.gateway.page(settings.temporal))
    listen = settings.gateway.address(settings.temporal)
    host, _, port = listen.rpartition(":")
    loopback = (f"{name}:{port}" for name in LOOPBACK_HOSTS) if host in LOOPBACK_HOSTS else (listen,)
    # Programs on this host use loopback names; a proxy forwards the public one.
    site = Site(page=page, hosts=frozenset((page.partition("://")[2], *loopback)))
    return Access(
        site=site,
        sessions=Sessions(
            secret=page_key(),
            site=site,
            purpose=LINK,
            link_seconds=LINK_SECONDS,
            cookie_seconds=COOKIE_SECONDS,
            # Lax, so that a link in a chat opens the page with its session; only safe requests carry the cookie.
            same_site="Lax",
        ),
        accounts=People(tokens, _owner()),
        owner=OWNER,
        sign_in=_SIGN_IN,
        refusal=refusal,
        policy=PAGE_POLICY,
        open_paths=frozenset((LIVE, READY)),
        # Every message of MCP is a POST, also one that only reads.
        own_roles=frozenset((MCP,)),
        # The paths of these files contain a digest of the content.
        cached="/assets/",
        hint=_HINT,
    )


class _Router:
    """Routes each request to the API, MCP or the web page."""

    def __init__(self, http: ASGIApp, web: ASGIApp, services: Services, hub: Hub) -> None:
        self._http = http
        self._web = web
        self._services = services
        self._hub = hub
        self._mcp = Endpoint(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application that handles its path."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope["path"]
        if path in (LIVE, READY):
            answer: ASGIApp = _alive() if path == LIVE else await self._readiness()
        elif path == MCP:
            answer = self._mcp
        else:
            answer = self._http if path == "/api" or path.startswith("/api/") else self._web
        await answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        # The SDK handles requests in a task group that has to stay open for the life of the server.
        async with self._mcp.open():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        # The inner applications get no lifespan events, so this is the only place that closes it.
        await self._hub.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _readiness(self) -> Response:
        """Report whether the database and Temporal are ready.

        The response contains no other details, because no token is required.
        """

        async def works(check: Awaitable[object]) -> bool:
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await check
            except (TightloopError, TimeoutError):
                return False
            return True

        database, temporal = await asyncio.gather(
            works(asyncio.to_thread(self._services.ledger.last_event)),
            works(self._services.client.missing_search_attributes()),
        )
        status = HTTPStatus.OK if database and temporal else HTTPStatus.SERVICE_UNAVAILABLE
        content = json.dumps({"database": database, "temporal": temporal})
        return Response(content, status, media_type="application/json")


def _alive() -> Response:
    return Response('{"live": true}', media_type="application/json")


def _owner() -> str:
    try:
        # The user id may have no name in a container.
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
