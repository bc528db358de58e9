"""Test gate, in which new tests must prove that they can fail."""

import ast
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from temporalio.exceptions import CancelledError

from activities.process import GRACE_S
from activities.proof import untracked
from activities.proof.port import Files, LockedTrees, TreeFile, UntrackedChanges
from activities.sandbox.port import MEBIBYTE, Sandbox, build_spec
from activities.workspace.working_tree import WorkingTree
from tightloop.episode.proof import FileChange, FileKind
from tightloop.episode.proof.files import Guards
from tightloop.settings import SandboxSettings
from tightloop.testing import Collection, GateReport, Outcome, Run, Session, changed_lines, touched_bodies
from tightloop.testing.claims import JudgedTests, Known, functions_with_values, names_of, read_tests
from tightloop.testing.copies import Pattern, patterns_of
from tightloop.testing.judging import Evidence, judge, why_none_fails
from tightloop.testing.mutants import Mutant, choose, mutants_of

if TYPE_CHECKING:
    from activities.proof.checkouts import LocalCheckouts, ProofFolder


SOURCE_BYTES = 1_000_000
"""Maximum size of a source file. Larger files are skipped, as they are usually generated."""
HEAVY = {
    "hypothesis": "hypothesis",
    "text(": "hypothesis.internal.charmap",
    "characters(": "hypothesis.internal.charmap",
}
"""Slow modules to preload, keyed by a text that appears in tests that need them."""
_LINK = 0o120000
_OF_TESTS = (FileKind.TEST, FileKind.TEST_DATA)


@dataclass
class Change:
    """A change to source files, with an analysis of its tests."""

    before: Files
    """Tree before the change, but with the tests and their setup files from the new tree."""
    after: Files
    test_files: tuple[str, ...]
    """All Python test files."""
    lines: dict[str, frozenset[int]] = field(default_factory=dict)
    bodies: dict[str, frozenset[int]] = field(default_factory=dict)
    mutants: list[Mutant] = field(default_factory=list)
    readings: dict[str, JudgedTests] = field(default_factory=dict)
    uses: list[str] = field(default_factory=list)
    """Slow library modules that the tests use."""
    unread: list[str] = field(default_factory=list)
    """Files that the worker's Python cannot parse."""


def change_of(trees: LockedTrees, before: str, after: str, tests: Sequence[str]) -> Change:
    """Compare two trees, and parse the tests of the new tree."""
    old, new = trees.files(before), trees.files(after)
    of_tests = {path for path in new if _is_of_tests(path, tests)}
    earlier = {path: file for path, file in old.items() if not _is_of_tests(path, tests)}
    earlier |= {path: new[path] for path in of_tests}
    change = Change(earlier, new, tuple(sorted(path for path in of_tests if path.endswith(".py"))))
    patterns: list[Pattern] = []
    plain, names = frozenset[str](), frozenset[str]()
    for path in sorted(new):
        if not path.endswith(".py") or path in of_tests or new[path] == old.get(path):
            continue
        text, was = _text(trees, new[path]), _text(trees, old.get(path))
        try:
            assert text is not None
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, AssertionError):
            change.unread.append(path)
            continue
        line_changes = changed_lines(was or "", text)
        bodies = touched_bodies(tree, line_changes)
        change.lines[path], change.bodies[path] = line_changes.lines, bodies
        change.mutants += mutants_of(path, text, line_changes.lines)
        patterns += patterns_of(tree, bodies)
        plain |= functions_with_values(tree)
        names |= names_of(tree)
    facts = Known(tuple(patterns), plain, names)
    for path in tests:
        text = _text(trees, new.get(path)) or ""
        change.uses += [module for marker, module in HEAVY.items() if marker in text]
        # Collecting an unparsable file reports its problem.
        with suppress(SyntaxError, ValueError, RecursionError):
            change.readings |= read_tests(path, text, facts)
    return change


def _is_of_tests(path: str, tests: Sequence[str]) -> bool:
    # Configuration stays as before the change, except pytest's setup files next to the tests.
    is_setup = path.rpartition("/")[2] == "conftest.py"
    return path in tests or is_setup or Guards().kind_of(path, FileChange.MODIFIED) in _OF_TESTS


def _text(trees: LockedTrees, file: TreeFile | None) -> str | None:
    if file is None or file.mode == _LINK:
        return None
    content = trees.read((file.blob,), SOURCE_BYTES).get(file.blob)
    try:
        # Same line and byte counts as Python; a byte order mark would shift the first line.
        return None if content is None or content.startswith(b"\xef\xbb\xbf") else content.decode()
    except UnicodeDecodeError:
        return None


TAIL_CHARACTERS = 300

M = TypeVar("M", Run, Collection)


def read_session(output: str, nonce: str, message: str = "") -> Session:
    """Parse the events that contain the run's nonce. All other lines are skipped."""
    plain: list[Run] = []
    mutated: dict[int, list[Run]] = {}
    sets: dict[str, set[int]] = {"unreached": set(), "broken": set()}
    missing, collected, ended, has_events = "", None, False, False
    for event in _events(output, nonce):
        has_events = True
        match event:
            case {"e": "missing", "program": program, "version": version, "why": why}:
                missing = f"{program} (Python {version}) has no working pytest ({why})"
            case {"e": "collected"}:
                collected = _valid(Collection, event)
            case {"e": "plain"} if (run := _valid(Run, event)) is not None:
                plain.append(run)
            case {"e": "mutated", "mutant": int(number)} if (run := _valid(Run, event)) is not None:
                mutated.setdefault(number, []).append(run)
            case {"e": "unreached" | "broken" as what, "mutant": int(number)}:
                sets[what].add(number)
            case {"e": "end"}:
                ended = True
    return Session(
        missing=missing,
        collected=collected,
        plain=tuple(plain),
        mutated={number: tuple(runs) for number, runs in mutated.items()},
        unreached=frozenset(sets["unreached"]),
        broken=frozenset(sets["broken"]),
        ended=ended,
        output="" if has_events and collected else (message or output.strip())[-TAIL_CHARACTERS:],
    )


def _events(output: str, nonce: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("n") == nonce:
            yield event


def _valid(model: type[M], event: dict[str, Any]) -> M | None:
    try:
        return model.model_validate(event)
    except ValidationError:
        return None


RUNNER = Path(__file__).parent / "runner"
PROGRAM = "tightloop_gate.py"
PYTHON = "python3"
"""Name of the interpreter. It is looked up as in checks: first in the project's .venv, then as the worker's Python and
then as the host's.
"""
TEST_LIMIT_S = 10.0
MUTANTS_LIMIT = 40
ITEMS_LIMIT = 300
CASES_LIMIT = 6
"""Maximum number of a test's parametrised cases to try on one mutant."""
BEFORE_SHARE = 0.25
"""Share of the time that is reserved for the tree before the change."""
STOP_S = 15.0
"""Difference in seconds between the runner's own time limit and the sandbox's."""
OUTPUT_BYTES = 16 * MEBIBYTE


@dataclass(frozen=True)
class SandboxedTestGate:
    """Runs tests with the project's Python. Does not install packages or change files in the tree."""

    sandbox: Sandbox
    settings: SandboxSettings
    checkouts: "LocalCheckouts"
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
        """Find out which tests can fail. Files in the working tree are neither read nor changed.

        Args:
            tree: working tree. Its store contains both trees. Its folder contains installed programs and
                ignored files.
            before: id of the tree before the change.
            after: id of the tree with the change and the tests.
            tests: paths of new and changed test files in the tree after the change.
            cancelled: polled several times a second. If it returns True, all processes are killed.
            started: called with the pid of each program that is started.
            time_limit_s: time limit for all runs together. Skipped work is listed in the report's notes.

        Raises:
            CancelledError: `cancelled` returned True.
            SandboxUnavailableError: no sandbox works on this host. Not retryable, because a person has to
                install one.
            GitError: a tree is not in the store.
        """
        start = time.monotonic()
        trees = LockedTrees(tree)
        change = change_of(trees, before, after, tests)
        mutants = choose(change.mutants, MUTANTS_LIMIT)
        with self.checkouts.proof_folder(tree.root) as room:
            moved = untracked.present(tree.root, change.after)
            run = _Runs(self, room, tree, trees, change, moved, tuple(tests), cancelled, started)
            session = run.on(change.after, time_limit_s * (1 - BEFORE_SHARE), mutants)
            left = time_limit_s - (time.monotonic() - start)
            green = {run.id for run in session.plain if run.outcome is Outcome.PASSED}
            items = session.collected.items if session.collected else ()
            passed = {item.function for item in items if item.id in green}
            earlier = run.on(change.before, max(left, STOP_S), only=passed) if passed else None
        report = judge(
            Evidence(
                after=session,
                before=earlier,
                readings=change.readings,
                changed=change.lines,
                bodies=change.bodies,
                mutants=mutants,
                tests=tests,
                test_limit_s=self.test_limit_s,
            )
        )
        unread = "could not be read, so its changes have no mutants and no coverage."
        notes = [*report.notes, *(f"{path} {unread}" for path in change.unread[:5])]
        if len(mutants) < len(change.mutants):
            notes.append(f"Only {len(mutants)} of {len(change.mutants)} mutants of the changed lines were chosen.")
        return report.evolve(notes=tuple(notes), duration_s=round(time.monotonic() - start, 3))

    def explain_no_failure(
        self,
        tree: WorkingTree,
        before: str,
        after: str,
        path: str,
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        time_limit_s: float,
    ) -> str:
        """Explain why no test in a new file fails on its own assertion. Return "" if such a test exists.

        `after` is the tree `before` with the file `path` added. The other arguments and the errors are the
        same as for `judge`.
        """
        trees = LockedTrees(tree)
        change = change_of(trees, before, after, (path,))
        with self.checkouts.proof_folder(tree.root) as room:
            moved = untracked.present(tree.root, change.after)
            run = _Runs(self, room, tree, trees, change, moved, (path,), cancelled, started)
            session = run.on(change.after, time_limit_s)
        return why_none_fails(session, change.readings, path)


@dataclass(frozen=True)
class _Runs:
    """Runs a change's tests on trees."""

    gate: SandboxedTestGate
    proof_folder: "ProofFolder"
    tree: WorkingTree
    trees: LockedTrees
    change: Change
    untracked: UntrackedChanges
    tests: tuple[str, ...]
    cancelled: Callable[[], bool]
    started: Callable[[int], None]

    def on(self, files: Files, limit_s: float, mutants: Sequence[Mutant] = (), only: set[str] | None = None) -> Session:
        """Run the tests on one tree.

        Raises:
            CancelledError: the run was cancelled.
        """
        gate, root = self.gate, self.tree.root
        view = self.proof_folder.checkout(self.trees, files, self.untracked)
        runner, nonce = self.proof_folder.folder("runner"), secrets.token_hex(16)
        for file in RUNNER.glob("tightloop_*.py"):
            shutil.copyfile(file, runner / file.name)
        # Through standard input: neither environment nor arguments expose the nonce to the code under test.
        orders = self.proof_folder.folder("orders") / "orders.json"
        orders.write_text(json.dumps({**self._orders(limit_s, mutants, only), "nonce": nonce}))
        argv = (PYTHON, str(runner / PROGRAM))
        spec = build_spec(
            gate.settings, argv, root, wall_limit_s=limit_s + STOP_S, grace_s=GRACE_S, output_bytes=OUTPUT_BYTES
        )
        spec = replace(
            spec,
            content=view.content,
            mounts=view.mounts,
            readable=(*spec.readable, runner),
            stdin=orders,
            # Compared runs must iterate over sets in the same order.
            environment={**view.environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        )
        result = gate.sandbox.run(spec, cancelled=self.cancelled, started=self.started)
        if self.cancelled():
            raise CancelledError("the test gate was stopped")
        return read_session(result.output.decode("utf-8", "replace"), nonce, result.message)

    def _orders(self, limit_s: float, mutants: Sequence[Mutant], only: set[str] | None) -> Mapping[str, Any]:
        change, keys = self.change, ("path", "start", "end", "text", "lines")
        readings = change.readings.items()
        return {
            "tests": self.tests,
            "test_files": change.test_files,
            "changed": sorted(change.lines),
            "mutants": [
                {"id": number, **{key: getattr(mutant, key) for key in keys}} for number, mutant in enumerate(mutants)
            ],
            "expecting": {name: sorted(reading.expecting) for name, reading in readings},
            "exempt": [name for name, reading in readings if reading.weak or reading.refused],
            "uses": sorted(set(change.uses)),
            "only": None if only is None else sorted(only),
            "items": ITEMS_LIMIT,
            "cases": CASES_LIMIT,
            "test_s": self.gate.test_limit_s,
            "total_s": limit_s,
        }
