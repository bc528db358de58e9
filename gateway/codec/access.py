"""Access to the codec server: allowed origins, host names, and tokens or cookies."""

import hashlib
import hmac
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from tightloop.settings import LOOPBACK_HOSTS, Settings

COOKIE = "tightloop_codec"
COOKIE_SECONDS = 30 * 86_400
_COOKIE_PURPOSE = b"tightloop codec cookie 1"
# Browsers leave these ports out of the Origin header.
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Access:
    """The rules."""

    origins: frozenset[str]
    """Exact origins of the pages that may ask. `localhost` and `127.0.0.1` differ for a browser."""
    hosts: frozenset[str] | None
    """Allowed values of the Host header; None: any. Protects against DNS rebinding."""
    token: str | None = field(repr=False)
    """None: no proof is asked for."""

    def names(self, host: str) -> bool:
        """Tell whether a Host header means this server."""
        return self.hosts is None or host.lower() in self.hosts

    def allows(self, authorization: str, cookies: str) -> bool:
        """Tell whether a request proves that it knows the token: as a bearer, or by the cookie of the sign-in."""
        if self.token is None:
            return True
        scheme, _, bearer = authorization.partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self.token):
            return True
        try:
            morsel = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and _same(morsel.value, self.cookie)

    def knows(self, token: str) -> bool:
        """Tell whether this is the token."""
        return self.token is not None and _same(token.strip(), self.token)

    @property
    def cookie(self) -> str:
        """What the sign-in leaves in the browser: not the token itself, and of no use elsewhere."""
        return hmac.new((self.token or "").encode(), _COOKIE_PURPOSE, hashlib.sha256).hexdigest()


def access_of(settings: Settings, token: str | None, port: int) -> Access:
    """Return the rules that the settings ask for, for a server at a port."""
    codec = settings.codec
    hosts = frozenset(f"{host}:{port}" for host in LOOPBACK_HOSTS) if codec.loopback else None
    pages = {origin.lower() for origin in codec.origins} | _origins_of(settings.temporal.ui_url)
    return Access(frozenset(pages), hosts, token)


def own_page(origin: str, host: str) -> bool:
    """Tell whether a page was served by this server itself, as far as its Origin header says."""
    return origin.partition("://")[2].lower() == host.lower()


def _origins_of(url: str) -> set[str]:
    parts = urlsplit(url.lower())
    if parts.hostname is None:
        return set()
    names = LOOPBACK_HOSTS if parts.hostname in LOOPBACK_HOSTS else (parts.hostname,)
    port = "" if parts.port in (None, _USUAL_PORTS.get(parts.scheme)) else f":{parts.port}"
    return {f"{parts.scheme}://{name}{port}" for name in names}


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
