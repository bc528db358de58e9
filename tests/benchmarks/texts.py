"""Text diffs: time, size of what is stored, and how long other threads of the worker had to wait meanwhile."""

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

from activities.tracking.git_differ import GitDiffer
from activities.tracking.similarity import similarity
from tests.benchmarks.figures import Report, Spread, progress

RUNS = 5
BEAT_S = 0.002


def texts_report() -> Report:
    """Compare every pair of texts; a thread beats every 2 ms meanwhile."""
    report = Report(
        "texts: GitDiffer.text, and the longest time another thread could not run meanwhile",
        (
            "texts",
            "runs",
            "ms",
            "worst ms",
            "longest stop ms",
            "same in one process ms",
            "stored/text",
            "coarse",
            "aim",
        ),
    )
    for name, old, new in _texts():
        progress(f"texts: {name}")
        found, seconds, stops = None, [], []
        for _ in range(RUNS):
            with Heart() as heart:
                begun = time.perf_counter()
                found = GitDiffer().text(old, new)
                seconds.append(time.perf_counter() - begun)
            stops.append(heart.longest_s)
        with Heart() as within:
            similarity(old, new)
        assert found is not None
        stored = len(found.body.encode()) / len(new.encode())
        coarse = "yes" if found.approximate else ""
        spread = Spread.of(took * 1_000 for took in seconds)
        stop, alone = max(stops) * 1_000, within.longest_s * 1_000
        report.add(name, RUNS, spread, max(seconds) * 1_000, stop, alone, stored, coarse, aim="never over 1 s")
    report.notes.append("`same in one process`: the longest stop while only the ratio is measured in this process")
    return report


class Heart:
    """A thread that should run every 2 ms."""

    def __enter__(self) -> "Heart":
        self.longest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        beats = [time.perf_counter()]
        while not self._over.wait(BEAT_S):
            beats.append(time.perf_counter())
        beats.append(time.perf_counter())
        self.longest_s = max(0.0, max(after - before for before, after in pairwise(beats)) - BEAT_S)


def _texts() -> Iterator[tuple[str, str, str]]:
    noise = random.Random(1)

    def lines(count: int) -> list[str]:
        return [f"- step {number}: {noise.getrandbits(200):x}" for number in range(count)]

    for count in (60, 350, 3_000, 150_000):
        plan = lines(count)
        edited = [f"{line} more" if noise.random() < 0.05 else line for line in plan]
        yield f"{count} lines, 5 % edited", "\n".join(plan), "\n".join(edited)
    yield "10 MB, one line", "word " * 2_000_000, "word " * 1_000_000 + "x" + "word " * 1_000_000
    yield "10 MB, one word", "ab" * 5_000_000, "ba" * 5_000_000
    yield "10 MB, all lines equal", "same\n" * 2_000_000, "same\n" * 1_000_000
    yield "10 MB, no common line", "\n".join(lines(160_000)), "\n".join(lines(160_000))
