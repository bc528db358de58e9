"""The test gate: only tests that demonstrably can fail count. Pure rules; `activities/testing` runs the tests."""

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
    """Test that demonstrably can fail."""

    test: str
    """Node id without parameters: `tests/test_a.py::test_b`."""
    nodes: tuple[str, ...] = ()
    """Node ids of its parameterised cases, at most `NODES_LIMIT`."""
    fails_before: bool = False
    """True if it fails by its own assertion on the tree before the change."""
    killed: int = 0
    """Number of mutants of the changed lines that it kills by its own assertion.

    Once a mutant is killed, only tests that have not killed any are still tried on it.
    """
    example: str = ""
    """Error message of a failure."""

    @property
    def proof(self) -> str:
        """Evidence that it can fail, as text."""
        parts = ["fails on the tree before the change"] if self.fails_before else []
        parts += [f"kills {self.killed} mutant{'' if self.killed == 1 else 's'}"] if self.killed else []
        return " and ".join(parts)


class RefusedTest(Value):
    """Test that does not count."""

    test: str
    """Node id without parameters, or the file if no test was collected from it."""
    reason: str
    """Fault and correction, addressed to the author."""


class ChangedCoverage(Value):
    """Coverage of the changed executable lines by the accepted tests; `def` lines are executed by an import."""

    covered: int = 0
    total: int = 0
    missing: tuple[str, ...] = ()
    """Changed lines that no accepted test executes, as `path:line`, at most `SURVIVORS_LIMIT`."""


class GateReport(Value):
    """Result of the test gate for one change."""

    accepted: tuple[AcceptedTest, ...] = ()
    refused: tuple[RefusedTest, ...] = ()
    survived: tuple[str, ...] = ()
    """Surviving mutants: `path:line: change`; at most `SURVIVORS_LIMIT`."""
    survived_count: int = 0
    mutants: int = 0
    """Number of mutants that were tried."""
    coverage: ChangedCoverage = ChangedCoverage.model_construct()
    notes: tuple[str, ...] = ()
    """Omissions and missing measurements, as sentences."""
    duration_s: float = 0.0


class Outcome(StrEnum):
    """Result of one run of one test."""

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
    """True if its call failed by an AssertionError or by pytest's `Failed`."""
    place: str = ""
    """Origin of the failure: `test`, `changed` (a changed file), `other` (in the tree) or "" (only a library).

    Library frames between the error and the next file of the tree are skipped, because unittest raises on behalf of the
    test.
    """
    text: str = ""
    """The error with the first line of its message, or the skip reason."""
    reached: frozenset[str] = frozenset()
    """Exceptions other than assertions that reached the test's code."""
    raised: frozenset[int] = frozenset()
    """Test lines at which such an exception was raised from changed code."""
    line: int = 0
    """Test line at which its own error was raised."""
    lines: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Executed lines of changed files."""
    seconds: float = 0.0
    honest: bool = True
    """True if the hooks left the canaries unchanged, and there is exactly one report."""


class Item(Value):
    """Collected test, or one case of it."""

    id: str
    function: str
    """Id without parameters."""
    path: str


class Collection(Value):
    """Result of pytest's collection."""

    items: tuple[Item, ...] = ()
    more: int = 0
    """Number of tests beyond the limit, which were skipped."""
    problems: tuple[tuple[str, str], ...] = ()
    """Files that could not be collected, each with the end of the output."""
    imported: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Lines of changed files that were executed during collection."""
    executable: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Executable lines of changed files."""


class Session(Value):
    """Results of the runner for one tree."""

    missing: str = ""
    """Python without pytest, and the reason."""
    collected: Collection | None = None
    plain: tuple[Run, ...] = ()
    """Each test twice, unless it did not pass."""
    mutated: Mapping[int, tuple[Run, ...]] = Field(default_factory=dict)
    """Runs by mutant number."""
    unreached: frozenset[int] = frozenset()
    """Mutants whose lines no test executes."""
    broken: frozenset[int] = frozenset()
    """Mutants with which no test could be collected."""
    ended: bool = False
    """True if the session completed."""
    output: str = ""
    """End of the output, if the session produced nothing."""

    def runs(self, function_ids: Iterable[str]) -> dict[str, list[Run]]:
        """Return the runs of tests without mutants, by id."""
        id_set = frozenset(function_ids)
        runs_by_id: dict[str, list[Run]] = {}
        for run in self.plain:
            if run.id in id_set:
                runs_by_id.setdefault(run.id, []).append(run)
        return runs_by_id


def can_fail(run: Run, green: Run, expecting: frozenset[int] = frozenset()) -> bool:
    """Return whether a failure proves that the test detects the difference from its passing run.

    It does if the test itself asserts. It does not if the code under test asserts or raises an unexpected exception
    (even inside a handler of the test), or if hooks of the project alter results. On a line where the test expects an
    exception (`expecting`) and got it from the changed code, a different exception counts as none.
    """
    if run.outcome is not Outcome.FAILED or not run.honest:
        return False
    if run.assertion:
        # An exception that the passing run did not see was swallowed: the assertion may only follow from it.
        return run.place == "test" and run.reached <= green.reached
    return run.line in expecting and run.line in green.raised


COMPARED_LINES = 3_000
"""Beyond this many lines between first and last change, all count as changed, because diffs take quadratic time."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class ChangedLines(NamedTuple):
    """Change of one file."""

    lines: frozenset[int]
    """Added or changed lines of the new text, from 1."""
    gaps: frozenset[int] = frozenset()
    """Lines of the new text that follow removed lines."""


def changed_lines(old: str, new: str) -> ChangedLines:
    """Compare two texts line by line."""
    before, after = old.splitlines(), new.splitlines()
    start = 0
    # Strip what is equal at both ends first: the comparison below takes quadratic time.
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if max(len(before), len(after)) > COMPARED_LINES:
        return ChangedLines(frozenset(range(start + 1, start + len(after) + 1)))
    lines: set[int] = set()
    gaps: set[int] = set()
    for kind, _, _, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "delete":
            gaps.add(start + first + 1)
        elif kind != "equal":
            lines.update(range(start + first + 1, start + last + 1))
    return ChangedLines(frozenset(lines), frozenset(gaps))


def touched_bodies(tree: ast.Module, changed: ChangedLines) -> frozenset[int]:
    """Return the body lines of the innermost functions with changed or removed lines."""
    body_lines: set[int] = set()
    for function in functions_of(tree):
        body = frozenset(range(function.body[0].lineno, (function.end_lineno or 0) + 1))
        whole = frozenset(range(function.lineno, (function.end_lineno or 0) + 1))
        # Lines removed right above `def` do not belong to the function.
        if whole & changed.lines or body & changed.gaps:
            body_lines |= body
    return frozenset(body_lines)


def functions_of(tree: ast.AST) -> Iterator[FunctionNode]:
    """Yield all functions, including nested ones."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
