"""Sign-in links and session cookies: tickets that only who has a secret of this host can make."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Literal

from gateway.access.site import Site
from tightloop.client.sign_in.ui_session import ticket, ticket_time

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
        value = f"{subject}.{ticket(self.secret, _purpose(host, subject), expires)}"
        # A page of another site sends its requests to the codec without a Strict cookie. Browsers take `Secure` over
        # plain HTTP from loopback.
        site = "SameSite=None; Secure" if self.site.origins else f"SameSite={self.same_site}"
        secure = "; Secure" if self.site.page.startswith("https:") and not self.site.origins else ""
        return f"{self._cookie_name}={value}; Path=/; Max-Age={self.cookie_seconds}; HttpOnly; {site}{secure}"

    @property
    def no_cookie(self) -> str:
        """The Set-Cookie header that ends a session in its browser."""
        return f"{self._cookie_name}=; Path=/; Max-Age=0; HttpOnly"

    def subject_of(self, cookies: str, host: str) -> str | None:
        """Return who signed in, by the Cookie header; None without a session."""
        try:
            morsel = SimpleCookie(cookies).get(self._cookie_name)
        except CookieError:
            return None
        if morsel is None:
            return None
        subject, _, proof = morsel.value.partition(".")
        expires = ticket_time(self.secret, _purpose(host, subject), proof)
        return subject if expires is not None and self.clock() < expires else None

    @property
    def _cookie_name(self) -> str:
        # Cookies go to every port of a host: two servers of one person must not overwrite each other's.
        host = self.site.host
        return f"tightloop_{host.rpartition(':')[2] if ':' in host else 'ui'}"


def _purpose(host: str, subject: str) -> str:
    return f"session {host.lower()} {subject}"
