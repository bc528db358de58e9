"""HTTP client for steps."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2

from activities.model.client import certificates
from activities.sandbox.proxy import PrivateAddressError, Resolve, judged_addresses, system_addresses
from tightloop.executor.limit import LimitSignal, detect
from tightloop.plan.child import REASON_CHARACTERS, StepFailure
from tightloop.plan.commands import host_of, judge_url
from tightloop.plan.failing import FailureClass
from tightloop.value import abridge, shorten
from tightloop.value.scrub import scrub

T = TypeVar("T")
# An activity in a thread can only poll for its cancellation; this is the resulting delay.
CANCEL_POLL_S = 0.5


async def run_until(call: Coroutine[Any, Any, T], cancelled: Callable[[], bool], limit_s: float = math.inf) -> T:
    """Await a call while polling `cancelled`. The call is cancelled when the time is up.

    Raises:
        TimeoutError: the call was cancelled, or did not end within `limit_s`.
    """
    going = asyncio.ensure_future(call)
    deadline = time.monotonic() + limit_s
    try:
        while not going.done():
            left = deadline - time.monotonic()
            if left <= 0 or cancelled():
                raise TimeoutError
            await asyncio.wait({going}, timeout=min(left, CANCEL_POLL_S))
        return going.result()
    finally:
        going.cancel()
        # `asyncio.run` closes the loop next, so the call must close its connections first.
        await asyncio.gather(going, return_exceptions=True)


BODY_BYTES = 10_000_000
"""Size limit of a response body."""
REDIRECTS = 5
CONNECT_S = 10.0
SILENCE_S = 30.0
"""Read timeout between two chunks."""
# A server may ask for any time; a longer wait would look like a plan that hangs.
LONGEST_WAIT_S = 3_600.0
# RFC 9110, sections 15.5.9 and 15.6.4; RFC 8470, section 5.2; RFC 6585, section 4.
BUSY = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
)
AGENT = "tightloop"
_SECRET_IN_URL = frozenset({"authorization", "cookie", "proxy-authorization"})


class WebError(Exception):
    """A failed request. The error is recorded with the step and is not a fault of the worker."""

    def __init__(
        self, failure_class: FailureClass, reason: str, *, retry_after_s: float | None = None, requests: int = 0
    ) -> None:
        """Save the failure class and the scrubbed reason. `requests` is the number of requests already sent."""
        super().__init__(reason)
        self.failure = StepFailure(
            failure_class=failure_class,
            reason=abridge(scrub(reason), REASON_CHARACTERS),
            retry_after_s=retry_after_s,
        )
        self.requests = requests


@dataclass(frozen=True, kw_only=True)
class WebRequest:
    """A step's HTTP request."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values by header name. Dropped when a redirect leaves the origin."""
    content: bytes | None = None
    network: tuple[str, ...] = ()
    """Allowed hosts."""
    accept: frozenset[int] = frozenset({200})
    """Accepted statuses. Redirects are not followed if their status is accepted."""
    limit_bytes: int = BODY_BYTES
    timeout_s: float = 60.0
    """Overall timeout, including redirects."""
    cancelled: Callable[[], bool] = field(default=lambda: False)
    resolve: Resolve = system_addresses


@dataclass(frozen=True, kw_only=True)
class WebAnswer:
    """HTTP response."""

    url: str
    """Final URL after any redirects."""
    status: int
    headers: Mapping[str, str]
    """Headers with lower-case names, without cookies."""
    body: bytes
    requests: int = 1
    """Number of requests sent, including redirects."""


def send(request: WebRequest) -> WebAnswer:
    """Send a request and follow redirects to allowed hosts.

    Do not call this from a thread with a running event loop.

    Raises:
        WebError: the policy denies the request, the request timed out, the response is too large, or its
            status is not accepted.
    """
    return asyncio.run(_send(request))


async def _send(request: WebRequest) -> WebAnswer:
    try:
        return await run_until(_follow(request), request.cancelled, request.timeout_s)
    except TimeoutError:
        why = "was stopped" if request.cancelled() else f"did not finish within {request.timeout_s:g} s"
        raise WebError(
            FailureClass.TRANSIENT, f"the request to {_strip_query(request.url)} {why}", requests=1
        ) from None


async def _follow(request: WebRequest) -> WebAnswer:
    call, request_count = replace(request, method=request.method.upper()), 0
    # trust_env=False: a proxy or .netrc from the environment would bypass the check of the address.
    async with httpx2.AsyncClient(verify=certificates(), trust_env=False, follow_redirects=False) as client:
        while True:
            try:
                answer = await _once(client, call)
                target = _target(answer, request.accept)
            except WebError as error:
                # The redirects before it were sent too, and each counts as a call.
                error.requests += request_count
                raise
            request_count += 1
            if target is None:
                break
            if request_count > REDIRECTS:
                message = f"{_strip_query(request.url)} redirects more than {REDIRECTS} times"
                raise WebError(FailureClass.LOGIC, message, requests=request_count)
            call = _redirect(call, target, answer.status)
    if answer.status not in request.accept:
        raise _make_status_error(answer, request_count)
    return replace(answer, requests=request_count)


def _redirect(call: WebRequest, target: str, status: int) -> WebRequest:
    """Build the request that follows a redirect (RFC 9110, section 15.4).

    Secrets are never sent to another origin.
    """
    if status in (301, 302, 303) and call.method not in ("GET", "HEAD"):
        call = replace(call, method="GET", content=None)
    if _origin(target) != _origin(call.url):
        open_ones = {name: value for name, value in call.headers.items() if name.lower() not in _SECRET_IN_URL}
        call = replace(call, headers=open_ones, secret_headers={})
    return replace(call, url=target)


async def _once(client: httpx2.AsyncClient, call: WebRequest) -> WebAnswer:
    verdict = judge_url(call.url, call.network)
    if verdict.refusal:
        raise WebError(FailureClass.POLICY, verdict.refusal)
    host = host_of(call.url)
    assert host is not None
    try:
        addresses = await judged_addresses(host.name, host.port, allow_private=verdict.private, resolve=call.resolve)
    except PrivateAddressError as error:
        raise WebError(FailureClass.POLICY, f"{error}. Add '{host.authority}' to policy.network") from None
    except (OSError, UnicodeError):
        raise WebError(FailureClass.TRANSIENT, f"the host {host.name} was not found") from None
    try:
        for address in addresses[:-1]:
            # Without a connection nothing was sent, so trying the next address is not a second request.
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await _exchange(client, call, address)
        return await _exchange(client, call, addresses[-1])
    except (httpx2.InvalidURL, httpx2.LocalProtocolError, ValueError) as error:
        raise WebError(FailureClass.LOGIC, f"cannot request {_strip_query(call.url)}: {type(error).__name__}") from None
    except (httpx2.RequestError, OSError) as error:
        raise _make_connection_error(call.url, error) from None


async def _exchange(client: httpx2.AsyncClient, call: WebRequest, address: str) -> WebAnswer:
    url = httpx2.URL(call.url)
    headers = {name.lower(): value for name, value in {**call.headers, **call.secret_headers}.items()}
    async with client.stream(
        method=call.method,
        # Connect to the checked address, not the name: a second lookup could return another one (DNS rebinding).
        url=url.copy_with(host=address),
        # The Host header must match the checked host, whatever the plan's headers say. No compression: a small body
        # could expand to a huge one.
        headers={"user-agent": AGENT, "accept-encoding": "identity", **headers, "host": url.netloc.decode()},
        content=call.content,
        timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S),
        # The certificate must match the name although the connection uses the address.
        extensions={"sni_hostname": url.host},
    ) as response:
        body = await _body(response, call)
    # Cookies are session secrets, and headers are recorded.
    reply_headers = {name.lower(): value for name, value in response.headers.items() if name.lower() != "set-cookie"}
    return WebAnswer(url=call.url, status=response.status_code, headers=reply_headers, body=body)


def _make_connection_error(url: str, error: Exception) -> WebError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        message = (
            f"the certificate of {_strip_query(url)} is invalid for this host or was issued by an unknown authority"
        )
        return WebError(
            FailureClass.LOGIC,
            f"{message}. Set SSL_CERT_FILE to your certificate authority's certificate file",
            requests=1,
        )
    # Error texts of the library may contain headers.
    return WebError(FailureClass.TRANSIENT, f"cannot reach {_strip_query(url)} ({type(error).__name__})", requests=1)


async def _body(response: httpx2.Response, call: WebRequest) -> bytes:
    declared = response.headers.get("content-length", "")
    # The length in a response to HEAD is that of a body which is not sent (RFC 9110, section 8.6).
    size = int(declared) if declared.isdigit() and call.method != "HEAD" else 0
    collected = bytearray()
    if size <= call.limit_bytes:
        async for chunk in response.aiter_bytes():
            collected += chunk
            if len(collected) > call.limit_bytes:
                break
        else:
            return bytes(collected)
    message = f"{_strip_query(call.url)} returned more than {call.limit_bytes} bytes, the limit for one response"
    raise WebError(FailureClass.LOGIC, message, requests=1)


def _target(answer: WebAnswer, accept: frozenset[int]) -> str | None:
    location = answer.headers.get("location", "")
    if answer.status not in (301, 302, 303, 307, 308) or answer.status in accept or not location:
        return None
    try:
        return str(httpx2.URL(answer.url).join(location))
    except (httpx2.InvalidURL, ValueError):
        raise WebError(
            FailureClass.LOGIC, f"{_strip_query(answer.url)} redirects to an invalid address", requests=1
        ) from None


def _make_status_error(answer: WebAnswer, request_count: int) -> WebError:
    status = answer.status
    message = f"{_strip_query(answer.url)} returned {status}"
    if status in BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return WebError(
            FailureClass.TRANSIENT, message, retry_after_s=_parse_retry_after(answer), requests=request_count
        )
    advice = {
        401: ". Set secret_headers to an environment variable that contains a valid key",
        403: ". The service denied access: check the key and its permissions",
        404: ". Check the address",
    }.get(status, "")
    return WebError(FailureClass.LOGIC, message + advice, requests=request_count)


def _parse_retry_after(answer: WebAnswer) -> float | None:
    signal = LimitSignal(status_code=answer.status, headers=dict(answer.headers))
    limit = detect(signal, now=datetime.now(UTC))
    if limit is None or limit.retry_after is None:
        return None
    return min(max(limit.retry_after.total_seconds(), 0.0), LONGEST_WAIT_S)


def _origin(url: str) -> tuple[str, str]:
    host = host_of(url)
    return url.partition(":")[0].lower(), host.authority if host else ""


def _strip_query(url: str) -> str:
    """Remove the query from a URL. The query may contain secrets that must not appear in messages."""
    return shorten(url.partition("?")[0], 200)
