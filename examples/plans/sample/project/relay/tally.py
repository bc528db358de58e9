"""Counts answers; safe for threads."""

import threading
from collections import Counter


class Tally:
    """How often each status was answered."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._counts: Counter[int] = Counter()

    def add(self, status: int) -> None:
        """Count one answer."""
        with self._lock:
            self._counts[status] += 1

    def counts(self) -> dict[int, int]:
        """Return the counts by status."""
        with self._lock:
            return dict(self._counts)
