"""Findings and verdict of a proof."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tightloop.episode.check import Check, ProofRule
from tightloop.episode.proof import (
    FILES_LIMIT,
    ChangedFile,
    CheckRun,
    FileChange,
    FileKind,
    Proof,
    ProofFinding,
    ProofRun,
    ProofVerdict,
    Review,
    TestReport,
    TestsFrom,
)
from tightloop.episode.proof.files import DATA
from tightloop.episode.proof.kept_tests import KeptTests
from tightloop.episode.proof.report import FAILED, PASSED, SKIPPED, CheckBaseline, InitialState, Observation, missing
from tightloop.episode.scenarios import ScenarioResult
from tightloop.run.core import Evidence
from tightloop.run.outcome import Facts, doubts
from tightloop.safety.announcement import RequestedChanges
from tightloop.safety.approval import Approval
from tightloop.value import format_count, shorten

SHOWN = 6
TAIL_LINES = 4
_KNOWN = {name: re.compile(pattern) for name, pattern in DATA["known_checkers"].items()}
# The observer is loaded as sitecustomize from PYTHONPATH, which -I, -E and -S turn off.
_UNOBSERVED = re.compile(r"python[\d.]*\s+(?:-\w+\s+)*-[a-zA-Z]*[IES]")
_RUN_BY_TESTS = (FileKind.TEST, FileKind.TEST_DATA, FileKind.START_UP)
_NO_TESTS = frozenset({4, 5})
"""Exit statuses that pytest uses if it finds no tests or cannot find the given folder."""


class ObservedRun(NamedTuple):
    """Run of the checks, with an observation for each check."""

    run: ProofRun
    observations: tuple[Observation, ...]
    flaky: tuple[str, ...] = ()
    """Checks that failed and passed when they were repeated."""

    def observation_of(self, command: str) -> Observation:
        """Return the observation of a passed check. For any other check, return an empty observation."""
        pairs = zip(self.run.checks, self.observations, strict=True)
        return next((seen for check, seen in pairs if check.run == command and check.passed), Observation())


class SourceChanges(NamedTuple):
    """Observations about the changed source files."""

    files: frozenset[str] = frozenset()
    """Changed files that do not belong to the checks."""
    peeks: tuple[str, ...] = ()
    """Tests and test data that these sources read now but did not read initially, one line each."""
    inner_tests: Mapping[str, tuple[str, ...]] = {}
    """For each of these sources, the tests that it contained initially but no longer contains."""


class Changes(NamedTuple):
    """Changes since the start of the episode that are relevant to the proof."""

    restored: tuple[ChangedFile, ...] = ()
    """Files that the second run restored to their initial version."""
    unannounced: tuple[str, ...] = ()
    """Restored files whose changes the goal does not announce."""
    covered: tuple[str, ...] = ()
    """Other files that decide a check and whose changes were announced or approved beforehand."""
    requested: RequestedChanges = RequestedChanges()
    tests: KeptTests = KeptTests()
    """Comparison of the tests based on their assertions."""
    environment: tuple[str, ...] = ()
    """Changes to installed files, one line each."""
    suspicious: tuple[str, ...] = ()
    """Added lines that could make any check pass."""
    swallowed: tuple[str, ...] = ()
    """New handlers that ignore every error of existing code."""
    broken: tuple[str, ...] = ()
    """Sources that were emptied or can no longer be parsed."""
    suppressed: tuple[str, ...] = ()
    """Added suppressions without which a check fails."""
    copied: tuple[str, ...] = ()
    """Files and hunks that also appear in a later commit or in an installed package."""
    empty_tests: tuple[str, ...] = ()
    """New tests that also pass if the product does nothing."""
    unrepeatable: tuple[str, ...] = ()
    """Original tests that pass but fail when they run again in the same process."""
    left_out: tuple[str, ...] = ()
    """New files in the working tree that are excluded from the proof."""
    sources: SourceChanges = SourceChanges()
    inspections: frozenset[str] = frozenset()
    """Commands that only inspect the text of a file that decides another check."""
    named_tests: bool = False
    """True if the goal names each test file that changed or disappeared."""
    answered: Mapping[str, Approval] = MappingProxyType({})
    """Answers of people who were already asked about the changes to these files."""

    @property
    def announced(self) -> bool:
        """True if the goal announces the changes to all restored files."""
        return bool(self.restored) and not self.unannounced

    @property
    def answer(self) -> Approval | None:
        """A person's answer about the restored files that the goal does not mention.

        None if at least one of these files has no answer.
        """
        return self.answer_for(self.unannounced)

    def answer_for(self, paths: Iterable[str]) -> Approval | None:
        """Return the weakest answer for the files.

        Return None if a file has no answer or if there are no files.
        """
        return weakest_answer(self.answered, paths)


def weakest_answer(answered: Mapping[str, Approval], paths: Iterable[str]) -> Approval | None:
    """Return the weakest answer for the files.

    Return None if a file has no answer or if there are no files.
    """
    answers = [answered.get(path) for path in paths]
    if not answers or None in answers:
        return None
    return min(filter(None, answers), key=lambda answer: answer.asked)


def known_checkers(command: str) -> tuple[str, ...]:
    """Return the known checkers that a command names.

    The result is empty if the command prevents Python from being observed.
    """
    if _UNOBSERVED.search(command):
        return ()
    return tuple(name for name, pattern in _KNOWN.items() if pattern.search(command))


def is_kept(file: ChangedFile, commands: Sequence[str]) -> bool:
    """Return True if an added file is kept in the second run.

    A file is kept if a command needs it in order to start.
    """
    if file.change is not FileChange.ADDED:
        return False
    name = file.path.rpartition("/")[2]
    tools = [tool for tool, names in DATA["entry_files"].items() if name in names]
    tokens = {token.removeprefix("./") for command in commands for token in re.split(r"[\s;&|()='\"]+", command)}
    return file.path in tokens or any(tool in tokens for tool in tools)


def checks_without_tests(measured_run: ObservedRun, beginning: InitialState, changes: Changes) -> tuple[str, ...]:
    """Return the commands that had no tests initially.

    For these commands, a run with the initial tests is meaningless.
    """
    return tuple(
        check.run
        for check, observation in zip(measured_run.run.checks, measured_run.observations, strict=True)
        if measured_run.run.tests is TestsFrom.BEGINNING
        and not check.passed
        and _had_no_tests(check, observation, beginning.check(check.run), changes)
    )


def findings_of(
    measured: Sequence[ObservedRun],
    beginning: InitialState,
    changes: Changes,
    allowed: Sequence[ProofRule] = (),
) -> tuple[ProofFinding, ...]:
    """Return the findings that cast doubt on the runs, most severe first.

    Findings that the goal announces are marked.
    """
    original = next((item for item in measured if item.run.tests is TestsFrom.BEGINNING), None)
    originals_pass = any(item.run.tests is TestsFrom.BEGINNING and item.run.green for item in measured)
    changes = changes._replace(named_tests=changes.named_tests and originals_pass)
    findings = [finding for item in measured for finding in _of_run(item, beginning, changes, original)]
    if changes.environment:
        count = len(changes.environment)
        text = f"{format_count(count, 'installed file')} changed during the episode"
        findings.append(
            ProofFinding(rule=ProofRule.ENVIRONMENT_CHANGED, text=text, evidence=changes.environment[:SHOWN])
        )
    if changes.suspicious:
        text = "the change contains lines that can make any check pass"
        findings.append(_of_lines(ProofRule.SUSPICIOUS, text, changes.suspicious, changes))
    if changes.sources.peeks:
        text = "the product reads the values that the tests compare with"
        findings.append(_of_lines(ProofRule.SUSPICIOUS, text, changes.sources.peeks, changes))
    if changes.unrepeatable:
        again = format_count(len(changes.unrepeatable), "test")
        text = f"{again} passed once, but failed when the tests ran again in the same process"
        findings.append(ProofFinding(rule=ProofRule.SUSPICIOUS, text=text, evidence=changes.unrepeatable[:SHOWN]))
    findings += [
        ProofFinding(
            rule=ProofRule.TESTS_CHANGED,
            text=f"{format_count(len(tests), 'test')} inside {path} changed or disappeared",
            evidence=tests[:SHOWN],
            announced=changes.requested.covers(path),
            answered=changes.answer_for((path,)),
            paths=(path,),
        )
        for path, tests in changes.sources.inner_tests.items()
    ]
    findings += _of_weakening(changes)
    marked = (finding.evolve(announced=finding.announced or finding.rule in allowed) for finding in findings)
    # Drop findings that the second run repeats for the same check.
    return tuple({(finding.rule, finding.text): finding for finding in marked}.values())


def _of_lines(rule: ProofRule, text: str, lines: tuple[str, ...], changes: Changes) -> ProofFinding:
    """Return a finding about the given lines, each of which begins with `path:`."""
    paths = tuple(dict.fromkeys(line.partition(":")[0] for line in lines))
    return ProofFinding(
        rule=rule,
        text=text,
        evidence=lines[:SHOWN],
        answered=changes.answer_for(paths),
        paths=paths[:FILES_LIMIT],
    )


def _of_weakening(changes: Changes) -> Iterator[ProofFinding]:
    kinds = (
        (ProofRule.ERRORS_SWALLOWED, changes.swallowed, "code that could fail now ignores all errors"),
        (ProofRule.SOURCE_BROKEN, changes.broken, "a source file was emptied or can no longer be parsed"),
        (ProofRule.CHECKS_SUPPRESSED, changes.suppressed, "a check fails when the added suppressions are removed"),
        (ProofRule.COPIED, changes.copied, "the change copies a later commit or an installed package"),
        (
            ProofRule.EMPTY_TESTS,
            changes.empty_tests,
            f"{format_count(len(changes.empty_tests), 'new test')} also passed when every function did nothing",
        ),
    )
    for rule, lines, text in kinds:
        if lines:
            yield _of_lines(rule, text, lines, changes)


def _of_run(
    measured_run: ObservedRun, beginning: InitialState, changes: Changes, original: ObservedRun | None
) -> Iterator[ProofFinding]:
    is_delivered = measured_run.run.tests is TestsFrom.DELIVERED
    for check, observation in zip(measured_run.run.checks, measured_run.observations, strict=True):
        before = beginning.check(check.run)
        if not check.passed:
            if is_delivered:
                text = f"{check.name}: fails in a fresh checkout"
                left = [f"not in the checkout: {path}" for path in changes.left_out[:SHOWN]]
                yield ProofFinding(rule=ProofRule.FAILS_FRESH, text=text, evidence=(*_why(check, observation), *left))
            elif check.run in changes.inspections and before is not None and not before.passed:
                continue
            elif not (
                _lacks_new_tests_only(observation, before, changes)
                or _had_no_tests(check, observation, before, changes)
            ):
                text = f"{check.name}: fails with the original tests and configuration"
                yield ProofFinding(
                    rule=_rule(changes),
                    text=text,
                    evidence=(
                        *_why(check, observation),
                        *changes.tests.lost[:SHOWN],
                        *map(_line, changes.restored[:SHOWN]),
                    ),
                    announced=changes.announced,
                    answered=changes.answer,
                )
            continue
        with_original = original.observation_of(check.run) if original else Observation()
        yield from _of_reports(check, observation, before, changes, with_original)
        yield from _of_ends(check, observation, before)
        if is_delivered:
            yield from _of_sources(check, observation, before, changes.sources.files)


def _of_reports(
    check: CheckRun,
    observation: Observation,
    before: CheckBaseline | None,
    changes: Changes,
    with_original: Observation,
) -> Iterator[ProofFinding]:
    reports = {report.checker: report for report in observation.reports}
    expected = before.observation.checkers if before else ()
    # If a command failed before it reached its checker, its words determine the expected one.
    if not expected and not (before and before.passed):
        expected = known_checkers(check.run)
    for checker in dict.fromkeys((*expected, *reports)):
        report, old = reports.get(checker), _report(before, checker)
        if report is None or not report.is_complete:
            what = "did not start" if report is None else "did not finish normally"
            text = f"{check.name}: the command exited with 0, but {checker} {what}"
            yield ProofFinding(rule=ProofRule.NO_REPORT, text=text, evidence=_counts(old, report))
            continue
        # If the check did this from the start, the work of the episode did not cause it.
        was_so = old is not None and before is not None and before.passed
        if report.passed == 0 and not (was_so and old is not None and old.passed == 0):
            text = f"{check.name}: no {checker} test passed, although the command exited with 0"
            yield ProofFinding(rule=ProofRule.NOTHING_PASSED, text=text, evidence=_counts(old, report))
        elif report.failed and not (check.has_known_failures or (was_so and old is not None and old.failed)):
            text = f"{check.name}: the command exited with 0, but {format_count(report.failed, 'test')} failed"
            evidence = (*report.failed_names[:SHOWN], *_counts(old, report))
            yield ProofFinding(rule=ProofRule.REPORT_DIFFERS, text=text, evidence=evidence)
        tests_before = before.observation.results.get(checker, {}) if before else {}
        results, may_stay = observation.results[checker], check.has_known_failures
        absent = missing(tests_before, results, failures_may_stay=may_stay)
        unexplained, released = changes.tests.explain(absent, tests_before, results)
        if _count_passed(results) >= sum(result != SKIPPED for result in tests_before.values()):
            # At least as many tests pass as ran before: missing tests that the delivered sources still pass were
            # replaced by others.
            unexplained = missing(dict.fromkeys(unexplained, PASSED), with_original.results.get(checker, {}))
        if missing_tests := unexplained or released:
            count = format_count(len(missing_tests), "original test")
            text = f"{check.name}: {count} disappeared, did not run or did not pass"
            evidence = (*(shorten(name, 200) for name in missing_tests[:SHOWN]), *_counts(old, report))
            evidence = (*evidence, *changes.tests.lost[:SHOWN], *map(_line, changes.restored[:SHOWN]))
            # pytest's names begin with the file of the test.
            files = {name.partition("::")[0] for name in missing_tests}
            yield ProofFinding(
                rule=ProofRule.TESTS_CHANGED,
                text=text,
                evidence=evidence,
                announced=changes.announced or not unexplained or _keeps_count(changes, tests_before, results),
                answered=changes.answer or changes.answer_for(files),
            )


def _keeps_count(changes: Changes, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return True if the goal explains why tests are missing and enough tests pass.

    The goal must name the files of the missing tests. The number of passing tests must be at least the
    number of tests that ran before.
    """
    expected = sum(result != SKIPPED for result in before.values())
    return changes.named_tests and sum(result == PASSED for result in now.values()) >= expected


def _count_passed(results: Mapping[str, str]) -> int:
    return sum(result == PASSED for result in results.values())


def _of_ends(check: CheckRun, observation: Observation, before: CheckBaseline | None) -> Iterator[ProofFinding]:
    old = before.observation if before else Observation()
    if observation.denied and not old.denied:
        text = f"{check.name}: tests raised an error and were reported as passed"
        yield ProofFinding(rule=ProofRule.REPORT_DIFFERS, text=text, evidence=observation.denied[:SHOWN])
    cut_short = tuple(command for command in observation.cut_short if command not in old.cut_short)
    if cut_short:
        text = f"{check.name}: a program exited with 0 before its normal end"
        yield ProofFinding(rule=ProofRule.ENDED_EARLY, text=text, evidence=cut_short[:SHOWN])
    exits = tuple(location for location in observation.early_exits if location not in old.early_exits)
    if exits:
        text = f"{check.name}: a module exited the program that uses it, with status 0"
        yield ProofFinding(rule=ProofRule.ENDED_EARLY, text=text, evidence=exits[:SHOWN])


def _of_sources(
    check: CheckRun, observation: Observation, before: CheckBaseline | None, sources: frozenset[str]
) -> Iterator[ProofFinding]:
    """Yield the findings about changed sources that interfere with the check."""
    old = before.observation if before else Observation()
    replaced = {name: file for name, file in observation.replaced.items() if file in sources}
    if names := tuple(f"{name}: {file}" for name, file in replaced.items() if old.replaced.get(name) != file):
        text = (
            f"{check.name}: {format_count(len(names), 'test')} ran a function of the product instead of a function "
            "of the test"
        )
        yield ProofFinding(rule=ProofRule.SUSPICIOUS, text=text, evidence=names[:SHOWN])
    for text, now, then in (
        ("the product replaced functions that are not its own", observation.patched, old.patched),
        ("the product looked for variables of the test runner", observation.looked, old.looked),
    ):
        # Node does not tell which file it was.
        lines = tuple(line for line in now if line not in then and line.partition(": ")[0] in {"", *sources})
        if lines:
            evidence = tuple(line.removeprefix(": ") for line in lines[:SHOWN])
            yield ProofFinding(rule=ProofRule.SUSPICIOUS, text=f"{check.name}: {text}", evidence=evidence)


def _lacks_new_tests_only(observation: Observation, before: CheckBaseline | None, changes: Changes) -> bool:
    """Return True if a check fails only because new tests are missing.

    All original tests must pass. The second run lacks the new tests, their fixtures, or the start-up file
    that loads the tested code.
    """
    if before is None or not before.observation.checkers:
        return False
    results = [(name, result) for tests in observation.results.values() for name, result in tests.items()]
    old_names = {name for tests in before.observation.results.values() for name in tests}
    failed = [name for name, result in results if result == FAILED]
    lacks_tests = all(file.change is FileChange.ADDED and file.kind is FileKind.TEST for file in changes.restored)
    # Not with other configuration files: these may contain other requirements of the check, such as a minimum coverage.
    lacks_start_up = bool(failed) and all(file.kind in _RUN_BY_TESTS for file in changes.restored)
    return (lacks_tests or (lacks_start_up and old_names.isdisjoint(failed))) and all(
        observation.complete.get(checker)
        and any(result == PASSED for result in observation.results[checker].values())
        and not missing(before.observation.results.get(checker, {}), observation.results[checker])
        for checker in before.observation.checkers
    )


def _had_no_tests(check: CheckRun, observation: Observation, before: CheckBaseline | None, changes: Changes) -> bool:
    """Return True if there were initially no tests, so that the change added all of them."""
    return (
        before is not None
        and check.exit_code == before.exit_code
        and check.exit_code in _NO_TESTS
        and "pytest" in (*observation.checkers, *known_checkers(check.run))
        and not any(before.observation.results.values())
        and all(file.kind in (FileKind.TEST, FileKind.TEST_DATA) for file in changes.restored)
    )


def _rule(changes: Changes) -> ProofRule:
    is_of_tests = any(file.kind in (FileKind.TEST, FileKind.TEST_DATA) for file in changes.restored)
    return ProofRule.TESTS_CHANGED if is_of_tests else ProofRule.CONFIGURATION_CHANGED


def _report(before: CheckBaseline | None, checker: str) -> TestReport | None:
    reports = before.observation.reports if before else ()
    return next((report for report in reports if report.checker == checker), None)


def _counts(old: TestReport | None, new: TestReport | None) -> tuple[str, ...]:
    def text(report: TestReport) -> str:
        parts = {"passed": report.passed, "failed": report.failed, "skipped": report.skipped}
        parts["deselected"] = report.deselected
        return ", ".join(f"{count} {label}" for label, count in parts.items() if count or label == "passed")

    before = "at the start: " + (text(old) if old else "no report")
    return (before, "in the proof: " + (text(new) if new else "no report"))


def _why(check: CheckRun, observation: Observation) -> tuple[str, ...]:
    names = [name for report in observation.reports for name in report.failed_names[:SHOWN]]
    lines = [line for line in check.tail.splitlines() if line.strip()][-TAIL_LINES:]
    end = f"exit {check.exit_code}" if check.exit_code is not None else check.status.value.replace("_", " ")
    return (*names, *lines, end)


def _line(file: ChangedFile) -> str:
    return f"{file.change.value} {file.kind.value.replace('_', ' ')}: {file.path}"


def verdict_of(findings: Sequence[ProofFinding], *, proves: bool = True) -> ProofVerdict:
    """Return the verdict for a proof.

    Announced findings do not affect the verdict, and neither do changes that a person requested later.

    Args:
        findings: findings in the delivered tree.
        proves: True if a check was seen to fail and files changed. Otherwise, passing checks prove
            nothing.
    """
    if any(finding.is_open for finding in findings):
        return ProofVerdict.DOUBTED
    if any(finding.is_accepted for finding in findings):
        return ProofVerdict.ACCEPTED
    return ProofVerdict.PROVEN if proves else ProofVerdict.NOT_PROVEN


def with_acceptance(evidence: Evidence, findings: Sequence[ProofFinding]) -> Evidence:
    """Record the person who accepted a change without having requested it.

    The evidence is returned unchanged if no finding was accepted.
    """
    passed = next((finding for finding in findings if finding.is_accepted), None)
    if passed is None or passed.answered is None:
        return evidence
    return evidence.evolve(accepted_by=passed.answered.by, finding=passed.text)


def add_scenarios(proof: Proof, result: ScenarioResult, allowed: Sequence[ProofRule] = ()) -> Proof:
    """Add the result of hidden scenarios to a proof. This may change the verdict."""
    findings = proof.findings
    if result.failed:
        announced = ProofRule.SCENARIOS_FAILED in allowed
        finding = ProofFinding(rule=ProofRule.SCENARIOS_FAILED, text=result.title, announced=announced)
        findings = (*findings, finding)
    seen_to_fail = proof.evidence.seen_to_fail or result.failed_before > 0
    evidence = proof.evidence.evolve(seen_to_fail=seen_to_fail, scenarios=result.passed, drafted=result.drafted_passed)
    verdict = verdict_of(findings, proves=not doubts(Facts(**dict(evidence))))
    not_held = proof.not_held
    if result.total and any(check.sandbox == "unsafe-local" for run in proof.runs for check in run.checks):
        not_held = (*not_held, "agents could have read the hidden scenarios, because there was no sandbox")
    return proof.evolve(scenarios=result, findings=findings, evidence=evidence, verdict=verdict, not_held=not_held)


def add_review(
    proof: Proof,
    review: Review,
    allowed: Sequence[ProofRule] = (),
    answered: Mapping[str, Approval] = MappingProxyType({}),
) -> Proof:
    """Add a model's review to a proof. A doubt becomes a finding, and an approval changes nothing.

    Args:
        proof: proof with the verdict `PROVEN`.
        review: the model's review of the change.
        allowed: findings to accept without asking.
        answered: answers that people have already given about changed files, by path.
    """
    proof = proof.evolve(review=review)
    if not review.doubt:
        return proof
    finding = ProofFinding(
        rule=ProofRule.REVIEWER_DOUBTS,
        text=f"the reviewer doubts that the change works in general: {review.doubt}",
        evidence=review.quotes,
        announced=ProofRule.REVIEWER_DOUBTS in allowed,
        answered=weakest_answer(answered, review.paths),
        paths=review.paths,
    )
    findings = (*proof.findings, finding)
    verdict, evidence = verdict_of(findings), with_acceptance(proof.evidence, findings)
    return proof.evolve(findings=findings, verdict=verdict, evidence=evidence, accepted_by=evidence.accepted_by)


def evidence_lines(proof: Proof) -> tuple[str, ...]:
    """Format the open findings of a proof and their evidence as lines of text."""
    lines: list[str] = []
    for finding in proof.open_findings:
        lines += [f"{finding.rule.value}: {finding.text}", *(f"  {line}" for line in finding.evidence)]
    return tuple(lines)


_OF_GUARDED_FILES = frozenset({ProofRule.TESTS_CHANGED, ProofRule.CONFIGURATION_CHANGED})


def changed_paths(proof: Proof) -> tuple[str, ...]:
    """Return the files that the open findings are about.

    The result is empty if one of the findings is not about changed files.
    """
    paths: dict[str, None] = {}
    for finding in proof.open_findings:
        guarded = tuple(file.path for file in proof.changed) if finding.rule in _OF_GUARDED_FILES else ()
        about = finding.paths or guarded
        if not about:
            return ()
        paths |= dict.fromkeys(about)
    return tuple(paths)


def answer_proof(proof: Proof, *, by: str, asked_for: Approval | None) -> Proof:
    """Record a person's answer to the open findings of a proof.

    Args:
        proof: proof with open findings.
        by: person who answered.
        asked_for: set if the person requested the change. Otherwise, the person accepts the tree despite
            the findings.
    """
    if asked_for is None:
        finding = next((finding.text for finding in proof.open_findings), "")
        evidence = proof.evidence.evolve(accepted_by=by, finding=finding)
        return proof.evolve(verdict=ProofVerdict.ACCEPTED, accepted_by=by, evidence=evidence)
    findings = tuple(finding.evolve(answered=asked_for) if finding.is_open else finding for finding in proof.findings)
    evidence = proof.evidence.evolve(asked=tuple(dict.fromkeys((*proof.evidence.asked, asked_for.sentence))))
    verdict = verdict_of(findings, proves=not doubts(Facts(**dict(evidence))))
    return proof.evolve(findings=findings, evidence=evidence, verdict=verdict)


SHARED_PROCESS = (
    "the code under test could deceive its test runner, because all runners except node --test share a process with "
    "that code"
)
NO_TESTS = "there were no tests at the start, so all passing tests were added with the work"


def not_held(
    measured: Sequence[ObservedRun], beginning: InitialState, left_out: Sequence[str], checks: Iterable[Check]
) -> tuple[str, ...]:
    """Return the limitations of a proof, one sentence each."""
    lines: list[str] = []
    runs = [check for measured_run in measured for check in measured_run.run.checks]
    for sandbox in dict.fromkeys(check.sandbox for check in runs if check.not_enforced):
        limits = dict.fromkeys(limit for check in runs if check.sandbox == sandbox for limit in check.not_enforced)
        lines.append(f"the sandbox {sandbox} did not enforce these limits: {', '.join(limits)}")
    for sandbox in dict.fromkeys(check.sandbox for check in runs):
        if sandbox in ("sandbox-exec", "unsafe-local"):
            lines.append(
                f"{sandbox} has no mounts, so installed programs can be changed and can see the workspace path"
            )
    unknown = dict.fromkeys(check.run for check in runs if not check.watched)
    lines += [
        f"{shorten(run, 100)}: it is unknown which files this command opened, so the names of files decide whether "
        "they count as tests or configuration"
        for run in unknown
    ]
    flaky = dict.fromkeys(name for measured_run in measured for name in measured_run.flaky)
    lines += [f"{shorten(name, 100)}: flaky (failed once, and passed when repeated)" for name in flaky]
    silent = dict.fromkeys(check.run for check in runs if not check.reports)
    lines += [f"{shorten(run, 100)}: only its exit status is known" for run in silent]
    if any(report.checker != "node" for check in runs for report in check.reports):
        lines.append(SHARED_PROCESS)
    lines += [
        f"{shorten(check.run, 100)}: added later, so it has no baseline"
        for check in checks
        if beginning.check(check.run) is None
    ]
    if left_out:
        lines.append(
            f"excludes {format_count(len(left_out), 'ignored path')} that changed during the run, for example "
            f"{left_out[0]}"
        )
    return tuple(lines)
