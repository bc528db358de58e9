"""The proof of success.

It is stored as one artifact. Histories, results and the status only contain a reference to it.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from tightloop.episode.check import Check, CheckStatus, ProofRule
from tightloop.episode.scenarios import ScenarioResult
from tightloop.run.core import Evidence
from tightloop.safety.approval import Approval
from tightloop.value import ArtifactRef, Value

NAMES_LIMIT = 50
"""Maximum number of test names of each kind in a report. The digest covers all names."""
FILES_LIMIT = 200
"""Maximum number of changed files in a proof. `changed_count` is the total number."""


class TestsFrom(StrEnum):
    """The source of the tests, test data and checker configuration that a run uses."""

    DELIVERED = "delivered"
    BEGINNING = "beginning"
    """The initial versions, combined with the delivered sources."""


class FileKind(StrEnum):
    """The role that a changed file plays in the checks."""

    TEST = "test"
    TEST_DATA = "test_data"
    CONFIGURATION = "configuration"
    """Configuration of a checker, or a program that the definition of done names."""
    START_UP = "start_up"
    """File that is read when an interpreter or a checker starts, or that shadows one of its modules."""
    ENVIRONMENT = "environment"
    """Installed programs and libraries, as in `.venv` and `node_modules`."""


class FileChange(StrEnum):
    """Type of change to a file relative to the initial tree."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class ChangedFile(Value):
    """A changed file that affects the result of the checks."""

    path: str
    """Path relative to the root of the tree."""
    kind: FileKind
    change: FileChange


class ConfigurationFile(Value):
    """A file in the delivered tree that configures a checker."""

    path: str
    sha256: str
    """Digest of the file's content."""


class TestReport(Value):
    """Results of the individual tests of a checker, recorded during its run."""

    checker: str
    """Name of the checker, such as `pytest`, `node` (its own runner), `vitest`, `cargo` or `tap`."""
    is_complete: bool = False
    """True if the checker ended normally and its canary, a test that must fail, did fail."""
    total: int = 0
    """Number of tests with a result, excluding deselected tests."""
    passed: int = 0
    """Number of tests that passed, including expected failures."""
    failed: int = 0
    """Number of tests that failed, including errors."""
    skipped: int = 0
    deselected: int = 0
    names_sha256: str = ""
    """Digest of all test names, sorted, one per line."""
    failed_names: tuple[str, ...] = ()
    """Names of failed tests, at most `NAMES_LIMIT` of them."""
    missing_names: tuple[str, ...] = ()
    """Names of baseline tests that did not pass here, at most `NAMES_LIMIT` of them."""
    missing_count: int = 0
    names: ArtifactRef | None = None
    """All results, one per line, each with the result and the test's name."""


class CheckRun(Value):
    """Result of a check in a run of the definition of done."""

    name: str
    run: str
    """Command from the definition of done."""
    argv: tuple[str, ...] = ()
    """Command line that was started in the sandbox."""
    status: CheckStatus
    exit_code: int | None = None
    duration_s: float = 0.0
    tail: str = ""
    """End of the output, truncated and scrubbed."""
    output: ArtifactRef | None = None
    reports: tuple[TestReport, ...] = ()
    """One report for each known checker that the command ran.

    If there are none, only the exit status is known.
    """
    sandbox: str = ""
    """Name of the sandbox, such as `bubblewrap`."""
    not_enforced: tuple[str, ...] = ()
    """Configured limits that the sandbox could not enforce."""
    watched: bool = False
    """True if all files of the tree that the command opened are known."""

    @property
    def passed(self) -> bool:
        """True if the command exited with 0, or if all failures were already known."""
        return self.status is CheckStatus.PASSED

    @property
    def has_known_failures(self) -> bool:
        """True if the check passed despite known test failures."""
        return self.passed and bool(self.exit_code)


class ProofRun(Value):
    """One run of the definition of done in a clean checkout."""

    tests: TestsFrom
    checks: tuple[CheckRun, ...] = ()
    started: datetime
    ended: datetime

    @property
    def green(self) -> bool:
        """True if there is at least one check and all checks exited with 0."""
        return bool(self.checks) and all(check.passed for check in self.checks)


class ProofFinding(Value):
    """A finding that casts doubt on a proof."""

    rule: ProofRule
    text: str
    """Description of the finding in one sentence."""
    evidence: tuple[str, ...] = ()
    announced: bool = False
    """True if the goal or the request announced the finding, which is then evidence and does not lead to a question."""
    paths: tuple[str, ...] = ()
    """Changed files that the finding concerns. Empty if it concerns all changed files that affect the checks."""
    answered: Approval | None = None
    """Answer that a person has already given about the same change. The finding does not lead to another question."""

    @property
    def is_open(self) -> bool:
        """True if a person has to decide about this finding."""
        return not self.announced and self.answered is None

    @property
    def is_accepted(self) -> bool:
        """True if a person accepted the change but did not request it."""
        return not self.announced and self.answered is not None and not self.answered.asked


class Review(Value):
    """A model's review of a proven change."""

    subject: str = ""
    """Digest of the trees, the goal and the checks that the review refers to."""
    model: str
    doubt: str = ""
    """Reason to doubt that the change solves the task in general. Empty if the model has no doubt."""
    quotes: tuple[str, ...] = ()
    """Lines of the change that the doubt quotes, as `path:number: text`."""
    paths: tuple[str, ...] = ()
    """Changed files that contain these lines."""
    files: int = 0
    """Number of files in the change."""
    unread: int = 0
    """Number of files that the model did not see completely."""
    prompt_sha256: str = ""
    transcript: ArtifactRef | None = None


class ProofVerdict(StrEnum):
    """Verdict of a proof."""

    PROVEN = "proven"
    NOT_PROVEN = "not_proven"
    """There are no findings, but the checks prove nothing: none was seen to fail, or no file changed."""
    ACCEPTED = "accepted"
    """There are findings, and a person accepted the tree."""
    DOUBTED = "doubted"
    """There are findings, and the decision is still open."""


class Proof(Value):
    """Verdict on a delivered tree, with the check runs that support it.

    The checks ran outside the workspace.
    """

    version: int = 1
    episode_id: str
    """Id of the episode or plan."""
    goal: str = ""
    base_tree: str
    """Git id of the initial tree."""
    delivered_tree: str
    beside: str = ""
    """Digest of the ignored files in the working tree, both initially and at the time of the proof."""
    runs: tuple[ProofRun, ...] = ()
    """The run on the tree as delivered.

    If tests, test data or configuration changed, a run with the initial tests follows.
    """
    changed: tuple[ChangedFile, ...] = ()
    """Changed files that affect the checks, at most `FILES_LIMIT` of them."""
    changed_count: int = 0
    announced: tuple[str, ...] = ()
    """Paths of changed files whose change was announced or approved beforehand. Their initial version need not pass."""
    configuration: tuple[ConfigurationFile, ...] = ()
    """Configuration files in the delivered tree, at most `FILES_LIMIT` of them."""
    verdict: ProofVerdict
    findings: tuple[ProofFinding, ...] = ()
    scenarios: ScenarioResult | None = None
    """Result of hidden scenarios, if there are any."""
    review: Review | None = None
    """A model's review of the change, if there was one."""
    evidence: Evidence = Evidence.model_construct()
    """Facts that decide whether passing checks prove anything."""
    accepted_by: str = ""
    """Person who accepted the findings. Empty if nobody did."""
    not_held: tuple[str, ...] = ()
    """Limitations of this proof, such as sandbox limits and checks without a report. Each one is a sentence."""
    started: datetime
    ended: datetime

    def proves(self, checks: Sequence[Check], tree: str) -> bool:
        """Return True if the proof covers these checks on a tree.

        Return False if there are findings or changed check files.
        """
        is_clean = self.verdict is ProofVerdict.PROVEN and not self.findings and not self.changed_count
        # Exactly one run: a second one exists only if tests changed.
        commands = [[run.run for run in proof_run.checks] for proof_run in self.runs]
        return is_clean and self.delivered_tree == tree and commands == [[check.run for check in checks]]

    @property
    def open_findings(self) -> tuple[ProofFinding, ...]:
        """Findings that were neither announced nor answered."""
        return tuple(finding for finding in self.findings if finding.is_open)
