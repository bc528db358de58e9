"""The proof of success. It is stored as one artifact; histories, results and the status hold only its reference."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from tightloop.episode.check import Check, CheckStatus, ProofRule
from tightloop.value import ArtifactRef, Value

NAMES_LIMIT = 50
"""Maximum number of test names per kind in a report; the digest covers all."""
FILES_LIMIT = 200
"""Maximum number of changed files in a proof; `changed_count` counts all."""


class TestsFrom(StrEnum):
    """Source of the tests, test data and checker configuration of a run."""

    DELIVERED = "delivered"
    BEGINNING = "beginning"
    """The initial versions, on top of the delivered sources."""


class FileKind(StrEnum):
    """Role of a changed file for the checks."""

    TEST = "test"
    TEST_DATA = "test_data"
    CONFIGURATION = "configuration"
    """Configuration of a checker, or a program that the definition of done names."""
    START_UP = "start_up"
    """Read when an interpreter or a checker starts, or shadows one of its modules."""
    ENVIRONMENT = "environment"
    """Installed programs and libraries, such as `.venv` and `node_modules`."""


class FileChange(StrEnum):
    """Change of a file relative to the initial tree."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class ChangedFile(Value):
    """Changed file that affects the result of the checks."""

    path: str
    """Path relative to the root of the tree."""
    kind: FileKind
    change: FileChange


class ConfigurationFile(Value):
    """File of the delivered tree that configures a checker."""

    path: str
    sha256: str
    """Digest of its content."""


class TestReport(Value):
    """Per-test results of a checker, recorded while it ran."""

    checker: str
    """`pytest`, `unittest`, `node` (its own runner), `jest`, `mocha`, `vitest` or `go`."""
    is_complete: bool = False
    """True if it ended regularly and its canary, a test that must fail, failed."""
    total: int = 0
    """Tests with a result, excluding deselected ones."""
    passed: int = 0
    """Passed tests, including expected failures."""
    failed: int = 0
    """Failed tests, including errors."""
    skipped: int = 0
    deselected: int = 0
    names_sha256: str = ""
    """Digest of all names, sorted, one per line."""
    failed_names: tuple[str, ...] = ()
    """At most `NAMES_LIMIT`."""
    missing_names: tuple[str, ...] = ()
    """Baseline tests that did not pass here, at most `NAMES_LIMIT`."""
    missing_count: int = 0
    names: ArtifactRef | None = None
    """All results, one line each: result and name."""


class CheckRun(Value):
    """One check in one run."""

    name: str
    run: str
    """Command from the definition of done."""
    argv: tuple[str, ...] = ()
    """Command line started in the sandbox."""
    status: CheckStatus
    exit_code: int | None = None
    duration_s: float = 0.0
    tail: str = ""
    """End of the output, bounded and scrubbed."""
    output: ArtifactRef | None = None
    reports: tuple[TestReport, ...] = ()
    """One report per known checker that the command ran; empty: only the exit status is known."""
    sandbox: str = ""
    """Sandbox, such as `bubblewrap`."""
    not_enforced: tuple[str, ...] = ()
    """Configured limits that the sandbox could not enforce."""

    @property
    def passed(self) -> bool:
        """True if the command exited with 0."""
        return self.status is CheckStatus.PASSED


class ProofRun(Value):
    """One run of the definition of done in a clean checkout."""

    tests: TestsFrom
    checks: tuple[CheckRun, ...] = ()
    started: datetime
    ended: datetime

    @property
    def green(self) -> bool:
        """True if there is at least one check and all exited with 0."""
        return bool(self.checks) and all(check.passed for check in self.checks)


class ProofFinding(Value):
    """Finding against a proof."""

    rule: ProofRule
    text: str
    """One sentence."""
    evidence: tuple[str, ...] = ()
    announced: bool = False
    """True if the goal or the request announced it: it is evidence, not a question."""


class ProofVerdict(StrEnum):
    """Verdict of a proof."""

    PROVEN = "proven"
    ACCEPTED = "accepted"
    """There are findings, and a person accepted the tree."""
    DOUBTED = "doubted"
    """There are findings, and the decision is open."""


class Proof(Value):
    """Runs on a delivered tree outside the workspace, with their verdict."""

    version: int = 1
    episode_id: str
    """Id of the episode or the plan."""
    goal: str = ""
    base_tree: str
    """Git id of the initial tree."""
    delivered_tree: str
    beside: str = ""
    """Digest of the ignored files next to the tree, at the start and at the proof."""
    runs: tuple[ProofRun, ...] = ()
    """The run as delivered, followed by one with the initial tests if tests, test data or configuration changed."""
    changed: tuple[ChangedFile, ...] = ()
    """At most `FILES_LIMIT`."""
    changed_count: int = 0
    configuration: tuple[ConfigurationFile, ...] = ()
    """Configuration files of the delivered tree, at most `FILES_LIMIT`."""
    verdict: ProofVerdict
    findings: tuple[ProofFinding, ...] = ()
    accepted_by: str = ""
    """Person who accepted the findings; empty if none."""
    not_held: tuple[str, ...] = ()
    """Limitations of this proof, one sentence each: sandbox limits, checks without a report ..."""
    started: datetime
    ended: datetime

    def proves(self, checks: Sequence[Check], tree: str) -> bool:
        """Return whether it proves these checks on a tree without findings or changed check files."""
        is_clean = self.verdict is ProofVerdict.PROVEN and not self.findings and not self.changed_count
        # Exactly one run: a second one exists only if tests changed.
        commands = [[run.run for run in proof_run.checks] for proof_run in self.runs]
        return is_clean and self.delivered_tree == tree and commands == [[check.run for check in checks]]

    @property
    def open_findings(self) -> tuple[ProofFinding, ...]:
        """Findings that were not announced."""
        return tuple(finding for finding in self.findings if not finding.announced)
