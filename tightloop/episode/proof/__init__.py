"""The proof of success. It is stored as one artifact; histories, results and the status hold only its reference."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from tightloop.episode.check import Check, CheckStatus, ProofRule
from tightloop.value import ArtifactRef, Value

NAMES_LIMIT = 50
"""Names of tests of one kind in a report; the digest covers all."""
FILES_LIMIT = 200
"""Changed files in a proof; `changed_count` counts all."""


class TestsFrom(StrEnum):
    """Which tests, test data and checker configuration a run used."""

    DELIVERED = "delivered"
    BEGINNING = "beginning"
    """As they were when the episode began, over the delivered sources."""


class FileKind(StrEnum):
    """What a changed file is to the checks."""

    TEST = "test"
    TEST_DATA = "test_data"
    CONFIGURATION = "configuration"
    """Of a checker, or a program that the definition of done names."""
    START_UP = "start_up"
    """Read when an interpreter or a checker starts, or found in place of one of its modules."""
    ENVIRONMENT = "environment"
    """Installed programs and libraries, such as `.venv` and `node_modules`."""


class FileChange(StrEnum):
    """What became of a file since the beginning."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class ChangedFile(Value):
    """A file that decides what the checks say, and that changed since the beginning."""

    path: str
    """Relative to the top of the tree."""
    kind: FileKind
    change: FileChange


class ConfigurationFile(Value):
    """A file of the delivered tree that configures a checker."""

    path: str
    sha256: str
    """Of its bytes."""


class TestReport(Value):
    """What a checker told while it ran, test by test."""

    checker: str
    """`pytest`, `unittest`, `node` (its own runner), `jest`, `mocha`, `vitest`, `go`."""
    is_complete: bool = False
    """It came to its regular end and its canary, a test that must fail, failed."""
    total: int = 0
    """Tests that came to a result; those that were deselected are not among them."""
    passed: int = 0
    """With those that were expected to fail and did."""
    failed: int = 0
    """With errors."""
    skipped: int = 0
    deselected: int = 0
    names_sha256: str = ""
    """Digest of all names, sorted, a line each."""
    failed_names: tuple[str, ...] = ()
    """At most `NAMES_LIMIT`."""
    missing_names: tuple[str, ...] = ()
    """Tests of the baseline that did not pass here, at most `NAMES_LIMIT`."""
    missing_count: int = 0
    names: ArtifactRef | None = None
    """All names with their results: a line each, result and name."""


class CheckRun(Value):
    """One check in one run."""

    name: str
    run: str
    """The command as the definition of done has it."""
    argv: tuple[str, ...] = ()
    """What was started in the sandbox."""
    status: CheckStatus
    exit_code: int | None = None
    duration_s: float = 0.0
    tail: str = ""
    """End of the output, bounded and scrubbed."""
    output: ArtifactRef | None = None
    reports: tuple[TestReport, ...] = ()
    """One for each known checker that the command ran; empty: exit status alone is what is known."""
    sandbox: str = ""
    """The sandbox, such as `bubblewrap`."""
    not_enforced: tuple[str, ...] = ()
    """Limits of the sandbox that nothing held."""

    @property
    def passed(self) -> bool:
        """Whether the command ended with 0."""
        return self.status is CheckStatus.PASSED


class ProofRun(Value):
    """The definition of done, run once in a fresh checkout."""

    tests: TestsFrom
    checks: tuple[CheckRun, ...] = ()
    started: datetime
    ended: datetime

    @property
    def green(self) -> bool:
        """Whether there is at least one check and all ended with 0."""
        return bool(self.checks) and all(check.passed for check in self.checks)


class ProofFinding(Value):
    """What speaks against a proof."""

    rule: ProofRule
    text: str
    """A sentence."""
    evidence: tuple[str, ...] = ()
    announced: bool = False
    """The goal or the request announced it: it is evidence, not a question."""


class ProofVerdict(StrEnum):
    """What a proof says."""

    PROVEN = "proven"
    ACCEPTED = "accepted"
    """Something speaks against it, and a person accepted the tree as it is."""
    DOUBTED = "doubted"
    """Something speaks against it, and nobody has decided yet."""


class Proof(Value):
    """What was run on a delivered tree, apart from the workspace, and what came of it."""

    version: int = 1
    episode_id: str
    """Of the episode, or of the plan."""
    goal: str = ""
    base_tree: str
    """The tree at the beginning: a git tree id."""
    delivered_tree: str
    beside: str = ""
    """Digest of what lay beside the tree, at the beginning and when it was proven."""
    runs: tuple[ProofRun, ...] = ()
    """As delivered; then with the tests of the beginning, where tests, test data or configuration changed."""
    changed: tuple[ChangedFile, ...] = ()
    """At most `FILES_LIMIT`."""
    changed_count: int = 0
    configuration: tuple[ConfigurationFile, ...] = ()
    """Of the delivered tree, at most `FILES_LIMIT`."""
    verdict: ProofVerdict
    findings: tuple[ProofFinding, ...] = ()
    accepted_by: str = ""
    """Who accepted what was found, where somebody did."""
    not_held: tuple[str, ...] = ()
    """What this proof does not show, a sentence each: limits of the sandbox, checks without a report ..."""
    started: datetime
    ended: datetime

    def proves(self, checks: Sequence[Check], tree: str) -> bool:
        """Return whether it proves these checks on a tree, and nothing that decides what they say had changed."""
        is_clean = self.verdict is ProofVerdict.PROVEN and not self.findings and not self.changed_count
        commands = [[run.run for run in one.checks] for one in self.runs]
        return is_clean and self.delivered_tree == tree and commands == [[check.run for check in checks]]

    @property
    def open_findings(self) -> tuple[ProofFinding, ...]:
        """What was not announced."""
        return tuple(finding for finding in self.findings if not finding.announced)
