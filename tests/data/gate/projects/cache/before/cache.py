"""A cache of the values that were used last."""

from collections import OrderedDict


class Cache:
    """Keeps at most `size` values."""

    def __init__(self, size):
        self.size = size
        self._values = OrderedDict()

    def put(self, key, value):
        self._values[key] = value
        if len(self._values) > self.size:
            self._values.popitem()

    def get(self, key, default=None):
        return self._values.get(key, default)
