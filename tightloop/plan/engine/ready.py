"""The steps that could start now, best first, and the rule on who may touch the working tree at the same time."""

from heapq import heappop, heappush

from tightloop.plan.document.step import Access

_READING = (Access.READS, Access.MERGES)


class ReadyQueue:
    """A heap for each access, and how many of each access run.

    Writers run alone among those that touch the tree; those that merge count as readers, as they work elsewhere. While
    the best waiting step among those is a writer, no reader starts before it: the readers that run end, and it starts.
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
        """Take out one step; False where it is not queued, or may not touch the tree now."""
        writing, reading = self._running[Access.WRITES] > 0, any(self._running[access] for access in _READING)
        # Only writers exclude readers: several readers see the same tree.
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

    def mark_started(self, access: Access) -> None:
        """Note that a step with this access runs."""
        self._running[access] += 1

    def mark_ended(self, access: Access) -> None:
        """Note that one does not run any more."""
        self._running[access] -= 1

    def pop(self) -> int | None:
        """Take out the best step that may start now."""
        heads: list[tuple[tuple[int, int], Access]] = []
        for access, heap in self._heaps.items():
            # Steps that were dropped or taken out of turn stay in their heap until they come to its top.
            while heap and heap[0][1] not in self._queued:
                heappop(heap)
            if heap:
                heads.append((heap[0], access))
        writer_waits = False
        for (_, number), access in sorted(heads):
            if not (writer_waits and access in _READING) and self.take(number, access):
                return number
            writer_waits = writer_waits or access is Access.WRITES
        return None
