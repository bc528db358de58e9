"""The report of the gate: which tests count and why, which do not, and which faults nobody would notice."""

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
    coverage: ChangedCoverage = ChangedCoverage()
    notes: tuple[str, ...] = ()
    """What was not done or not measured, in sentences."""
    duration_s: float = 0.0
