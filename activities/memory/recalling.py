"""Asks the memory what helped against the failures of a report."""

from activities.memory.spared import SparedMemory
from tightloop.episode.check import CheckReport
from tightloop.episode.remembering import best_of, queries
from tightloop.memory.model import Recollection


def recalled(memory: SparedMemory, report: CheckReport | None) -> tuple[Recollection, ...] | None:
    """Return what helped before, the surest first; None: nobody asked. Blocking."""
    asked = queries(report, memory.shown) if memory.wanted else ()
    if not asked:
        return None
    return best_of(((check, one) for check, query in asked for one in memory.recall(query)), memory.shown)
