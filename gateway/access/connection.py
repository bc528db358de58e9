"""Connections of the HTTP server, bounded in time and number."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tightloop.host.listening import BODY_SECONDS, HEAD_SECONDS

LATE = f"the body did not come within {BODY_SECONDS:g} s"


class BoundedConnection(H11Protocol):
    """A connection that is closed where a request does not come in time; uvicorn itself waits for ever.

    When there are too many, a new one takes the place of the one that has waited longest for a whole head.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: tuple[object, object] | None = None
        """The request of which something is to come, and the state that h11 is in until it has come."""
        self._since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        # uvicorn answers 503 when the last place is taken.
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency - 1:
            self._displace()
        super().connection_made(transport)
        self._bound()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        self._bound()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._bound()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._await(None)
        super().connection_lost(exc)

    @property
    def _awaits_head(self) -> bool:
        # Between two requests uvicorn's own timeout holds, until the first byte of the next one.
        return self.conn.their_state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0]))

    @property
    def _is_waiting(self) -> bool:
        return self._awaits_head and not self.transport.is_closing()

    def _bound(self) -> None:
        if self.transport.is_closing():
            self._await(None)
        elif self._awaits_head or self.conn.their_state is h11.SEND_BODY:
            self._await((self.cycle, self.conn.their_state))
        else:
            self._await(None)

    def _await(self, awaited: tuple[object, object] | None) -> None:
        """Start the time for something; a byte of it does not start it again."""
        if awaited == self._awaited:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._awaited, self._timer = awaited, None
        if awaited is not None:
            self._since = self.loop.time()
            seconds = HEAD_SECONDS if awaited[1] is h11.IDLE else BODY_SECONDS
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.SEND_RESPONSE:
            self.transport.abort()
            return
        self.cycle.disconnected = True
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(LATE)))]
        head = h11.Response(status_code=408, reason="Request Timeout", headers=[*headers, ("Connection", "close")])
        for event in (head, h11.Data(data=LATE.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _displace(self) -> None:
        waiting = [other for other in self.connections if isinstance(other, BoundedConnection) and other._is_waiting]
        if waiting:
            min(waiting, key=lambda other: other._since).transport.abort()
