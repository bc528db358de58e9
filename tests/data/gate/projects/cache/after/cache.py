"""A cache of the values that were used last."""

import time
from collections import OrderedDict


class Cache:
    """Keeps at most `size` values, each for at most `seconds`."""

    def __init__(self, size, seconds=None, clock=time.monotonic):
        if size < 1:
            raise ValueError("a cache needs room for one value")
        self.size = size
        self.seconds = seconds
        self.hits = 0
        self.misses = 0
        self._clock = clock
        self._values = OrderedDict()

    def put(self, key, value):
        self._values.pop(key, None)
        self._values[key] = (value, self._clock())
        if len(self._values) > self.size:
            self._values.popitem(last=False)

    def get(self, key, default=None):
        if not self._is_fresh(key):
            self._values.pop(key, None)
            self.misses += 1
            return default
        self.hits += 1
        self._values.move_to_end(key)
        return self._values[key][0]

    def _is_fresh(self, key):
        if key not in self._values:
            return False
        if self.seconds is None:
            return True
        return self._clock() - self._values[key][1] < self.seconds

    def __len__(self):
        return len(self._values)

    def ratio(self):
        """Return the share of hits, 0.0 before the first one."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0
