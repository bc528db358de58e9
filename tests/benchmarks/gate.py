"""The test gate: how long it takes to accept tests and to refuse them, beside a plain run of pytest in the sandbox."""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from activities.process import GRACE_S
from activities.sandbox.port import build_spec
from tests.benchmarks.figures import Report, Spread, progress
from tests.support.gating import DATA, Judged, changed, files_of, make_lean_environment, prepared

T = TypeVar("T")

ROUNDS = 5
PROJECT = "cache"
WHAT = (
    ("one real test", "real", ("clock",)),
    ("one empty test", "empty", ("no_crash",)),
    ("two real tests and two empty ones", "", ()),
)


async def measure() -> Report:
    """Judge tests of one change, in turns with a plain run of the same tests."""
    return await asyncio.to_thread(_measure)


def _measure() -> Report:
    report = Report(
        f"test gate: project {PROJECT!r}, 30 changed lines with code, at most 40 mutants",
        ("tests", "mutants", "accepted", "judged ms", "pytest alone ms", "of pytest alone", "aim"),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        os.environ["TIGHTLOOP_HOME"] = str(folder / "home")
        place = DATA / "projects" / PROJECT
        tests = {path: text for kind in ("real", "empty") for path, text in prepared("first", kind)[PROJECT].items()}
        after = {**files_of(place / "after"), **tests}
        environment = make_lean_environment(folder / "environment")
        with changed(folder / "project", files_of(place / "before"), after, environment) as project:
            for what, kind, words in WHAT:
                chosen = [path for path in tests if kind in path and all(word in path for word in words)]
                progress(f"gate: {what}")
                _add(report, what, project, chosen)
    return report


def _add(report: Report, what: str, project: Judged, chosen: list[str]) -> None:
    judged, alone = [], []
    for number in range(ROUNDS + 1):
        plain, _ = _timed(lambda: _pytest(project, chosen))
        whole, found = _timed(lambda: project.judge(*chosen))
        if number:
            judged.append(whole)
            alone.append(plain)
    report.add(
        what,
        found.mutants,
        len(found.accepted),
        Spread.of(one * 1_000 for one in judged),
        Spread.of(one * 1_000 for one in alone),
        Spread.of_ratios(judged, alone),
    )


def _pytest(project: Judged, chosen: list[str]) -> None:
    argv = ("python3", "-m", "pytest", "-q", *chosen)
    spec = build_spec(project.gate.settings, argv, project.tree.root, wall_limit_s=60, grace_s=GRACE_S)
    project.gate.sandbox.run(spec, cancelled=lambda: False, started=lambda _pid: None)


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    begun = time.perf_counter()
    answer = call()
    return time.perf_counter() - begun, answer
