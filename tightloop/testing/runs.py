"""What is known of single runs of tests, and what a failure proves."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pydantic import Field

from tightloop.value import Value


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
