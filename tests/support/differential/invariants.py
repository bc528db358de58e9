"""Properties that hold for every run, whatever was recorded."""

from collections import Counter
from collections.abc import Iterator

from tests.support.differential.schedule import Act, Observation, Schedule

SUCCESSES = frozenset({"SUCCEEDED"})


def violations(schedule: Schedule, seen: Observation) -> list[str]:
    """Return the invariants that a run has broken, but for faults that are known."""
    found = list(seen.broken)
    if schedule.kind == "episode":
        found += [f"delivered twice: {order}" for order, times in Counter(seen.deliveries).items() if times > 1]
    if seen.outcome in SUCCESSES and not seen.proven:
        found.append("success without a proof")
    if seen.outcome == "stuck" and not is_known_fault(schedule, seen):
        found.append(f"it never ends: {seen.code}")
    found += [f"{sent.name} was lost" for sent in seen.sent if sent.taken in ("failed", "never answered")]
    return sorted(set(found))


def is_known_fault(schedule: Schedule, seen: Observation) -> bool:
    """Return whether a run shows a fault of the product that was there when the recordings were made.

    While a plan asks whether edits are kept, a `resume` with a text fails every task of the workflow: the text is read
    as names of files, and the refusal is raised in the handler of a signal. Remove this once that is mended.
    """
    asks = any(question.kind == "drift" for question in seen.questions)
    resumes = any(act.name == "resume" and act.value for act in _acts(schedule))
    return schedule.kind == "plan" and seen.code == "its task fails" and asks and resumes


def _acts(schedule: Schedule) -> Iterator[Act]:
    yield from (*schedule.at_start, *schedule.at_continue)
    for moment in schedule.moments:
        yield from moment.acts
    for reply in schedule.replies:
        yield from reply.before
