"""The test gate: only tests that demonstrably can fail count.

This package contains the pure rules. `activities/testing` runs the tests.
"""

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
"""Maximum length of a text in the report, which is sent through Temporal.

The report is bounded to about 40 kB. It typically has 1 to 3 kB for the tests of one change.
"""


class AcceptedTest(Value):
    """A test with proof that it can fail."""

    test: str
    """Node id without parameters, such as `tests/test_a.py::test_b`."""
    nodes: tuple[str, ...] = ()
    """Node ids of its parameterised cases, at most `NODES_LIMIT` of them."""
    fails_before: bool = False
    """True if it fails with its own assertion on the tree before the change."""
    killed: int = 0
    """Number of mutants of the changed lines that it kills with its own assertion.

    Once a mutant has been killed, only tests that have not killed any mutant are still tried on it.
    """
    example: str = ""
    """Error message of one of its failures."""

    @property
    def proof(self) -> str:
        """The evidence that the test can fail."""
        parts = ["fails on the tree before the change"] if self.fails_before else []
        parts += [f"kills {self.killed} mutant{'' if self.killed == 1 else 's'}"] if self.killed else []
        return " and ".join(parts)


class RefusedTest(Value):
    """A test that does not count, with the reason."""

    test: str
    """Node id without parameters, or the file if no test was collected from it."""
    reason: str
    """Problem and its correction, addressed to the author."""


class ChangedCoverage(Value):
    """The coverage of changed executable lines by the accepted tests.

    A `def` line is already covered when its module is imported.
    """

    covered: int = 0
    total: int = 0
    missing: tuple[str, ...] = ()
    """Changed lines that no accepted test executes, in the form `path:line`. At most `SURVIVORS_LIMIT` are listed."""


class GateReport(Value):
    """The result of the test gate for a change."""

    accepted: tuple[AcceptedTest, ...] = ()
    refused: tuple[RefusedTest, ...] = ()
    survived: tuple[str, ...] = ()
    """Surviving mutants in the form `path:line: change`. At most `SURVIVORS_LIMIT` are listed."""
    survived_count: int = 0
    mutants: int = 0
    """Number of mutants that were tried."""
    coverage: ChangedCoverage = ChangedCoverage.model_construct()
    notes: tuple[str, ...] = ()
    """Sentences about omissions and missing measurements."""
    duration_s: float = 0.0


class Outcome(StrEnum):
    """The outcome of a single run of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAIL = "xfail"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """Python terminated before the test was finished."""


class Run(Value):
    """The result of running a test once, alone in a process."""

    id: str
    outcome: Outcome
    assertion: bool = False
    """True if its call failed with an AssertionError or with pytest's `Failed`."""
    place: str = ""
    """Origin of the failure: `test`, `changed` (a changed file), `other` (in the tree) or "" (only a library).

    Library frames between the error and the next file in the tree are skipped, because unittest raises errors on behalf
    of the test.
    """
    text: str = ""
    """The error with the first line of its message, or the reason why the test was skipped."""
    reached: frozenset[str] = frozenset()
    """Exceptions other than assertions that reached the test's code."""
    raised: frozenset[int] = frozenset()
    """Lines of the test at which changed code raised such an exception."""
    line: int = 0
    """Line of the test at which its own error was raised."""
    lines: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Executed lines of the changed files."""
    seconds: float = 0.0
    honest: bool = True
    """True if the hooks left the canaries unchanged and there is exactly one report."""


class Item(Value):
    """A collected test, or one of its cases."""

    id: str
    function: str
    """Id without parameters."""
    path: str


class Collection(Value):
    """Result of pytest's test collection."""

    items: tuple[Item, ...] = ()
    more: int = 0
    """Number of tests beyond the limit, which were skipped."""
    problems: tuple[tuple[str, str], ...] = ()
    """Files that could not be collected, each with the end of the output."""
    imported: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Lines of the changed files that were executed during collection."""
    executable: Mapping[str, frozenset[int]] = Field(default_factory=dict)
    """Executable lines of the changed files."""


class Session(Value):
    """The results of the test runner for one tree."""

    missing: str = ""
    """The Python interpreter that does not have pytest, and the reason."""
    collected: Collection | None = None
    plain: tuple[Run, ...] = ()
    """Two runs of each test, or one if the test did not pass."""
    mutated: Mapping[int, tuple[Run, ...]] = Field(default_factory=dict)
    """Runs by mutant number."""
    unreached: frozenset[int] = frozenset()
    """Mutants whose lines are not executed by any test."""
    broken: frozenset[int] = frozenset()
    """Mutants with which no test could be collected."""
    ended: bool = False
    """True if the session was completed."""
    output: str = ""
    """End of the output, if the session did not produce any results."""

    def runs(self, function_ids: Iterable[str]) -> dict[str, list[Run]]:
        """Return the runs of the given tests by ID. Runs with mutants are not included."""
        id_set = frozenset(function_ids)
        runs_by_id: dict[str, list[Run]] = {}
        for run in self.plain:
            if run.id in id_set:
                runs_by_id.setdefault(run.id, []).append(run)
        return runs_by_id


def can_fail(run: Run, green: Run, expecting: frozenset[int] = frozenset()) -> bool:
    """Return whether a failure proves that the test can detect a difference.

    The failure only counts if an assertion in the test itself fails. It does not count if an assertion in
    the code under test fails or if this code raises an unexpected exception, even inside one of the
    test's exception handlers. It also does not count if the project's hooks change the results.

    `expecting` contains the lines on which the test expects an exception. If the passing run raised an
    exception on such a line, a different exception there counts as a failure of the test.
    """
    if run.outcome is not Outcome.FAILED or not run.honest:
        return False
    if run.assertion:
        # An exception that the passing run did not see was swallowed: the assertion may only follow from it.
        return run.place == "test" and run.reached <= green.reached
    return run.line in expecting and run.line in green.raised


COMPARED_LINES = 3_000
"""Maximum number of lines between the first and last change to compare.

Beyond it, all lines count as changed, because diffs take quadratic time.
"""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class ChangedLines(NamedTuple):
    """The lines of one file that a change affects."""

    lines: frozenset[int]
    """Added or changed lines of the new text, starting at 1."""
    gaps: frozenset[int] = frozenset()
    """Lines of the new text that follow removed lines."""


def changed_lines(old: str, new: str) -> ChangedLines:
    """Compare two texts line by line and return the changed lines."""
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
    """Return the body lines of all functions that have changed or removed lines."""
    body_lines: set[int] = set()
    for function in functions_of(tree):
        body = frozenset(range(function.body[0].lineno, (function.end_lineno or 0) + 1))
        whole = frozenset(range(function.lineno, (function.end_lineno or 0) + 1))
        # Lines removed right above `def` do not belong to the function.
        if whole & changed.lines or body & changed.gaps:
            body_lines |= body
    return frozenset(body_lines)


def functions_of(tree: ast.AST) -> Iterator[FunctionNode]:
    """Yield all functions of a module, including nested ones."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
