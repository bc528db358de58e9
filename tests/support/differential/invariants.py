"""Properties that hold for every run, whatever was recorded."""

from collections import Counter

from tests.support.differential.schedule import Observation, Schedule

SUCCESSES = frozenset({"SUCCEEDED"})


def violations(schedule: Schedule, seen: Observation) -> list[str]:
    """Return the invariants that a run has broken."""
    found = list(seen.broken)
    if schedule.kind == "episode":
        # A reopened episode counts its iterations from the last checkpoint, so that numbers may come twice.
        allowed = 2 if schedule.reopen else 1
        found += [f"delivered twice: {order}" for order, times in Counter(seen.deliveries).items() if times > allowed]
    if seen.outcome in SUCCESSES and not seen.proven:
        found.append("success without a proof")
    if seen.outcome == "stuck":
        found.append(f"it never ends: {seen.code}")
    found += [f"{sent.name} was lost" for sent in seen.sent if sent.taken in ("failed", "never answered")]
    return sorted(set(found))
