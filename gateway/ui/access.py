"""Access to the Web UI and the codec: one token of this installation, and links that are made with it."""

import hmac
import json
from http import HTTPStatus

from starlette.responses import Response

from gateway.access.body import RefusedError
from gateway.access.rules import Access, Account, SignIn
from gateway.access.session import Sessions
from gateway.access.site import Site, origin_of
from tightloop.client.sign_in.ui_session import LINK, LINK_SECONDS
from tightloop.safety.person import Person, Role
from tightloop.settings import LOOPBACK_HOSTS, Settings

CODEC_PATH = "/codec/"
COOKIE_SECONDS = 30 * 86_400
_UNCHANGING = "/_app/immutable/"
_OWNER = Account("", Person(name="operator", role=Role.ADMIN))
_SIGN_IN = SignIn(
    title="Temporal Web UI", command="tightloop ui", other="the token, from the file ui-token in the state folder"
)


class OneToken:
    """Knows one token; whoever has it is the owner."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def by_token(self, token: str) -> Account | None:
        """Return the owner, where this is the token."""
        return _OWNER if hmac.compare_digest(token.encode("utf-8", "replace"), self._token) else None

    async def by_subject(self, subject: str) -> Person | None:
        """Return the owner."""
        return _OWNER.person if subject == _OWNER.subject else None


def ui_access(settings: Settings, token: str) -> Access:
    """Return the rules in front of the embedded server's Web UI."""
    page = origin_of(settings.temporal.ui_url)
    hosts = {page.partition("://")[2], *(f"{host}:{settings.temporal.ui_port}" for host in LOOPBACK_HOSTS)}
    return _access(token, Site(page=page, hosts=frozenset(hosts)))


def codec_access(settings: Settings, token: str) -> Access:
    """Return the rules of a codec server for a cluster, whose Web UI is elsewhere."""
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
            purpose=LINK,
            link_seconds=LINK_SECONDS,
            cookie_seconds=COOKIE_SECONDS,
            same_site="Strict",
        ),
        accounts=OneToken(token),
        owner=_OWNER.subject,
        sign_in=_SIGN_IN,
        refusal=refusal,
        policy="frame-ancestors 'self'",
        cached=_UNCHANGING,
        hint='Browser: open the link that `tightloop ui` prints; Temporal CLI: eval "$(tightloop env)"',
    )


def refusal(refused: RefusedError) -> Response:
    """Return the answer of a request that is refused."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status is HTTPStatus.UNAUTHORIZED else None
    content = json.dumps({"error": refused.message})
    return Response(content, refused.status, headers, "application/json")
