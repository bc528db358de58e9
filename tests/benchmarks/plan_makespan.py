"""Random layered work whose steps take time, and how long greedy list scheduling needs for it."""

import heapq
import random
from dataclasses import dataclass

SLOTS = 4


@dataclass(frozen=True)
class Layered:
    """Steps by number, each with those it needs and its duration in seconds."""

    needs: list[list[int]]
    durations: list[float]


def layered(seed: int) -> Layered:
    """Return 60 to 100 steps in layers of 3 to 12, each step needing up to three of the layer before."""
    chance = random.Random(seed)
    size = chance.randint(60, 100)
    needs: list[list[int]] = []
    before: list[int] = []
    while len(needs) < size:
        layer = range(len(needs), min(len(needs) + chance.randint(3, 12), size))
        needs += [sorted(chance.sample(before, min(len(before), chance.randint(1, 3)))) for _ in layer]
        before = list(layer)
    return Layered(needs, [round(chance.uniform(0.2, 1.0), 2) for _ in needs])


def list_schedule(work: Layered, slots: int) -> float:
    """Return the seconds that `slots` workers need when each free one takes the ready step with the longest way to go.

    Nothing but the durations takes time.
    """
    ways = _ways_to_go(work)
    missing = [len(sources) for sources in work.needs]
    ready = [(-ways[node], node) for node, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            node = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + work.durations[node], node))
        now, ended = heapq.heappop(running)
        for node, sources in enumerate(work.needs):
            if ended in sources:
                missing[node] -= 1
                if missing[node] == 0:
                    heapq.heappush(ready, (-ways[node], node))
    return now


def _ways_to_go(work: Layered) -> list[float]:
    ways = list(work.durations)
    for node in reversed(range(len(ways))):
        for source in work.needs[node]:
            ways[source] = max(ways[source], work.durations[source] + ways[node])
    return ways
