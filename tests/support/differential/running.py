"""Runs many schedules at the same time, in one or several processes, each with a server of its own."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.support.differential.product import Side, open_side
from tests.support.differential.schedule import Observation, Recording, Schedule

LANES = 8
ROOT = Path(__file__).parents[3]


async def run_on(side: Side, schedules: Iterable[Schedule], done: Callable[[Recording], None]) -> None:
    """Run schedules in the lanes of a side; `done` gets each with what it led to."""

    async def run(schedule: Schedule) -> None:
        try:
            observation = await side.run(schedule)
        except Exception as error:  # the harness itself failed: that is a finding, too
            text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            observation = Observation(outcome="error", code=text, broken=(f"the harness failed: {text}",))
        done(Recording(schedule=schedule, observation=observation))

    await asyncio.gather(*map(run, schedules))


async def run_here(schedules: Sequence[Schedule], done: Callable[[Recording], None], lanes: int = LANES) -> None:
    """Run schedules in this process, with a server of its own."""
    async with open_side(lanes) as side:
        await run_on(side, schedules, done)


def run_in_processes(schedules: Sequence[Schedule], jobs: int, told: Callable[[int], None]) -> list[Recording]:
    """Run schedules in so many processes; returns them in their order."""
    found: dict[str, Recording] = {}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for job in range(jobs):
            given, taken = Path(folder, f"{job}.in"), Path(folder, f"{job}.out")
            given.write_text("".join(schedule.model_dump_json() + "\n" for schedule in schedules[job::jobs]))
            command = [sys.executable, "-m", "tests.support.differential.running", str(given), str(taken)]
            with Path(folder, f"{job}.log").open("wb") as log:
                processes.append((subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log), taken))
        while any(process.poll() is None for process, _ in processes):
            for process, _ in processes:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    told(sum(taken.read_bytes().count(b"\n") for _, taken in processes if taken.exists()))
                    break
        for _, taken in processes:
            for line in taken.read_text().splitlines() if taken.exists() else ():
                recording = Recording.model_validate_json(line)
                found[recording.schedule.model_dump_json()] = recording
    return [found[key] for schedule in schedules if (key := schedule.model_dump_json()) in found]


def main(given: Path, taken: Path) -> None:
    """Run the schedules of a file and write what they lead to into another one."""
    os.environ["TIGHTLOOP_TEMPORAL__AUTHENTICATE"] = "false"
    schedules = [Schedule.model_validate(json.loads(line)) for line in given.read_text().splitlines()]
    with taken.open("w") as out:

        def done(recording: Recording) -> None:
            out.write(recording.model_dump_json() + "\n")
            out.flush()

        asyncio.run(run_here(schedules, done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    # Threads of the SDK outlive the interpreter and would crash it.
    os._exit(0)
