"""The steps that could start now, best first, and the rule on who may touch the working tree at the same time."""

from heapq import heappop, heappush

from tightloop.plan.model import Access


class ReadyQueue:
    """Three heaps, one for each access, and how many of each access run.

    Writers run alone among those that touch the tree. While the best waiting step among those is a writer, no reader
    starts before it: the readers that run end, and it starts.
    """

    def __init__(self) -> None:
        """Begin empty, with nothing running."""
        self._heaps: dict[Access, list[tuple[int, int]]] = {access: [] for access in Access}
        self._queued: set[int] = set()  # membership only: its order is never looked at
        self._running = dict.fromkeys(Access, 0)

    def __len__(self) -> int:
        """Return how many are queued."""
        return len(self._queued)

    def __contains__(self, number: int) -> bool:
        """Return whether a step is queued."""
        return number in self._queued

    def take(self, number: int, access: Access) -> bool:
        """Take out one step of the caller's choice; False where it is not in, or may not touch the tree now."""
        writing, reading = self._running[Access.WRITES] > 0, self._running[Access.READS] > 0
        busy = access is not Access.NONE and (writing or (reading and access is Access.WRITES))
        if busy or number not in self._queued:
            return False
        self._queued.discard(number)
        return True

    def push(self, number: int, key: int, access: Access) -> None:
        """Queue a step once; the lowest key is best."""
        if number not in self._queued:
            self._queued.add(number)
            heappush(self._heaps[access], (key, number))

    def drop(self, number: int) -> None:
        """Take a step out, if it is in."""
        self._queued.discard(number)

    def started(self, access: Access) -> None:
        """Note that a step with this access runs."""
        self._running[access] += 1

    def ended(self, access: Access) -> None:
        """Note that one does not run any more."""
        self._running[access] -= 1

    def pop(self) -> int | None:
        """Take out the best step that may start now."""
        nothing, reader, writer = (self._head(heap) for heap in self._heaps.values())
        writing = self._running[Access.WRITES] > 0
        best = nothing
        if reader and not writing and (not writer or reader < writer):
            best = min(best, reader) if best else reader
        if writer and not writing and not self._running[Access.READS]:
            best = min(best, writer) if best else writer
        if best is None:
            return None
        self._queued.discard(best[1])
        return best[1]

    def _head(self, heap: list[tuple[int, int]]) -> tuple[int, int] | None:
        while heap and heap[0][1] not in self._queued:
            heappop(heap)
        return heap[0] if heap else None
