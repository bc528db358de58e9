"""Which tests count: those that have proved that they can fail. Pure rules; `activities/testing` runs the tests."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from tightloop.value import Value

TESTS_LIMIT = 60
SURVIVORS_LIMIT = 30
NODES_LIMIT = 20
TEXT_CHARACTERS = 300
"""The report travels through Temporal: it is bounded to about 40 kB, and has 1 to 3 kB for the tests of one change."""


class AcceptedTest(Value):
    """A test that has proved that it can fail."""

    test: str
    """Its node id, without parameters: `tests/test_a.py::test_b`."""
    nodes: tuple[str, ...] = ()
    """Node ids of its cases where it has parameters, at most `NODES_LIMIT`."""
    fails_before: bool = False
    """It fails by an assertion of its own on the tree before the change."""
    killed: int = 0
    """Number of mutants of the changed lines on which it fails by an assertion of its own.

    Once a mutant is killed, only tests that have not killed any are still tried on it.
    """
    example: str = ""
    """What it said when it failed."""

    @property
    def proof(self) -> str:
        """How it was proved, in words."""
        words = ["fails on the tree before the change"] if self.fails_before else []
        words += [f"kills {self.killed} mutant{'' if self.killed == 1 else 's'}"] if self.killed else []
        return " and ".join(words)


class RefusedTest(Value):
    """A test that does not count."""

    test: str
    """Its node id without parameters, or its file where no test was collected from that."""
    reason: str
    """What is wrong with it, and what to do; for whoever wrote it."""


class ChangedCoverage(Value):
    """How many of the changed lines with code the accepted tests execute; an import executes `def` lines."""

    covered: int = 0
    total: int = 0
    missing: tuple[str, ...] = ()
    """Changed lines that no accepted test executes, as `path:line`, at most `SURVIVORS_LIMIT`."""


class GateReport(Value):
    """What became of the tests of one change."""

    accepted: tuple[AcceptedTest, ...] = ()
    refused: tuple[RefusedTest, ...] = ()
    survived: tuple[str, ...] = ()
    """Faults that no accepted test notices: `path:line: what was changed`; at most `SURVIVORS_LIMIT`."""
    survived_count: int = 0
    mutants: int = 0
    """How many were tried."""
    coverage: ChangedCoverage = ChangedCoverage.model_construct()
    notes: tuple[str, ...] = ()
    """What was not done or not measured, in sentences."""
    duration_s: float = 0.0


class Outcome(StrEnum):
    """How one run of one test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAIL = "xfail"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """Python ended before the test was over."""


class Run(Value):
    """One run of one test, alone in a process."""

    id: str
    outcome: Outcome
    assertion: bool = False
    """It failed in its call by an AssertionError, or by a `Failed` of pytest."""
    place: str = ""
    """Whose code failed: `test`, `changed` (a file that changed), `other` (of the tree) or "" (a library alone).

    Libraries between the error and the next file of the tree are passed over: unittest raises for the test.
    """
    text: str = ""
    """The error and the first line of what it says; why it was skipped."""
    reached: frozenset[str] = frozenset()
    """Exceptions, assertions apart, that reached the code of the test."""
    raised: frozenset[int] = frozenset()
    """Lines of tests at which such an exception came out of code that changed."""
    line: int = 0
    """The line of the test at which its own error came out."""
    lines: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Lines of changed files that it executed."""
    seconds: float = 0.0
    honest: bool = True
    """The canaries went through the hooks unharmed, and there is one report."""


class Item(Value):
    """A test that was collected, or one case of it."""

    id: str
    function: str
    """Its id without parameters."""
    path: str


class Collected(Value):
    """What pytest found in the test files."""

    items: tuple[Item, ...] = ()
    more: int = 0
    """Tests beyond the limit, which were left out."""
    problems: tuple[tuple[str, str], ...] = ()
    """Files that could not be collected, each with the end of what was said."""
    imported: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Lines of changed files that were executed meanwhile."""
    executable: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Lines of changed files that have code."""


class Session(Value):
    """All that the runner told of one tree."""

    missing: str = ""
    """Which Python has no pytest, and why."""
    collected: Collected | None = None
    plain: tuple[Run, ...] = ()
    """Each test twice, unless it did not pass."""
    mutated: Mapping[int, tuple[Run, ...]] = Field(default_factory=dict)
    """By the number of the mutant."""
    unreached: frozenset[int] = frozenset()
    """Mutants whose lines no test executes."""
    broken: frozenset[int] = frozenset()
    """Mutants with which no test could be collected."""
    ended: bool = False
    """It came to its end."""
    output: str = ""
    """The end of what was printed, where it came to nothing."""

    def runs(self, function_ids: Iterable[str]) -> dict[str, list[Run]]:
        """Return the runs of tests without mutants, by id."""
        wanted = frozenset(function_ids)
        found: dict[str, list[Run]] = {}
        for run in self.plain:
            if run.id in wanted:
                found.setdefault(run.id, []).append(run)
        return found


def can_fail(run: Run, green: Run, expecting: frozenset[int] = frozenset()) -> bool:
    """Return whether a failure proves that the test notices what differs from the run in which it passed.

    It does where the test itself asserts. It does not where the code under test asserts, where the code raises what the
    test does not expect (in a handler of the test, too), or where hooks of the project meddle with results.

    On a line where the test expects an exception (`expecting`), and got it from the code that changed, another one is
    as good as none.
    """
    if run.outcome is not Outcome.FAILED or not run.honest:
        return False
    if run.assertion:
        return run.place == "test" and run.reached <= green.reached
    return run.line in expecting and run.line in green.raised


COMPARED_LINES = 3_000
"""Where more lines than that lie between the first and the last change, all of them count as changed: comparing takes
quadratic time."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Changed(NamedTuple):
    """The change of one file."""

    lines: frozenset[int]
    """Lines of the new text that are new or changed, counted from 1."""
    gaps: frozenset[int] = frozenset()
    """Lines of the new text before which lines were removed."""


def changed_lines(old: str, new: str) -> Changed:
    """Compare two texts line by line."""
    before, after = old.splitlines(), new.splitlines()
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(before), len(after)) > COMPARED_LINES:
        return Changed(frozenset(range(start + 1, start + len(after) + 1)))
    lines: set[int] = set()
    gaps: set[int] = set()
    for kind, _, _, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "delete":
            gaps.add(start + first + 1)
        elif kind != "equal":
            lines.update(range(start + first + 1, start + last + 1))
    return Changed(frozenset(lines), frozenset(gaps))


def touched_bodies(tree: ast.Module, changed: Changed) -> frozenset[int]:
    """Return the lines of the bodies of the innermost functions in which lines changed or were removed."""
    found: set[int] = set()
    for function in functions_of(tree):
        body = frozenset(range(function.body[0].lineno, (function.end_lineno or 0) + 1))
        whole = frozenset(range(function.lineno, (function.end_lineno or 0) + 1))
        if whole & changed.lines or body & changed.gaps:
            found |= body
    return frozenset(found)


def functions_of(tree: ast.AST) -> Iterator[FunctionNode]:
    """Yield all functions, inner ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
