"""A bounded number of connections, lent out one at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Pool:
    """Lends connections; remembers the most that were out at once, and how often somebody waited in vain."""

    def __init__(self, size: int, patience_s: float = 1.0) -> None:
        """Take the number of connections and how long a caller waits for one."""
        self._free = threading.BoundedSemaphore(size)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._out = 0
        self.most = 0
        self.in_vain = 0

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold a connection."""
        if not self._free.acquire(timeout=self._patience_s):
            with self._lock:
                self.in_vain += 1
            raise RuntimeError("no free connection")
        with self._lock:
            self._out += 1
            self.most = max(self.most, self._out)
        try:
            yield
        finally:
            with self._lock:
                self._out -= 1
            self._free.release()
