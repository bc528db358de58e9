"""LRU cache."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Thread-safe least-recently-used cache."""

    def __init__(self, most: int) -> None:
        self._max_size = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a cached value, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Store a value, evicting the least recently used value if the cache is full."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._max_size:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove a value. A missing key is ignored."""
        with self._lock:
            self._values.pop(key, None)
