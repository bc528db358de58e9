"""Records schedules and replays them.

python -m tests.support.differential record --count 3000 --jobs 2 --out tests/data/differential/first.jsonl.xz
python -m tests.support.differential replay --count 200 --jobs 2
python -m tests.support.differential replay --all
python -m tests.support.differential twice --count 100 --kind plan
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.differential.compare import differences, unexplained
from tests.support.differential.drawing import draw
from tests.support.differential.invariants import violations
from tests.support.differential.recordings import read, write
from tests.support.differential.running import run_in_processes
from tests.support.differential.schedule import Recording, Schedule

PART = 200
"""Schedules between two writes of a recording."""


def tell(done: int) -> None:
    """Show how many schedules have run."""
    print(f"\r{done}", end="", file=sys.stderr, flush=True)


def run(schedules: Sequence[Schedule], jobs: int) -> list[Recording]:
    """Run schedules and print their speed."""
    began = time.monotonic()
    found = run_in_processes(schedules, jobs, tell)
    took = time.monotonic() - began
    print(f"\n{len(found)} of {len(schedules)} schedules in {took:.0f} s, {len(found) / took:.2f} a second")
    return found


def print_coverage(recordings: Sequence[Recording]) -> None:
    """Print what the schedules reached."""
    outcomes = Counter((r.schedule.kind, r.observation.outcome, r.observation.code[:40]) for r in recordings)
    questions = Counter((r.schedule.kind, q.kind, q.replied) for r in recordings for q in r.observation.questions)
    timeline = Counter((r.schedule.kind, kind.split()[0]) for r in recordings for kind in r.observation.timeline)
    sent = Counter((r.schedule.kind, s.name, s.taken) for r in recordings for s in r.observation.sent)
    parts = Counter(
        (r.schedule.kind, value.split()[0])
        for r in recordings
        if r.schedule.kind in ("plan", "project")
        for value in r.observation.parts.values()
        if not value.isdigit()
    )
    for title, counts in (
        ("outcomes", outcomes), ("questions", questions), ("timeline", timeline), ("messages", sent), ("parts", parts),
    ):  # fmt: skip
        print(f"\n{title}")
        for name, count in sorted(counts.items()):
            print(f"  {count:6}  {' '.join(name)}")


def print_violations(recordings: Sequence[Recording]) -> int:
    """Print which invariants were broken, and return in how many runs."""
    broken = [(r, found) for r in recordings if (found := violations(r.schedule, r.observation))]
    for recording, found in broken[:40]:
        print(f"  {recording.schedule.kind} {recording.schedule.seed}: {'; '.join(found)}")
    print(f"{len(broken)} runs break an invariant")
    return len(broken)


def print_differences(recorded: Sequence[Recording], seen: Sequence[Recording]) -> int:
    """Print the differences that nobody made on purpose, and return in how many schedules."""
    known = {recording.schedule.model_dump_json(): recording for recording in recorded}
    differing = 0
    for now in seen:
        before = known[now.schedule.model_dump_json()]
        found = unexplained(now.schedule, differences(before.observation, now.observation))
        if found:
            differing += 1
            if differing <= 40:
                print(f"  {now.schedule.kind} {now.schedule.seed}")
                for each in found[:6]:
                    print(f"    {each.field}: {each.recorded!r} -> {each.seen!r}")
    print(f"{differing} of {len(seen)} schedules differ")
    return differing


def record(arguments: argparse.Namespace) -> int:
    """Draw schedules, run them and keep what they lead to; what was run is kept after each part."""
    recordings: list[Recording] = []
    until, last = time.monotonic() + 60 * arguments.minutes, arguments.first + arguments.count
    for first in range(arguments.first, last, PART):
        if time.monotonic() > until:
            break
        schedules = [draw(seed, arguments.kind) for seed in range(first, min(first + PART, last))]
        recordings += run(schedules, arguments.jobs)
        if arguments.out:
            # What breaks an invariant on the commit that records is a fault of the harness or of the product.
            write(Path(arguments.out), [r for r in recordings if not violations(r.schedule, r.observation)])
    print_coverage(recordings)
    return min(1, print_violations(recordings))


def replay(arguments: argparse.Namespace) -> int:
    """Run recorded schedules again."""
    recorded = [r for r in read() if arguments.kind in (None, r.schedule.kind)]
    if not arguments.all:
        recorded = random.Random(arguments.first).sample(recorded, min(arguments.count, len(recorded)))
    seen = run([recording.schedule for recording in recorded], arguments.jobs)
    failed = print_differences(recorded, seen) + print_violations(seen) + (len(recorded) - len(seen))
    return min(1, failed)


def twice(arguments: argparse.Namespace) -> int:
    """Run drawn schedules twice: what differs is a fault of the harness, or a race in the product."""
    seeds = range(arguments.first, arguments.first + arguments.count)
    schedules = [draw(seed, arguments.kind) for seed in seeds]
    first, second = run(schedules, arguments.jobs), run(schedules, arguments.jobs)
    print_coverage(first)
    return min(1, print_differences(first, second) + print_violations([*first, *second]))


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "replay", "twice"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed, or the seed of the sample")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", choices=("episode", "plan", "project", "coder"))
    parser.add_argument("--out", default="")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further part of a recording after that")
    arguments = parser.parse_args()
    commands = {"record": record, "replay": replay, "twice": twice}
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
