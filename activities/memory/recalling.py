"""Asks the memory what helped against the failures of a report."""

from activities.memory.spared import SparedMemory
from activities.workspace.trail import Call
from tightloop.episode.check import CheckReport
from tightloop.episode.remembering import best_of, queries
from tightloop.memory.model import RECALLED, Measurement, Recollection


def recalled(
    memory: SparedMemory, report: CheckReport | None, *, by: str, episode_id: str, iteration: int, call: Call
) -> tuple[Recollection, ...]:
    """Return what helped before, the surest first, and note how much that was; blocking."""
    asked = queries(report, memory.shown) if memory.wanted else ()
    if not asked:
        return ()
    found = best_of(((check, one) for check, query in asked for one in memory.recall(query)), memory.shown)
    memory.measure(
        Measurement(
            key=f"{by}/{episode_id}/{call.run}/{iteration}",
            workflow_id=episode_id,
            type=RECALLED,
            value=len(found),
            details={"by": by},
            at=call.scheduled,
        )
    )
    return found
