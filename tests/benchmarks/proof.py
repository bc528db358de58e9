"""The proof: what it costs beyond its runs of the checks, in a project of 3 000 files."""

import asyncio
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from activities.artifacts.stores import open_local_store
from activities.checks.runner import CheckRunner
from activities.proof import untracked
from activities.proof.checkouts import REMOVAL, LocalCheckouts
from activities.proof.port import LockedTrees
from activities.proof.proving import Subject, prove_tree
from activities.proof.runs import Runs
from activities.sandbox.choose import choose_sandbox
from activities.workspace.scope import EpisodeScope
from activities.workspace.working_tree import Workspaces
from tests.benchmarks.figures import Report, Spread, progress
from tests.benchmarks.stage import git
from tightloop.episode.check import Check
from tightloop.episode.proof.report import CheckBaseline, InitialState
from tightloop.settings import SandboxSettings

T = TypeVar("T")

ROUNDS = 5
FILES = 3_000
TEST_S = 2.0
COMMAND = "python3 -m unittest -q"
TEST = f"import time, unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        time.sleep({TEST_S})\n"


async def measure() -> Report:
    """Prove a change of a module, and one of a test, in turns with runs of the check alone."""
    return await asyncio.to_thread(_measure)


def _measure() -> Report:
    report = Report(
        f"proof: {FILES} files, a check of about {TEST_S:g} s",
        (
            "proof",
            "runs",
            "whole ms",
            "beyond the runs ms",
            "of the runs of the check alone",
            "CPU beyond the runs ms",
            "removal after ms",
            "aim",
        ),
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve() / "project"
        _make(root)
        scope = EpisodeScope(episode_id="ep-bench", workspace=str(root))
        settings = SandboxSettings(unsafe_local=True)
        workspaces = Workspaces(lock_wait=timedelta(seconds=10))
        workspaces.prepare(scope, take_over=lambda _episode: True)
        runner, bench = CheckRunner(choose_sandbox(settings), settings), LocalCheckouts()
        check = Check(run=COMMAND)
        with workspaces.hold(scope) as tree:
            use = Runs(tree, open_local_store(root), runner, bench, lambda: False, lambda _text: None)
            begun = tree.snapshot()
            manifest = untracked.survey(root, LockedTrees(tree).files(begun)).write()
            [(result, seen, _)] = use.run_in_place((check,), begun)
            beginning = InitialState(
                tree=begun,
                root=str(root),
                checks=(
                    CheckBaseline(run=COMMAND, passed=result.passed, exit_code=result.exit_code, observation=seen),
                ),
                ignored=use.store.put(manifest, name="beside the tree", media_type="application/zlib"),
            )
            found: dict[str, list[tuple[int, float, float, float, float, float]]] = {}
            for number in range(ROUNDS + 1):
                progress(f"proof: round {number} of {ROUNDS}")
                for what, file in (("a module changed", "part_1/module_1.py"), ("a test changed", "test_it.py")):
                    git(root, "checkout", "--quiet", "--force", ".")
                    with (root / file).open("a") as changed:
                        changed.write(f"# {number}\n")
                    delivered = tree.snapshot()
                    alone, alone_cpu, _ = _timed(lambda: use.run_in_place((check,), begun))
                    whole, whole_cpu, proof = _timed(
                        lambda delivered=delivered: prove_tree(  # type: ignore[misc]
                            use,
                            Subject("bench", "bench", (check,)),
                            workflow_id=scope.episode_id,
                            delivered=delivered,
                            beginning=beginning,
                        )
                    )
                    # What goes on after the answer must not slow the next run of the check alone.
                    removing = [thread for thread in threading.enumerate() if thread.name == REMOVAL]
                    after, _, _ = _timed(lambda removing=removing: [thread.join() for thread in removing])  # type: ignore[misc]
                    runs = len(proof.runs)
                    inside = sum(run.duration_s for one in proof.runs for run in one.checks)
                    if number:
                        ratio, more_cpu = whole / (runs * alone), whole_cpu - runs * alone_cpu
                        found.setdefault(what, []).append((runs, whole, whole - inside, ratio, more_cpu, after))
    for what, rows in found.items():
        report.add(
            what,
            rows[0][0],
            Spread.of(row[1] * 1_000 for row in rows),
            Spread.of(row[2] * 1_000 for row in rows),
            Spread.of(row[3] for row in rows),
            Spread.of(row[4] * 1_000 for row in rows),
            Spread.of(row[5] * 1_000 for row in rows),
            aim="<= 1.15",
        )
    return report


def _timed(call: Callable[[], T]) -> tuple[float, float, T]:
    """Return the time of a call, its CPU time with that of its processes, and its result."""
    begun, cpu_before = time.perf_counter(), _cpu()
    answer = call()
    return time.perf_counter() - begun, _cpu() - cpu_before, answer


def _cpu() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _make(root: Path) -> None:
    for number in range(FILES):
        file = root / f"part_{number % 50}" / f"module_{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"VALUE_{line} = {line * number}\n" for line in range(40)))
    (root / "test_it.py").write_text(TEST)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "start")
