"""Sends alerts to a URL, signed as Standard Webhooks (https://www.standardwebhooks.com) describe it."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx2

from activities.alerts.port import NotDeliveredError
from activities.model.certificates import certificates
from tightloop.ledger.alert import AlertKind, Notice
from tightloop.safety.address import is_loopback

LONGEST_WAIT_S = 300.0
"""Bound on what a receiver may ask to wait."""
REDIRECTS = 3
MOVED = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
"""Redirects that keep method and body; the others would turn the alert into a question."""
LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
"""Refusals that may be taken back."""
_SECONDS = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Webhook:
    """Sends a notice as JSON by POST."""

    name: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    """`whsec_` and base64, or any text; empty: unsigned."""
    kinds: frozenset[AlertKind] = frozenset()
    timeout_s: float = 5.0
    """Time for one try."""

    async def deliver(self, notice: Notice) -> None:
        """Send it once; see the port. Only redirects inside the same origin are followed."""
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._send(notice)
        except TimeoutError:
            raise NotDeliveredError(f"no answer within {self.timeout_s:g} s", again=True) from None
        except (httpx2.RequestError, httpx2.InvalidURL, OSError) as error:
            # The texts of the library can hold the address, which may be a secret.
            raise NotDeliveredError(f"not reached ({type(error).__name__})", again=True) from None

    async def _send(self, notice: Notice) -> None:
        body = notice.as_json()
        url = httpx2.URL(self.url)
        # In a thread: reading the certificates blocks.
        trusted = await asyncio.to_thread(certificates) if url.scheme == "https" else False
        async with httpx2.AsyncClient(
            verify=trusted, trust_env=not is_loopback(url.host), follow_redirects=False, timeout=None
        ) as client:
            for _ in range(REDIRECTS + 1):
                headers = {"content-type": "application/json", "user-agent": "tightloop"}
                headers |= signed(notice.key, body, self.secret, at=int(time.time()))
                request = client.build_request("POST", url, content=body, headers=headers)
                response = await client.send(request, stream=True)
                # What the receiver says is not read: only its status counts, and it may be endless.
                await response.aclose()
                if response.is_success:
                    return
                url = _next_address(url, response)
        raise NotDeliveredError(f"more than {REDIRECTS} redirects", again=False)


def signed(identity: str, body: bytes, secret: str, *, at: int) -> dict[str, str]:
    """Return the headers that name, date and sign a body: HMAC-SHA256 over `<id>.<seconds since 1970>.<body>`."""
    headers = {"webhook-id": identity, "webhook-timestamp": str(at)}
    if secret:
        content = f"{identity}.{at}.".encode() + body
        digest = hmac.new(_key(secret), content, hashlib.sha256).digest()
        headers["webhook-signature"] = "v1," + base64.b64encode(digest).decode()
    return headers


def _key(secret: str) -> bytes:
    encoded = secret.removeprefix("whsec_")
    if encoded != secret:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            pass
    return secret.encode()


def _next_address(url: httpx2.URL, response: httpx2.Response) -> httpx2.URL:
    """Return where the receiver has moved to.

    Raises:
        NotDeliveredError: it did not move, or to another origin.
    """
    status = response.status_code
    if status in MOVED and "location" in response.headers:
        target = url.join(response.headers["location"])
        # Another origin would get the signed body, and with it what the alert says.
        if _origin(target) == _origin(url):
            return target
    if response.is_redirect:
        raise NotDeliveredError(
            f"it answers {status} and points elsewhere, which is not followed: set the final address", again=False
        )
    again = status in LATER or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    raise NotDeliveredError(f"it answers {status}", again=again, after=_asked_wait(response) if again else None)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _asked_wait(response: httpx2.Response) -> timedelta | None:
    """Read Retry-After, in seconds or as a date (RFC 9110, section 10.2.3)."""
    text = response.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=min(float(text), LONGEST_WAIT_S))
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    moment = date if date.tzinfo else date.replace(tzinfo=UTC)
    wait = (moment - datetime.now(UTC)).total_seconds()
    return timedelta(seconds=min(max(wait, 0.0), LONGEST_WAIT_S))
