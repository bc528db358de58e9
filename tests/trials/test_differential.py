"""Schedules lead to what they led to on the commit that recorded them, and invariants hold for new ones, too."""

import random
from collections.abc import Callable, Sequence

import pytest

from tests.support.differential.compare import Difference, differences, unexplained
from tests.support.differential.drawing import draw
from tests.support.differential.invariants import violations
from tests.support.differential.recordings import read
from tests.support.differential.running import run_in_processes
from tests.support.differential.schedule import Observation, Recording, Schedule, Sent
from tests.support.extent import draw_seed, part

PROCESSES = 2
REPLAYED, DRAWN = 24, 8
ALL_DRAWN = 400
FIRST_NEW = 1_000_000
"""Seeds from here on were never recorded."""


def run(schedules: Sequence[Schedule]) -> list[Recording]:
    """Run schedules; all of them end."""
    seen = run_in_processes(schedules, PROCESSES, lambda _done: None)
    assert len(seen) == len(schedules), "a process of the harness has died"
    return seen


def repeated(schedules: Sequence[Schedule], wrong: Callable[[Schedule, Observation], Sequence[object]]) -> str:
    """Return what is wrong with schedules in two runs: under load, two things that happen at once change places."""
    for _ in range(2):
        seen = run(schedules)
        schedules = [each.schedule for each in seen if wrong(each.schedule, each.observation)]
        if not schedules:
            return ""
    return "\n".join(told(each.schedule, found) for each in seen if (found := wrong(each.schedule, each.observation)))


def told(schedule: Schedule, found: Sequence[object]) -> str:
    """Return what is wrong with a schedule, and which it is."""
    return f"{schedule.kind} {schedule.seed}: " + "; ".join(map(str, found))


@pytest.mark.timeout(7_200)
def test_recorded_schedules_lead_to_what_they_led_to() -> None:
    recorded = list(read())
    seed = draw_seed()
    chosen = random.Random(seed).sample(recorded, part(REPLAYED, of=len(recorded)))
    before = {recording.schedule.model_dump_json(): recording.observation for recording in chosen}

    def wrong(schedule: Schedule, now: Observation) -> list[object]:
        found = unexplained(schedule, differences(before[schedule.model_dump_json()], now))
        return [*found, *violations(schedule, now)]

    assert not repeated([recording.schedule for recording in chosen], wrong)


@pytest.mark.timeout(3_600)
def test_invariants_hold_for_schedules_that_were_never_recorded() -> None:
    first = FIRST_NEW + 10_000 * draw_seed()
    schedules = [draw(seed) for seed in range(first, first + part(DRAWN, of=ALL_DRAWN))]
    assert not repeated(schedules, violations)


def test_the_same_seed_draws_the_same_schedule() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]


def test_invariants_can_fail() -> None:
    schedule = draw(1, "episode")
    lost = Sent(name="pause", taken="never answered")
    wrong = Observation(outcome="SUCCEEDED", deliveries=("1.1", "1.1"), sent=(lost,), broken=("spending fell: tokens",))
    assert violations(schedule, wrong) == [
        "delivered twice: 1.1",
        "pause was lost",
        "spending fell: tokens",
        "success without a proof",
    ]
    assert violations(schedule, Observation(outcome="stuck", code="it waits")) == ["it never ends: it waits"]


def test_every_field_is_compared() -> None:
    before = Observation(outcome="SUCCEEDED", spent={"tokens": 5.0}, timeline=("opened", "closed"), tree={"a": "1"})
    after = Observation(outcome="FAILED", spent={"tokens": 4.0}, timeline=("closed",), tree={"b": "1"})
    assert differences(before, before) == []
    assert differences(before, after) == [
        Difference("outcome", "SUCCEEDED", "FAILED"),
        Difference("spent.tokens", 5.0, 4.0),
        Difference("timeline", ("opened", "closed"), ("closed",)),
        Difference("tree.a", "1", None),
        Difference("tree.b", None, "1"),
    ]
