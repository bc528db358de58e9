"""Alert channels (log, desktop and webhook) and the record of sent alerts."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import assert_never
from xml.sax.saxutils import escape

import httpx2

from activities.alerts.activity import AlertDelivery, Channel, NotDeliveredError
from activities.model.client import certificates
from activities.process import ProcessRequest, Reason, run_process
from activities.workspace.folders import state_folder_of
from activities.workspace.scope import Call, EpisodeScope, Ledgers, this_call
from tightloop.errors import TightloopError
from tightloop.host.programs import TrustedProgram, find_trusted_program
from tightloop.ledger.alert import Alert, AlertKind, Delivery, Notice, delivery_line
from tightloop.ledger.model import TrailEvent
from tightloop.safety.scope import is_loopback
from tightloop.settings import AlertChannel, Settings
from tightloop.value import clip

alert_logger = logging.getLogger("tightloop.ledger.alert")


@dataclass(frozen=True)
class Log:
    """Writes each notice as one log line. All notices except the digest are warnings."""

    name: str
    kinds: frozenset[AlertKind] = frozenset()

    async def deliver(self, notice: Notice) -> None:
        level = logging.INFO if notice.kind is AlertKind.DIGEST else logging.WARNING
        # Separated, because a link behind a command would be copied as part of it.
        lines = (" ".join(line.split()) for line in notice.text.splitlines())
        alert_logger.log(level, "%s", " | ".join(filter(None, lines)))


SESSION = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")
"""Environment variables that programs use to find the user's desktop session."""
# The texts are passed as arguments, so they can never become part of the script.
_SCRIPT = ("on run words", "display notification (item 2 of words) with title (item 1 of words)", "end run")


@dataclass(frozen=True)
class Desktop:
    """Shows notices on the desktop of the worker's host."""

    name: str
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    """Environment variables that identify the desktop session."""
    kinds: frozenset[AlertKind] = frozenset()
    timeout_s: float = 5.0
    platform: str = sys.platform

    def probe(self) -> str:
        """Return the reason why this host cannot show notices, with a fix, or "" if it can."""
        mac = self.platform == "darwin"
        if self._program() is None:
            advice = "" if mac else ". Install the package libnotify-bin (libnotify)"
            return f"{self._name()} is not installed on the worker's host{advice}"
        if not mac and not any(self.environ.get(name) for name in SESSION[:3]):
            return (
                f"the worker is not running in a desktop session: none of the variables {', '.join(SESSION[:3])} is set"
            )
        return ""

    async def deliver(self, notice: Notice) -> None:
        problem = self.probe()
        if problem:
            raise NotDeliveredError(problem, retryable=False)
        stopped = threading.Event()
        try:
            await asyncio.to_thread(self._show, notice, stopped)
        finally:
            # A cancelled activity abandons the thread, which must still end the program.
            stopped.set()

    def _show(self, notice: Notice, stopped: threading.Event) -> None:
        program = self._program()
        if program is None:
            raise NotDeliveredError(self.probe(), retryable=False)
        request = ProcessRequest(
            program=program,
            arguments=self._arguments(notice),
            cwd=Path("/"),
            environment={name: self.environ[name] for name in SESSION if self.environ.get(name)},
            wall_limit_s=self.timeout_s,
        )
        result = run_process(request, cancelled=stopped.is_set, started=lambda _pid: None)
        if result.reason is not Reason.EXITED or result.exit_code != 0:
            detail = clip(
                result.output.decode("utf-8", "replace").strip() or result.message or result.reason.value, 100
            )
            raise NotDeliveredError(f"{program.name} failed ({result.exit_code}): {detail}", retryable=False)

    def _name(self) -> str:
        return "osascript" if self.platform == "darwin" else "notify-send"

    def _program(self) -> TrustedProgram | None:
        return find_trusted_program(self._name(), self.environ.get("PATH", ""))

    def _arguments(self, notice: Notice) -> tuple[str, ...]:
        title, body = f"tightloop: {notice.kind.value}", notice.text
        if self.platform == "darwin":
            return (*(argument for line in _SCRIPT for argument in ("-e", line)), title, body)
        # The body of a notification is markup (Desktop Notifications Specification). `--`: a title is never parsed as
        # an option.
        urgency = "normal" if notice.kind is AlertKind.DIGEST else "critical"
        return ("--app-name=tightloop", f"--urgency={urgency}", "--", title, escape(body))


LONGEST_WAIT_S = 300.0
"""Limit on the delay that a receiver may request."""
REDIRECTS = 3
REDIRECT_STATUSES = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
"""Redirects that preserve the method and the body. The others would turn the POST into a GET."""
RETRY_STATUSES = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
"""Statuses of temporary rejections."""
_SECONDS = re.compile(r"\d{1,9}")


@dataclass(frozen=True)
class Webhook:
    """POSTs a notice as JSON."""

    name: str
    url: str = field(repr=False)
    secret: str = field(repr=False)
    """Either `whsec_` followed by base64, or any other text. If empty, requests are not signed."""
    kinds: frozenset[AlertKind] = frozenset()
    timeout_s: float = 5.0
    """Timeout of one attempt."""

    async def deliver(self, notice: Notice) -> None:
        """Send the notice once. Only redirects within the same origin are followed."""
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._send(notice)
        except TimeoutError:
            raise NotDeliveredError(f"no response within {self.timeout_s:g} s", retryable=True) from None
        except (httpx2.RequestError, httpx2.InvalidURL, OSError) as error:
            # Error texts of the library may contain the URL, which may be a secret.
            raise NotDeliveredError(f"cannot be reached ({type(error).__name__})", retryable=True) from None

    async def _send(self, notice: Notice) -> None:
        body = notice.as_json()
        url = httpx2.URL(self.url)
        # In a thread, because reading the certificates blocks.
        trusted = await asyncio.to_thread(certificates) if url.scheme == "https" else False
        async with httpx2.AsyncClient(
            verify=trusted, trust_env=not is_loopback(url.host), follow_redirects=False, timeout=None
        ) as client:
            for _ in range(REDIRECTS + 1):
                headers = {"content-type": "application/json", "user-agent": "tightloop"}
                # For each request: receivers reject signatures with an old time.
                headers |= signature_headers(notice.key, body, self.secret, at=int(time.time()))
                request = client.build_request("POST", url, content=body, headers=headers)
                response = await client.send(request, stream=True)
                # The response body is not read: only the status matters, and the body may be endless.
                await response.aclose()
                if response.is_success:
                    return
                url = _next_address(url, response)
        raise NotDeliveredError(f"more than {REDIRECTS} redirects", retryable=False)


def signature_headers(identity: str, body: bytes, secret: str, *, at: int) -> dict[str, str]:
    """Return the headers that sign a webhook.

    The headers contain the ID, the time and the HMAC-SHA256 of `<id>.<seconds since 1970>.<body>`.
    """
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
    """Return the target of a redirect within the same origin.

    Raises:
        NotDeliveredError: there is no redirect, or it leads to another origin.
    """
    status = response.status_code
    if status in REDIRECT_STATUSES and "location" in response.headers:
        target = url.join(response.headers["location"])
        # Another origin would receive the signed body and the content of the alert.
        if _origin(target) == _origin(url):
            return target
    if response.is_redirect:
        raise NotDeliveredError(
            f"the receiver returned {status}, but redirects are not followed. Use the final URL", retryable=False
        )
    # Other client errors are about this request, and a repetition would get the same answer.
    again = status in RETRY_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    raise NotDeliveredError(
        f"the receiver returned {status}", retryable=again, retry_delay=_parse_retry_after(response) if again else None
    )


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)


def _parse_retry_after(response: httpx2.Response) -> timedelta | None:
    """Parse a Retry-After header (RFC 9110, section 10.2.3).

    The header contains either a number of seconds or a date.
    """
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


logger = logging.getLogger("tightloop")

DELIVERED = "alert"
NOT_DELIVERED = "alert_failed"


@dataclass(frozen=True)
class SentAlerts:
    """Records deliveries in the ledger if the workspace was opened on this host.

    The methods never raise an error. If a delivery could not be recorded, its alert may be sent again.
    """

    ledgers: Ledgers

    def list_deliveries(self, scope: EpisodeScope, alert: Alert) -> tuple[Delivery, ...]:
        """Return the recorded deliveries of this alert. Blocks for a few milliseconds."""
        start, events = f"{DELIVERED}/{alert.key}/", tuple[TrailEvent, ...]()
        try:
            if state_folder_of(scope).is_dir():
                events = self.ledgers(Path(scope.workspace)).events(scope.episode_id)
        except (TightloopError, OSError) as error:
            logger.warning("alert %s: cannot read the timeline: %s", scope.episode_id, error)
        return tuple(
            Delivery(channel=event.key.removeprefix(start), at=event.at, known=True)
            for event in events
            if event.kind == DELIVERED and event.key.startswith(start)
        )

    def record_delivery(self, scope: EpisodeScope, alert: Alert, delivery: Delivery) -> None:
        """Record the delivery of an alert on a channel. Blocks for a few milliseconds."""
        event = delivery_event(alert, delivery, this_call())
        try:
            if state_folder_of(scope).is_dir():
                self.ledgers(Path(scope.workspace)).add_event(event)
        except (TightloopError, OSError) as error:
            # A full disk is a reason to alert, so it must not prevent the alert.
            logger.warning("alert %s: could not record the delivery in the timeline: %s", alert.episode_id, error)


def delivery_event(alert: Alert, delivery: Delivery, call: Call) -> TrailEvent:
    """Create the timeline event for a successful or failed delivery."""
    kind = NOT_DELIVERED if delivery.at is None else DELIVERED
    return TrailEvent(
        episode_id=alert.episode_id,
        kind=kind,
        key=f"{kind}/{alert.key}/{delivery.channel}",
        text=delivery_line(alert, delivery),
        at=delivery.at or call.scheduled,
    )


def make_alert_delivery(settings: Settings, environ: Mapping[str, str]) -> AlertDelivery:
    """Create the configured channels.

    Unusable channels are included, so that their failures appear in the timeline.
    """
    return AlertDelivery(
        channels=tuple(_channel(name, channel, environ) for name, channel in settings.alerts.channels.items()),
        ui_url=settings.temporal.ui_url,
        namespace=settings.temporal.namespace,
        page_of=partial(settings.gateway.link, settings.temporal),
        full=settings.privacy.alerts == "full",
    )


@dataclass(frozen=True)
class UnusableChannel:
    """A channel that cannot work on this host with the current settings."""

    name: str
    reason: str
    kinds: frozenset[AlertKind]

    async def deliver(self, notice: Notice) -> None:  # noqa: ARG002 - the port's signature
        """Raise an error with the reason why the channel is unusable."""
        raise NotDeliveredError(self.reason, retryable=False)


def _channel(name: str, channel: AlertChannel, environ: Mapping[str, str]) -> Channel:
    kinds = frozenset(channel.kinds)
    # Checked at the start of the worker: without its secret a webhook would send unsigned.
    missing = [variable for variable in (channel.url_env, channel.secret_env) if variable and not environ.get(variable)]
    if missing:
        reason = f"the environment variable {missing[0]} is not set. Set the variable and restart the worker"
        logger.warning("cannot use alert channel %s: %s", name, reason)
        return UnusableChannel(name, reason, kinds)
    match channel.type:
        case "webhook":
            url = channel.url or environ[channel.url_env]
            secret = environ[channel.secret_env] if channel.secret_env else ""
            return Webhook(name, url, secret, kinds=kinds, timeout_s=channel.timeout_s)
        case "desktop":
            return Desktop(name, kinds=kinds, timeout_s=channel.timeout_s)
        case "log":
            return Log(name, kinds=kinds)
        case _:
            assert_never(channel.type)
