"""The gate: checks two trees out beside the working tree, and runs tests on them in the sandbox."""

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from temporalio.exceptions import CancelledError

from activities.process import GRACE_S
from activities.proof.port import Bench, Files, Moved, Room
from activities.proof.trees import HeldTrees
from activities.sandbox.allowance import allowed
from activities.sandbox.port import MEBIBYTE, Sandbox
from activities.testing.change import Change, change_of
from activities.testing.told import read_session
from activities.workspace.port import WorkingTree
from tightloop.settings import SandboxSettings
from tightloop.testing import GateReport
from tightloop.testing.judging import Evidence, judge
from tightloop.testing.mutants import Mutant, choose
from tightloop.testing.runs import Outcome, Session

RUNNER = Path(__file__).parent / "runner"
PROGRAM = "tightloop_gate.py"
PYTHON = "python3"
"""As checks find it: that of the project's .venv, then that of the worker, then that of the host."""
TEST_LIMIT_S = 10.0
MUTANTS_LIMIT = 40
ITEMS_LIMIT = 300
CASES_LIMIT = 6
"""Cases of a test with parameters that are tried on one mutant."""
BEFORE_SHARE = 0.25
"""Of the time, kept for the tree before the change."""
STOP_S = 15.0
"""Between the end that the runner is told and the one that the sandbox keeps."""
OUTPUT_BYTES = 16 * MEBIBYTE


@dataclass(frozen=True)
class SandboxedTestGate:
    """Runs tests with the Python of the project; nothing is installed there, and no file of the tree is changed."""

    sandbox: Sandbox
    settings: SandboxSettings
    bench: Bench
    mutants_limit: int = MUTANTS_LIMIT
    test_limit_s: float = TEST_LIMIT_S

    def judge(
        self,
        tree: WorkingTree,
        before: str,
        after: str,
        tests: Sequence[str],
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        time_limit_s: float,
    ) -> GateReport:
        """Return which tests have proved that they can fail; see the port."""
        begun = time.monotonic()
        trees = HeldTrees(tree)
        change = change_of(trees, before, after, tests)
        chosen = choose(change.mutants, self.mutants_limit)
        run = _Runs(self, tree, trees, change, tuple(tests), cancelled, started)
        with ExitStack() as rooms:
            run.enter(rooms)
            seen = run.on(change.after, time_limit_s * (1 - BEFORE_SHARE), chosen)
            left = time_limit_s - (time.monotonic() - begun)
            passed = {item.function for item in _passed(seen)}
            earlier = run.on(change.before, max(left, STOP_S), only=passed) if passed else None
        report = judge(
            Evidence(
                after=seen,
                before=earlier,
                readings=change.readings,
                changed=change.lines,
                bodies=change.bodies,
                mutants=chosen,
                tests=tests,
                test_limit_s=self.test_limit_s,
            )
        )
        return report.evolve(
            notes=(*report.notes, *_notes(change, chosen)), duration_s=round(time.monotonic() - begun, 3)
        )


class _Runs:
    """Runs the tests of one change on trees."""

    def __init__(
        self,
        gate: SandboxedTestGate,
        tree: WorkingTree,
        trees: HeldTrees,
        change: Change,
        tests: tuple[str, ...],
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
    ) -> None:
        self._gate, self._tree, self._trees, self._change, self._tests = gate, tree, trees, change, tests
        self._cancelled, self._started = cancelled, started
        self._room: Room
        self._beside = Moved()

    def enter(self, rooms: ExitStack) -> None:
        """Open a place for the checkouts, which goes when `rooms` is closed."""
        self._room = rooms.enter_context(self._gate.bench.room(self._tree.root))
        self._beside = self._gate.bench.present(self._tree.root, self._change.after)

    def on(self, files: Files, limit_s: float, mutants: Sequence[Mutant] = (), only: set[str] | None = None) -> Session:
        """Run the tests on one tree.

        Raises:
            CancelledError: somebody stopped it.
        """
        gate, root = self._gate, self._tree.root
        view = self._room.checkout(self._trees, files, self._beside)
        runner, nonce = self._room.folder("runner"), secrets.token_hex(16)
        for file in RUNNER.glob("tightloop_*.py"):
            shutil.copyfile(file, runner / file.name)
        # By standard input: neither the environment nor the arguments show it to the code under test.
        orders = self._room.folder("orders") / "orders.json"
        orders.write_text(json.dumps({**self._orders(limit_s, mutants, only), "nonce": nonce}))
        argv = (PYTHON, str(runner / PROGRAM))
        spec = allowed(
            gate.settings, argv, root, wall_limit_s=limit_s + STOP_S, grace_s=GRACE_S, output_bytes=OUTPUT_BYTES
        )
        spec = replace(
            spec,
            content=view.content,
            mounts=view.mounts,
            readable=(*spec.readable, runner),
            stdin=orders,
            environment={**view.environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        )
        result = gate.sandbox.run(spec, cancelled=self._cancelled, started=self._started)
        if self._cancelled():
            raise CancelledError("judging tests was stopped")
        return read_session(result.output.decode("utf-8", "replace"), nonce, result.message)

    def _orders(self, limit_s: float, mutants: Sequence[Mutant], only: set[str] | None) -> Mapping[str, Any]:
        readings = self._change.readings.items()
        return {
            "tests": self._tests,
            "test_files": self._change.test_files,
            "changed": sorted(self._change.lines),
            "mutants": [
                {
                    "id": number,
                    "path": one.path,
                    "start": one.start,
                    "end": one.end,
                    "text": one.text,
                    "lines": one.lines,
                }
                for number, one in enumerate(mutants)
            ],
            "expecting": {name: sorted(reading.expecting) for name, reading in readings},
            "exempt": [name for name, reading in readings if reading.weak or reading.refused],
            "uses": sorted(set(self._change.uses)),
            "only": None if only is None else sorted(only),
            "items": ITEMS_LIMIT,
            "cases": CASES_LIMIT,
            "test_s": self._gate.test_limit_s,
            "total_s": limit_s,
        }


def _passed(session: Session) -> list[Any]:
    green = {run.id for run in session.plain if run.outcome is Outcome.PASSED}
    return [item for item in (session.collected.items if session.collected else ()) if item.id in green]


def _notes(change: Change, chosen: Sequence[Mutant]) -> list[str]:
    notes = [f"{path} could not be read, so its changes have no mutants and no coverage." for path in change.unread[:5]]
    if len(chosen) < len(change.mutants):
        notes.append(f"{len(chosen)} of {len(change.mutants)} mutants of the changed lines were chosen.")
    return notes
