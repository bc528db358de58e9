"""In-toto statement of a proof, readable by other tools and with `jq`.

tightloop defines its own models because the in-toto-attestation package is untyped and stores every number as a float.
The tests check each statement against that package. Sources: in-toto attestation framework v1.1, predicate test-result
v0.1.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from tightloop.client.proof.envelope import read_json
from tightloop.episode.check import CheckStatus, ProofRule
from tightloop.episode.proof import ChangedFile, Proof, ProofFinding, ProofRun, ProofVerdict, TestsFrom
from tightloop.errors import ProofError
from tightloop.run.outcome import Facts, doubts
from tightloop.value import Value, first_problem

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://in-toto.io/attestation/test-result/v0.1"] = (
    "https://in-toto.io/attestation/test-result/v0.1"
)
DEFINITION_OF_DONE = "definition of done"
TESTS_OF_THE_BEGINNING = "original tests, test data and checker configuration"
OLD_TESTS = "with the original tests"
GIT_TREE = "gitTree"
MOST_DESCRIPTORS = 500
"""Maximum number of descriptors, because each one is looked up in the repository. A proof names at most 200 files."""

_Tree = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]


class Result(StrEnum):
    """Overall `result` of test-result v0.1."""

    PASSED = "PASSED"
    WARNED = "WARNED"
    """Tests pass, but there were findings that were announced (before or afterwards) or accepted by a person."""
    FAILED = "FAILED"


class _Part(Value):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Descriptor(_Part):
    """An in-toto ResourceDescriptor with a name and a digest."""

    name: str = ""
    digest: dict[str, str] = Field(default_factory=dict)


class ReportDetails(_Part):
    """Test counts from a checker's report."""

    checker: str
    complete: bool = False
    total: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    deselected: int = 0
    missing: int = 0
    """Number of baseline tests that did not pass here."""
    names_sha256: str = ""
    """Digest of all test names, sorted and written one per line."""


class CheckDetails(_Part):
    """The result of one definition-of-done command in one run."""

    name: str = ""
    run: str
    status: CheckStatus
    exit_code: int | None = None
    seconds: float = 0.0
    reports: tuple[ReportDetails, ...] = ()
    sandbox: str = ""
    not_enforced: tuple[str, ...] = ()
    """Sandbox limits that were not enforced."""
    watched: bool = False
    """True if all files of the tree that the command opened are known."""


class RunDetails(_Part):
    """One run of the definition of done in a fresh checkout."""

    tests: TestsFrom
    checks: tuple[CheckDetails, ...] = ()
    started_at: datetime
    ended_at: datetime

    @property
    def green(self) -> bool:
        """True if there is at least one check and all passed."""
        return bool(self.checks) and all(check.status is CheckStatus.PASSED for check in self.checks)


class FindingDetails(_Part):
    """A finding that counts against the proof."""

    rule: ProofRule
    text: str = ""
    announced: bool = False
    asked_by: str = ""
    """Person who said afterwards that they had asked for the change."""
    asked_at: datetime | None = None


class ScenarioDetails(_Part):
    """The result of the hidden scenarios in a proof."""

    sha256: str = Field(pattern=r"^([0-9a-f]{64})?$")
    """Digest of the scenarios and a salt, so that it does not reveal them."""
    total: int = Field(ge=0)
    passed: int = Field(ge=0)
    failed_before: int = Field(default=0, ge=0)
    """Number of passed scenarios that failed on the initial tree."""
    drafted: int = Field(default=0, ge=0)
    """Number of scenarios that were drafted by a model."""
    drafts_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Digest of the drafted scenarios and a salt."""
    changes: tuple[str, ...] = ()
    """Amendments made by the owner of the scenarios, oldest first."""

    @property
    def digests(self) -> str:
        """Short digests of the owner's scenarios and the drafted scenarios."""
        return ", ".join(digest[:12] for digest in (self.sha256, self.drafts_sha256) if digest)


class ReviewDetails(_Part):
    """A model's review of the change. Each doubt is reported as a finding."""

    model: str
    files: int = Field(default=0, ge=0)
    """Number of files in the change."""
    unread: int = Field(default=0, ge=0)
    """Number of files that the model did not see completely."""


class Details(_Part):
    """The fields that tightloop adds to the test-result v0.1 predicate."""

    version: Literal[1] = 1
    episode: str
    verdict: ProofVerdict
    accepted_by: str = ""
    base_tree: str
    """Initial tree."""
    runs: tuple[RunDetails, ...]
    changed: tuple[ChangedFile, ...] = ()
    """Changed tests, test data and configuration. `changed_count` is the total number."""
    changed_count: int = 0
    announced: tuple[str, ...] = ()
    """Paths of changed files whose change was announced or approved beforehand. Their initial version need not pass."""
    findings: tuple[FindingDetails, ...] = ()
    scenarios: ScenarioDetails | None = None
    review: ReviewDetails | None = None
    files_changed: int | None = None
    """Number of files that differ from the initial tree."""
    seen_to_fail: bool = True
    """True if at least one check failed before it passed."""
    worked: bool = True
    """True if an executor changed a file."""
    flaky: tuple[str, ...] = ()
    """Checks that failed once and passed when they were repeated without a change."""
    asked: tuple[str, ...] = ()
    """Changes that a person announced only after the fact: sentences with the person, the files and the time."""
    not_held: tuple[str, ...] = ()
    """Properties that the proof does not establish."""
    started_at: datetime
    ended_at: datetime

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why the passing checks are not a proof."""
        facts = Facts(
            seen_to_fail=self.seen_to_fail, worked=self.worked, flaky=self.flaky, files_changed=self.files_changed
        )
        return doubts(facts)


class TestResult(_Part):
    """The predicate of the statement in the test-result v0.1 format."""

    result: Result
    configuration: tuple[Descriptor, ...] = Field(max_length=MOST_DESCRIPTORS)
    passed_tests: tuple[str, ...] = ()
    warned_tests: tuple[str, ...] = ()
    failed_tests: tuple[str, ...] = ()
    tightloop: Details
    """Extension field. The specification requires a unique name without a dot."""


class _SubjectDigest(_Part):
    git_tree: _Tree


class Subject(_Part):
    """The subject of the statement: the tree that was tested."""

    name: str = ""
    digest: _SubjectDigest


class Statement(_Part):
    """In-toto Statement v1."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1)
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"]
    predicate: TestResult

    @property
    def content(self) -> bytes:
        """Signed bytes. Equal statements have equal bytes."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, indent=1).encode()

    @property
    def tree(self) -> str:
        """Git tree of the subject."""
        return self.subject[0].digest.git_tree

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands in the definition of done."""
        # The first run is the one on the delivered tree; `read_statement` checks that.
        return tuple(check.run for check in self.predicate.tightloop.runs[0].checks)

    @property
    def configuration_files(self) -> Iterator[tuple[str, str]]:
        """Path and SHA-256 digest of each configuration file in the tree."""
        for descriptor in self.predicate.configuration:
            if descriptor.name != DEFINITION_OF_DONE and "sha256" in descriptor.digest:
                yield descriptor.name, descriptor.digest["sha256"]


def digest_of_commands(commands: tuple[str, ...]) -> str:
    """Return the SHA-256 digest of a definition of done.

    The digest is calculated from the commands as a JSON list.
    """
    return hashlib.sha256(json.dumps(commands, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def statement_of(proof: Proof) -> Statement:
    """Return the statement of a proof. The statement does not contain any output or the goal."""
    commands = tuple(check.run for check in proof.runs[0].checks) if proof.runs else ()
    files = [Descriptor(name=file.path, digest={"sha256": file.sha256}) for file in proof.configuration]
    old = Descriptor(name=TESTS_OF_THE_BEGINNING, digest={GIT_TREE: proof.base_tree})
    definition = Descriptor(name=DEFINITION_OF_DONE, digest={"sha256": digest_of_commands(commands)})
    passed, failed = _names(proof, passed=True), _names(proof, passed=False)
    result = _result(proof)
    return Statement(
        _type=STATEMENT_TYPE,
        subject=(Subject(name="tree", digest=_SubjectDigest(git_tree=proof.delivered_tree)),),
        predicate_type=PREDICATE_TYPE,
        predicate=TestResult(
            result=result,
            configuration=(definition, old, *files),
            passed_tests=passed,
            # A passed test-result has no failed tests: accepted failures are warnings.
            warned_tests=() if result is Result.FAILED else failed,
            failed_tests=failed if result is Result.FAILED else (),
            tightloop=_details(proof),
        ),
    )


def read_statement(content: bytes) -> Statement:
    """Parse the payload of a proof and check that it is consistent.

    Raises:
        ProofError: the statement is invalid or inconsistent. The message describes the first problem.
    """
    document: Any = read_json(content, "the statement in the proof")
    try:
        statement = Statement.model_validate(document)
    except ValidationError as error:
        raise ProofError(f"the proof is not a valid tightloop test result: {first_problem(error)}") from None
    for problem in _contradictions(statement):
        raise ProofError(f"the statement in the proof contradicts itself: {problem}")
    return statement


def _contradictions(statement: Statement) -> Iterator[str]:
    predicate, details = statement.predicate, statement.predicate.tightloop
    if not details.runs or not details.runs[0].checks or details.runs[0].tests is not TestsFrom.DELIVERED:
        yield "the proof contains no run of the definition of done on the delivered tree"
        return
    digests = [
        descriptor.digest.get("sha256")
        for descriptor in predicate.configuration
        if descriptor.name == DEFINITION_OF_DONE
    ]
    if digests != [digest_of_commands(statement.commands)]:
        yield "the digest of the definition of done does not match its commands"
    if predicate.result is not Result.FAILED:
        if predicate.failed_tests:
            yield f"its result is {predicate.result.value}, but tests failed"
        if not details.runs[0].green:
            yield f"its result is {predicate.result.value}, but a command of the definition of done failed"
        if details.verdict is ProofVerdict.PROVEN and details.doubts:
            yield f"its verdict is {details.verdict.value}, but {', '.join(details.doubts)}"
        if details.scenarios and details.scenarios.passed != details.scenarios.total and not details.findings:
            yield f"its result is {predicate.result.value}, but hidden scenarios failed"
        if details.verdict is ProofVerdict.DOUBTED:
            yield f"its result is {predicate.result.value}, but its verdict is {details.verdict.value}"
    if predicate.result is Result.PASSED and (
        predicate.warned_tests
        or details.findings
        or details.asked
        or details.verdict is not ProofVerdict.PROVEN
        or not all(run.green for run in details.runs)
    ):
        yield "its result is PASSED despite warnings, findings or failures"


def _result(proof: Proof) -> Result:
    if proof.verdict is ProofVerdict.DOUBTED or not proof.runs or not proof.runs[0].green:
        return Result.FAILED
    is_proven = proof.verdict is ProofVerdict.PROVEN and all(run.green for run in proof.runs)
    return Result.PASSED if is_proven and not (proof.findings or proof.evidence.asked) else Result.WARNED


def _names(proof: Proof, *, passed: bool) -> tuple[str, ...]:
    return tuple(
        check.run if run.tests is TestsFrom.DELIVERED else f"{check.run} ({OLD_TESTS})"
        for run in proof.runs
        for check in run.checks
        if check.passed == passed
    )


def _details(proof: Proof) -> Details:
    return Details(
        episode=proof.episode_id,
        verdict=proof.verdict,
        accepted_by=proof.accepted_by,
        base_tree=proof.base_tree,
        runs=tuple(map(_run, proof.runs)),
        changed=proof.changed,
        changed_count=proof.changed_count,
        announced=proof.announced,
        findings=tuple(map(_finding, proof.findings)),
        scenarios=ScenarioDetails.of(
            proof.scenarios, sha256=proof.scenarios.digest, drafts_sha256=proof.scenarios.drafts_digest
        )
        if proof.scenarios
        else None,
        review=ReviewDetails.of(proof.review) if proof.review else None,
        files_changed=proof.evidence.files_changed,
        seen_to_fail=proof.evidence.seen_to_fail,
        worked=proof.evidence.worked,
        flaky=proof.evidence.flaky,
        asked=proof.evidence.asked,
        not_held=proof.not_held,
        started_at=proof.started,
        ended_at=proof.ended,
    )


def _finding(finding: ProofFinding) -> FindingDetails:
    asked = finding.answered if finding.answered is not None and finding.answered.asked else None
    return FindingDetails.of(finding, asked_by=asked.by if asked else "", asked_at=asked.at if asked else None)


def _run(run: ProofRun) -> RunDetails:
    checks = tuple(
        CheckDetails.of(
            check,
            seconds=check.duration_s,
            reports=tuple(
                ReportDetails.of(report, complete=report.is_complete, missing=report.missing_count)
                for report in check.reports
            ),
        )
        for check in run.checks
    )
    return RunDetails(tests=run.tests, checks=checks, started_at=run.started, ended_at=run.ended)
