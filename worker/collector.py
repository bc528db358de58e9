"""How a worker process collects its garbage."""

import gc

YOUNG_OBJECTS = 20_000
"""With Python's 700 a worker looks through a large plan again and again: a tenth of its time, a third of an opening."""
ROUNDS = 20


def collect_less_often() -> None:
    """Keep what was imported out of every collection, and collect more seldom. Called once, when a process starts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, ROUNDS, ROUNDS)
