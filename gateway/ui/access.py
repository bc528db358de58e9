"""Access to the Web UI and the codec: host names, origins, tokens, links and cookies."""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from tightloop.client.ui_session import LINK, LINK_SECONDS, ticket, ticket_time
from tightloop.settings import LOOPBACK_HOSTS, Settings

COOKIE_SECONDS = 30 * 86_400
AGAIN_MS = 5_000
"""Time in which a used link works again: browsers repeat a request whose answer they lost."""
# Browsers leave these ports out of the Host and Origin headers.
_USUAL_PORTS = {"http": 80, "https": 443}


def now_ms() -> int:
    """Return the time, in ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules."""

    token: str = field(repr=False)
    page: str
    """Origin under which people open this server. `localhost` and `127.0.0.1` differ for a browser."""
    hosts: frozenset[str] | None
    """Allowed values of the Host header, against DNS rebinding; None: any, since only a proxy knows its names."""
    origins: frozenset[str] = frozenset()
    """Pages elsewhere that may use the codec."""
    clock: Callable[[], int] = now_ms
    opened_ms: int = field(default_factory=now_ms)
    _used: dict[str, int] = field(default_factory=dict, repr=False)
    """When each link was used first."""

    @property
    def host(self) -> str:
        """The Host header of people's browsers."""
        return self.page.partition("://")[2]

    def names(self, host: str) -> bool:
        """Tell whether a Host header means this server."""
        return self.hosts is None or host.lower() in self.hosts

    def allows(self, authorization: str, cookies: str, host: str) -> bool:
        """Tell whether a request proves that it knows the token: as a bearer, else by the cookie of a sign-in."""
        if authorization:
            scheme, _, bearer = authorization.partition(" ")
            return scheme.lower() == "bearer" and self.knows(bearer)
        try:
            morsel = SimpleCookie(cookies).get(self._cookie_name)
        except CookieError:
            return False
        expires = ticket_time(self.token, f"session {host.lower()}", morsel.value) if morsel is not None else None
        return expires is not None and self.clock() < expires

    def knows(self, token: str) -> bool:
        """Tell whether this is the token."""
        return hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token.encode())

    def redeem(self, link: str) -> bool:
        """Tell whether this is the ticket of a link that was not used before; now it is used.

        A link that is older than this process is refused: its predecessor may have taken it.
        """
        made, now = ticket_time(self.token, LINK, link), self.clock()
        if made is None or made < max(self.opened_ms, now - LINK_SECONDS * 1_000):
            return False
        return now - self._used.setdefault(link, now) < AGAIN_MS

    def cookie(self, host: str) -> str:
        """Return the Set-Cookie header of a sign-in: not the token itself, and of no use under another host name."""
        expires = self.clock() + COOKIE_SECONDS * 1_000
        value = ticket(self.token, f"session {host.lower()}", expires)
        # A page of another site sends its requests to the codec without a Strict cookie. Browsers take `Secure` over
        # plain HTTP from loopback.
        site = "SameSite=None; Secure" if self.origins else "SameSite=Strict"
        secure = "; Secure" if self.page.startswith("https:") and not self.origins else ""
        return f"{self._cookie_name}={value}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; {site}{secure}"

    @property
    def _cookie_name(self) -> str:
        # Cookies go to every port of a host: two servers of one person must not overwrite each other's.
        return f"tightloop_{self.host.rpartition(':')[2] if ':' in self.host else 'ui'}"


def ui_access(settings: Settings, token: str) -> Access:
    """Return the rules in front of the embedded server's Web UI."""
    page = origin_of(settings.temporal.ui_url)
    hosts = {page.partition("://")[2], *(f"{host}:{settings.temporal.ui_port}" for host in LOOPBACK_HOSTS)}
    return Access(token=token, page=page, hosts=frozenset(hosts))


def codec_access(settings: Settings, token: str) -> Access:
    """Return the rules of a codec server for a cluster, whose Web UI is elsewhere."""
    listen, codec = settings.codec.listen, settings.codec
    host, _, port = listen.rpartition(":")
    hosts = frozenset(f"{name}:{port}" for name in LOOPBACK_HOSTS) if host in LOOPBACK_HOSTS else None
    origins = {origin.lower() for origin in codec.origins} | {origin_of(settings.temporal.ui_url)}
    return Access(token=token, page=f"http://{listen}", hosts=hosts, origins=frozenset(origins))


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers write it."""
    parts = urlsplit(url.lower())
    port = "" if parts.port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"
