"""An agent's connection to the gateway. It uses HTTP/1.1, with one request at a time."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import h11

from activities.model.gateway.fingerprint import Headers, Request
from tightloop.host.identity import BODY_SECONDS, HEAD_SECONDS

LARGEST_REQUEST_BYTES = 64 * 2**20
ALL_REQUESTS_BYTES = 4 * LARGEST_REQUEST_BYTES
"""Limit for all of a gateway's connections together, because any process on the host can send requests."""
LARGEST_HEAD_BYTES = 64 * 2**10
IDLE_S = 600.0
"""Maximum time in seconds that an agent may be silent between calls on one connection, or that a write may stall."""
LINGER_S = 2.0
_READ_BYTES = 64 * 2**10


class AgentGoneError(Exception):
    """Raised if the agent closes the connection or does not speak HTTP."""


class TooLargeError(Exception):
    """Raised if a request body exceeds its limit, or all bodies together exceed theirs."""


class ByteBudget:
    """The number of bytes that a gateway may keep in memory for requests."""

    def __init__(self) -> None:
        self._left = ALL_REQUESTS_BYTES

    def reserve(self, size: int) -> None:
        """Reserve bytes for a request. A negative size returns bytes to the budget.

        Raises:
            TooLargeError: the budget does not have enough bytes left.
        """
        if size > self._left:
            raise TooLargeError
        self._left -= size


class AgentConnection:
    """Reads requests from an agent and writes responses. It must be used from the gateway's event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: ByteBudget) -> None:
        self._budget = budget
        self._reserved_bytes = 0
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEAD_BYTES)
        self._silent = False
        self._has_asked = False

    async def request(self) -> Request | None:
        """Read the next request. Return None if there are no more requests.

        Raises:
            AgentGoneError: the input is not HTTP, or it ended in the middle of a request.
            TooLargeError: the body exceeds `LARGEST_REQUEST_BYTES`, or all bodies together exceed
                `ALL_REQUESTS_BYTES`.
        """
        self._release_bytes()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        elif self._http.our_state is not h11.IDLE:
            # A side announced the end of the connection, or the last answer is incomplete.
            return None
        try:
            # An agent may be silent between calls, but after the first byte the head must follow quickly.
            if self._has_asked and not self._http.trailing_data[0]:
                self._http.receive_data(await asyncio.wait_for(self._reader.read(_READ_BYTES), IDLE_S))
            async with asyncio.timeout(HEAD_SECONDS):
                event = await self._event()
        except (OSError, TimeoutError):
            raise AgentGoneError from None
        self._has_asked = True
        if not isinstance(event, h11.Request):
            return None
        # Latin-1 is lossless in both directions; h11 has validated the syntax.
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers)
        self._silent = event.method == b"HEAD"
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._body(dict(headers).get("content-length", "0"))
        except TimeoutError:
            raise AgentGoneError from None
        method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
        return Request(method=method, target=target, headers=headers, body=body)

    async def run_while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine. Cancel it as soon as the agent closes the connection.

        Raises:
            AgentGoneError: the agent closed the connection.
        """
        doing, hang_up = asyncio.ensure_future(work), asyncio.ensure_future(self._wait_for_hang_up())
        try:
            await asyncio.wait({doing, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Read before the cancellation, after which every task is done.
            finished = doing.done()
            doing.cancel()
            hang_up.cancel()
            await asyncio.gather(doing, hang_up, return_exceptions=True)
        if not finished:
            raise AgentGoneError
        doing.result()

    async def begin(self, status: int, headers: Headers) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send(h11.Response(status_code=status, headers=raw))

    async def write(self, data: bytes) -> None:
        """Send a chunk of the response body immediately."""
        if data and not self._silent:
            await self._send(h11.Data(data=data))

    async def finish(self) -> None:
        await self._send(h11.EndOfMessage())

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send a complete response created by the gateway."""
        fixed = (("content-type", "application/json"), ("content-length", str(len(body))))
        await self.begin(status, (*fixed, *headers))
        await self.write(body)
        await self.finish()

    async def linger(self) -> None:
        """Keep reading input for a moment.

        If the connection were reset immediately, the agent could not read the response.
        """
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(_READ_BYTES):
                    pass

    def abort(self) -> None:
        """Abort the connection so that the agent recognises a partial response as incomplete."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._release_bytes()
        self._writer.close()
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(self._writer.wait_closed(), LINGER_S)

    async def _body(self, declared: str) -> bytes:
        # Before `100 Continue`, so that the agent does not send it at all.
        if int(declared) > LARGEST_REQUEST_BYTES:
            raise TooLargeError
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            self._budget.reserve(len(event.data))
            self._reserved_bytes += len(event.data)
            body += event.data
            if len(body) > LARGEST_REQUEST_BYTES:
                raise TooLargeError
        return bytes(body)

    def _release_bytes(self) -> None:
        self._budget.reserve(-self._reserved_bytes)
        self._reserved_bytes = 0

    async def _event(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_READ_BYTES))
        except (h11.RemoteProtocolError, OSError):
            raise AgentGoneError from None
        return event

    async def _wait_for_hang_up(self) -> None:
        """Wait until the agent closes the connection. Input that arrives early is kept for the next request."""
        early = 0
        with suppress(OSError):
            while early <= LARGEST_HEAD_BYTES and (data := await self._reader.read(_READ_BYTES)):
                early += len(data)
                self._http.receive_data(data)

    async def _send(self, event: Any) -> None:
        try:
            self._writer.write(self._http.send(event) or b"")
            # Usually the socket has taken everything, and no timer is needed.
            if self._writer.transport.get_write_buffer_size():
                await asyncio.wait_for(self._writer.drain(), IDLE_S)
        except (OSError, TimeoutError):
            raise AgentGoneError from None
