"""Asks the real provider, with the key that the agent does not have."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx2

from activities.model.certificates import certificates
from activities.model.gateway.exchange import HOP_HEADERS, Answer, BrokenOffError, Call, NoAnswerError
from activities.model.gateway.port import GatewaySpec
from activities.model.gateway.screen import Screen
from activities.model.gateway.wire import CREDENTIALS, key_header
from tightloop.safety.address import is_loopback
from tightloop.value import shorten

# One line for each call of an agent would drown the worker's own log.
logging.getLogger("httpx2").setLevel(logging.WARNING)

CONNECT_S = 10.0
# As long as the packages of OpenAI and Anthropic wait; a model may think for minutes before its first word.
READ_IDLE_S = 600.0
KEEP_S = 4.0
"""A connection that rests longer is opened again: many servers close theirs after 5 s."""
_TIMEOUT = httpx2.Timeout(READ_IDLE_S, connect=CONNECT_S, pool=READ_IDLE_S)
# A packed answer costs time here and saves none on the way to the agent.
_REPLACED = HOP_HEADERS | CREDENTIALS | {"content-length", "accept-encoding", "cookie"}


class Provider:
    """The provider of a gateway. Belongs to the event loop that uses it."""

    def __init__(self, spec: GatewaySpec, *, at_once: int) -> None:
        """Prepare for at most `at_once` connections; nothing is connected yet."""
        self._base = httpx2.URL(spec.upstream.rstrip("/"))
        self._screen = Screen(spec.key)
        self._key = key_header(spec.wire, spec.key) if spec.key else None
        # What proxies and certificates the host's environment names holds for the world outside only.
        self._client = httpx2.AsyncClient(
            verify=certificates() if self._base.scheme == "https" else False,
            trust_env=not is_loopback(self._base.host),
            limits=httpx2.Limits(max_connections=at_once, keepalive_expiry=KEEP_S),
        )

    @asynccontextmanager
    async def answer(self, call: Call) -> AsyncIterator[Answer]:
        """Forward a call; see `Source`."""
        try:
            response = await self._client.send(self._request(call), stream=True)
        except httpx2.TimeoutException as error:
            raise NoAnswerError(HTTPStatus.GATEWAY_TIMEOUT, self._silence(error)) from None
        except httpx2.RequestError as error:
            raise NoAnswerError(HTTPStatus.BAD_GATEWAY, self._silence(error)) from None
        try:
            came = tuple(
                (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers.raw
            )
            headers = self._screen.headers(tuple(item for item in came if item[0] not in HOP_HEADERS))
            body = self._screen.body(came, _chunks(response))
            yield Answer(status=response.status_code, headers=headers, chunks=body)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _request(self, call: Call) -> httpx2.Request:
        headers = [item for item in call.headers if item[0] not in _REPLACED]
        headers += [("accept-encoding", "identity"), *([self._key] if self._key else [])]
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        path = self._base.raw_path.rstrip(b"/") + call.route.tail.encode("ascii")
        query = b"?" + call.route.query.encode("ascii") if call.route.query else b""
        return httpx2.Request(
            call.method,
            self._base.copy_with(raw_path=path + query),
            headers=raw,
            content=call.body,
            extensions={"timeout": _TIMEOUT.as_dict()},
        )

    def _silence(self, error: Exception) -> str:
        # Once a request was sent, texts of the library can hold parts of it.
        why = f": {error}" if isinstance(error, httpx2.ConnectError) else ""
        return (
            f"the model provider at {self._base.host} gave no answer ({type(error).__name__}{shorten(why, 200)}). "
            "Check the base URL, and the network and certificates of the worker's host"
        )


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx2.RequestError as error:
        raise BrokenOffError(type(error).__name__) from None
