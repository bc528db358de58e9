"""The life of a test server on a free loopback port."""

import threading
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Self

STOP_TIMEOUT_S = 5.0


class Loopback:
    """A server in a thread of its own; use it as a context manager."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        """Take a server that is bound already."""
        server.daemon_threads = True
        self._bound = server
        self.closing = threading.Event()
        """Set at the end; answers that wait have to look at it."""
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return int(self._bound.server_address[1])

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; answers that wait are let go."""
        self.closing.set()
        self._bound.shutdown()
        self._bound.server_close()
        self._thread.join(STOP_TIMEOUT_S)
