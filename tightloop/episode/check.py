"""Checks: the commands of the definition of done, and their results."""

import hashlib
import re
import shlex
from enum import StrEnum
from typing import Any

from pydantic import model_validator

from tightloop.episode.failure import (
    ComparableOutput,
    combine_signatures,
    failure_type,
    find_cause,
    is_part,
    read_output,
    signature,
)
from tightloop.errors import InvalidRequestError
from tightloop.safety.drift import Drift
from tightloop.value import ArtifactRef, CallerInput, Value, last_lines, shorten

TAIL_CHARACTERS = 1_200
"""Maximum length of the output tail in a result. The full output is stored as an artifact."""
# Also bounds `Verification`, which enters the history in every iteration.
FAILING_LIMIT = 10
READ_CHARACTERS = 200_000
"""Number of characters at the end of the output that are searched for counts and causes."""
LINE_CHARACTERS = 300
"""Maximum number of characters searched per line, because the patterns take quadratic time on very long lines."""


_QUOTING = "Put the whole command in single quotes and use double quotes inside it: "
_QUOTING += """--done 'pytest -q -k "not slow"'"""


class Check(CallerInput):
    """A command in the definition of done.

    The check passes if the command exits with code 0, or if only known failures occur. A check can also
    be written as a plain string, such as `"pytest -q"`.
    """

    run: str = ""
    """Shell command to run in the working tree."""
    name: str = ""
    """Short name. Defaults to the command."""
    timeout_s: float = 600.0
    """Time limit in seconds. A check that exceeds it fails."""
    known_failures: tuple[str, ...] = ()
    """Names, as printed in the output, of tests that may fail. The check passes if no other test fails."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"run": value} if isinstance(value, str) else value

    @property
    def title(self) -> str:
        """Name of the check, or its command if the check has no name."""
        return self.name or self.run

    @property
    def problem(self) -> str:
        """An error in the command, with a corrected example. Empty if no error is found without a shell."""
        if not self.run.strip():
            return f"a check has no command. {_QUOTING}"
        # Only a shell can parse here-documents and bash's $'...', which may contain an escaped quote.
        if "<<" in self.run or "$'" in self.run:
            return ""
        try:
            # With comments, as in a shell: an apostrophe in a comment opens no quote.
            shlex.split(self.run, comments=True)
        except ValueError as error:
            what = "an unclosed quote" if "quotation" in str(error) else "a trailing backslash"
            return f"the check {shorten(self.run, 80)!r} has {what}. {_QUOTING}"
        return ""


def start_in(folder: str, command: str) -> str:
    """Return a command that starts in a folder below the root of the working tree.

    A command that already starts in this folder or below it is returned unchanged.
    """
    inside = f"cd {shlex.quote(folder)}"
    if not folder or not command or command.startswith((f"{inside} && ", f"{inside}/")):
        return command
    return f"{inside} && {command}"


def checks_in(folder: str, checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the checks with their commands changed to start in a folder of the working tree."""
    return tuple(check.evolve(run=start_in(folder, check.run)) for check in checks) if folder else checks


class CheckStatus(StrEnum):
    """Status of a finished check."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    NOT_FOUND = "not_found"
    """The command's program is not installed."""


class Counts(Value):
    """Counts parsed from the output of a known tool."""

    tool: str = ""
    passed: int | None = None
    failed: int | None = None
    """Number of failing tests, lint findings or files to reformat."""


class CheckResult(Value):
    """Result of one check."""

    name: str
    run: str
    status: CheckStatus
    exit_code: int | None = None
    duration_s: float = 0.0
    tree: str = ""
    """Id of the checked tree."""
    tail: str = ""
    """Last lines of the output, at most `TAIL_CHARACTERS` long."""
    output: ArtifactRef | None = None
    """Complete output. Its digest is part of the evidence."""
    counts: Counts = Counts.model_construct()
    failing: tuple[str, ...] = ()
    """Failing tests or lint rules, at most `FAILING_LIMIT` of them."""
    signature: str = ""
    """Id of the failure, which is the same for the same cause. Empty if the check passed."""
    printed: ComparableOutput = ComparableOutput.model_construct()
    """Parts of the output that can be compared between runs. Empty if the check passed."""
    cpu_s: float | None = None
    """CPU time used by the check's processes, in seconds, or None if the sandbox does not report it."""
    sandbox: str = ""
    """Name of the sandbox, such as `bubblewrap`."""
    not_enforced: tuple[str, ...] = ()
    """Configured limits that the sandbox could not enforce."""
    remark: str = ""
    """Note on a check that passed although tests fail, such as `red before: 3 tests, unchanged`."""

    @property
    def passed(self) -> bool:
        """True if the check passed."""
        return self.status is CheckStatus.PASSED


class ProofRule(StrEnum):
    """The rules whose violation casts doubt on passing checks."""

    FAILS_FRESH = "fails_fresh"
    """A check fails in a clean checkout."""
    TESTS_CHANGED = "tests_changed"
    """A check fails with the original tests, test data and configuration, or tests have disappeared."""
    CONFIGURATION_CHANGED = "configuration_changed"
    """Like `tests_changed`, but for changes to configuration or start-up files."""
    ENVIRONMENT_CHANGED = "environment_changed"
    """Installed programs or libraries changed during the episode."""
    NO_REPORT = "no_report"
    """A known checker did not produce a complete report."""
    NOTHING_PASSED = "nothing_passed"
    """No tests ran, or all of them were skipped or deselected."""
    REPORT_DIFFERS = "report_differs"
    """The exit status contradicts the report, or the canary passed."""
    ENDED_EARLY = "ended_early"
    """A program exited early and reported success."""
    SUSPICIOUS = "suspicious"
    """The change contains a line that could make any check pass."""
    EMPTY_TESTS = "empty_tests"
    """New tests also pass if every function under test does nothing."""
    SOURCE_BROKEN = "source_broken"
    """A source file was emptied or can no longer be parsed."""
    ERRORS_SWALLOWED = "errors_swallowed"
    """Code that could fail now ignores every error."""
    CHECKS_SUPPRESSED = "checks_suppressed"
    """A check fails without the suppressions that the work added."""
    COPIED = "copied"
    """A delivered file, or part of one, also appears in a later commit or in an installed package."""
    SCENARIOS_FAILED = "scenarios_failed"
    """Hidden scenarios fail."""
    REVIEWER_DOUBTS = "reviewer_doubts"
    """A model that reviewed the change doubts that it solves the task in general."""


class CheckReport(Value):
    """The results of all checks on one tree, in the order of the definition of done."""

    tree: str = ""
    results: tuple[CheckResult, ...] = ()

    @property
    def green(self) -> bool:
        """True if there is at least one check and all checks passed."""
        # `all` of an empty sequence is true, but having no checks is not a success.
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that did not pass."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def signature(self) -> str:
        """Id of this set of failures, or "" if all checks passed."""
        failed = self.failed
        return (
            combine_signatures(part for result in failed for part in (result.run, result.signature)) if failed else ""
        )


def find_checks(report: CheckReport, name: str = "") -> tuple[CheckResult, ...]:
    """Return the checks whose names start with `name`.

    Without a name, return the failing checks, or all checks if none fail.

    Raises:
        InvalidRequestError: no name matches. The message lists the names.
    """
    if not name:
        return report.failed or report.results
    exact = tuple(result for result in report.results if result.name == name)
    matches = exact or tuple(result for result in report.results if result.name.startswith(name))
    if not matches:
        names = ", ".join(repr(result.name) for result in report.results)
        raise InvalidRequestError(f"no check is named {name!r}. Checks: {names}")
    return matches


# 127 is the shell's "command not found" (POSIX, Shell Command Language, 2.8.2).
_STATUS_OF: dict[int | None, CheckStatus] = {0: CheckStatus.PASSED, 127: CheckStatus.NOT_FOUND}
_PYTEST = re.compile(r"(\d+) (passed|failed|error|errors)\b")
_PYTEST_END = re.compile(r"^(?:=+ )?.*\d+ (?:passed|failed|errors?)\b.* in [\d.]+s", re.MULTILINE)
_PYTEST_FAILING = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_RUFF = re.compile(r"^Found (\d+) errors?", re.MULTILINE)
_RUFF_RULE = re.compile(r"^(?:\S+:\d+:\d+: )?([A-Z]{1,4}\d{3,4})\b", re.MULTILINE)
_REFORMAT = re.compile(r"^(\d+) files? would be reformatted", re.MULTILINE)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_REFORMAT_FILE = re.compile(r"^(?:Would|would) reformat:? (\S+)", re.MULTILINE)
_MYPY = re.compile(r"^Found (\d+) errors? in \d+ files?", re.MULTILINE)


def parse_counts(output: str) -> tuple[Counts, tuple[str, ...]]:
    """Parse the summary of pytest, ruff, black or mypy.

    Returns:
        The counts, which are empty for an unknown tool, and at most `FAILING_LIMIT` failing items.
    """
    output = _searchable(output)
    if _PYTEST_END.search(output):
        # The last summary: a command may run pytest several times.
        last = list(_PYTEST_END.finditer(output))[-1].group()
        numbers = {label: int(number) for number, label in _PYTEST.findall(last)}
        failed = numbers.get("failed", 0) + numbers.get("error", 0) + numbers.get("errors", 0)
        failing = tuple(dict.fromkeys(_PYTEST_FAILING.findall(output)))
        return Counts(tool="pytest", passed=numbers.get("passed", 0), failed=failed), failing[:FAILING_LIMIT]
    # mypy before ruff: "Found 3 errors in 2 files" starts like the summary of ruff.
    for tool, count, names in (
        ("format", _REFORMAT, _REFORMAT_FILE),
        ("mypy", _MYPY, None),
        ("ruff", _RUFF, _RUFF_RULE),
    ):
        if match := count.search(output):
            failing = tuple(dict.fromkeys(names.findall(output))) if names else ()
            return Counts(tool=tool, failed=int(match.group(1))), failing[:FAILING_LIMIT]
    return Counts(), ()


_FAILED_TESTS = (
    # pytest. The names of parametrized tests may contain spaces, and a message follows after " - ".
    re.compile(r"^(?:FAILED|ERROR) (?!\((?:failures|errors|unexpected))(\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE),
    # unittest
    re.compile(r"^(?:FAIL|ERROR): (\S+ \([\w.]+\))", re.MULTILINE),
    # TAP
    re.compile(r"^\s*not ok \d+ (?:- )?(?!.*# (?:TODO|SKIP|todo|skip)\b)(.+?)\s*(?:#.*)?$", re.MULTILINE),
    # go test
    re.compile(r"^\s*--- FAIL: (\S+)", re.MULTILINE),
    # cargo test
    re.compile(r"^test (\S+) \.\.\. FAILED$", re.MULTILINE),
    # jest, vitest and the spec reporter of node
    re.compile(r"^\s*(?:●|×|✖) (?!failing tests:)(.+?)(?: \(?[\d.]+ ?m?s\)?)?$", re.MULTILINE),
    # mocha
    re.compile(r"^\s+\d+\) (.+?):?$", re.MULTILINE),
)
FAILED_TESTS_LIMIT = 2_000


def failed_tests(output: str) -> tuple[str, ...]:
    """Return the names of the failed tests in a test runner's output, without duplicates.

    The result is empty if the runner is unknown, or if more than `FAILED_TESTS_LIMIT` tests failed.
    """
    text = _ESCAPES.sub("", _searchable(output))
    for pattern in _FAILED_TESTS:
        # Temporary folders and times differ from run to run.
        names = tuple(dict.fromkeys(match.strip() for match in pattern.findall(text)))
        if names:
            return names if len(names) <= FAILED_TESTS_LIMIT else ()
    return ()


def known_failures_remark(check: Check, output: str) -> str:
    """Return a remark if only known tests failed, such as `red before: 3 tests, now 1`.

    Otherwise, return "".
    """
    before, now = set(check.known_failures), set(failed_tests(output))
    if not now or not now <= before:
        return ""
    count = f"{len(before)} {'test' if len(before) == 1 else 'tests'}"
    return f"red before: {count}, " + ("unchanged" if now == before else f"now {len(now)}")


def _searchable(output: str) -> str:
    return "\n".join(line[:LINE_CHARACTERS] for line in output[-READ_CHARACTERS:].split("\n"))


ASSERTION_EXIT_CODE = 1


def judge(
    check: Check,
    *,
    tree: str,
    exit_code: int | None,
    timed_out: bool,
    duration_s: float,
    output: str,
    artifact: ArtifactRef | None = None,
) -> CheckResult:
    """Convert the result of a command to a check result.

    The check passes if the exit code is 0, or if only its known failures occur.
    """
    counts, failing = parse_counts(output)
    # The time limit first: a program that handles the signal may still exit with 0.
    status = CheckStatus.TIMED_OUT if timed_out else _STATUS_OF.get(exit_code, CheckStatus.FAILED)
    remark = ""
    if status is CheckStatus.FAILED and check.known_failures and (remark := known_failures_remark(check, output)):
        status = CheckStatus.PASSED
    result_signature, printed = "", ComparableOutput()
    if status is not CheckStatus.PASSED:
        printed = read_output(_searchable(output))
        # All causes, not only the last: a smaller set is a different failure.
        # Too many lines, or none, cannot be compared one by one; then the end stands for the whole output.
        causes = printed.lines or (signature(output[-300:]),)
        result_signature = combine_signatures(
            (signature(check.run, status.value), str(counts.failed), *failing, *causes)
        )
    return CheckResult(
        name=check.title,
        run=check.run,
        status=status,
        exit_code=exit_code,
        duration_s=round(duration_s, 3),
        tree=tree,
        tail=_tail(output.strip(), failed=status is not CheckStatus.PASSED),
        output=artifact,
        counts=counts,
        # A command such as `pytest || true` passes although its output lists failures.
        failing=failing if status is not CheckStatus.PASSED else (),
        signature=result_signature,
        printed=printed,
        remark=remark,
    )


def why_no_evidence(result: CheckResult, *, is_flaky: bool, is_judged: bool = False) -> str:
    """Explain why a new check's result is not evidence that something is missing.

    Return "" if the result is evidence. Only a failed assertion is evidence. A program that cannot be loaded or
    started proves nothing.

    Args:
        result: result before any work.
        is_flaky: the check failed once and passed when it was repeated.
        is_judged: the tests were seen to fail in their own assertions, so the output does not matter.
    """
    if is_flaky:
        return "the check is flaky: it failed once, and passed when it was repeated without a change"
    if result.passed:
        return "the check passes before any work is done, so it does not show what is missing"
    if result.status is not CheckStatus.FAILED:
        return f"the check does not finish: {result.status.value.replace('_', ' ')}"
    # Test runners, `test`, `grep`, `diff` and uncaught exceptions all end with 1; other codes stand for usage errors,
    # missing files and signals.
    if result.exit_code != ASSERTION_EXIT_CODE:
        return (
            f"the check ends with exit code {result.exit_code} instead of {ASSERTION_EXIT_CODE}, so nothing was checked"
        )
    error = "" if is_judged else failure_type(result.tail)
    if error not in ("", "AssertionError"):
        return f"the check fails with {error} and not by an assertion"
    return ""


def _tail(output: str, *, failed: bool) -> str:
    """Return the last lines of an output.

    If the failure is explained by an earlier line, that line comes first.
    """
    tail = last_lines(output, TAIL_CHARACTERS)
    cause = find_cause(_searchable(output)).strip() if failed else ""
    if cause in tail:
        return tail
    cause = shorten(cause, TAIL_CHARACTERS // 4)
    return f"{cause}\n{last_lines(output, TAIL_CHARACTERS - len(cause) - 1)}"


def newly_failing(before: CheckReport | None, after: CheckReport) -> tuple[str, ...]:
    """Return the names of the checks that passed before but fail now."""
    if before is None:
        return ()
    passed = {result.run for result in before.results if result.passed}
    return tuple(result.name for result in after.failed if result.run in passed)


def progress(before: CheckReport | None, after: CheckReport) -> bool:
    """Return whether the results improved.

    Fewer checks or tests must fail, and no check may get worse.
    """
    if before is None:
        return after.green
    pairs = _pairs(before, after)
    return any(_is_better(old, new) for old, new in pairs) and not any(_is_worse(old, new) for old, new in pairs)


def regress(before: CheckReport | None, after: CheckReport) -> bool:
    """Return whether a passing check now fails, or a failing check got worse.

    Failures of new tests do not count if these tests have never passed.
    """
    return before is not None and any(_is_worse(old, new, fewer=True) for old, new in _pairs(before, after))


def _pairs(before: CheckReport, after: CheckReport) -> list[tuple[CheckResult, CheckResult]]:
    # By command: a check that was amended under the same name is another check.
    old = {result.run: result for result in before.results}
    return [(old[result.run], result) for result in after.results if result.run in old]


def _is_better(old: CheckResult, new: CheckResult) -> bool:
    if new.passed or old.passed:
        return new.passed and not old.passed
    if old.counts.failed is not None and new.counts.failed is not None:
        return new.counts.failed < old.counts.failed
    # A timed-out run prints fewer lines without being better, so only equal statuses are compared.
    return old.status is new.status and is_part(new.printed.lines, old.printed.lines)


def _is_worse(old: CheckResult, new: CheckResult, *, fewer: bool = False) -> bool:
    """Return whether a check got worse.

    If `fewer` is set, a failing check with test counts is worse only if fewer tests pass.
    """
    if new.passed or old.passed:
        return old.passed and not new.passed
    if old.counts.failed is None or new.counts.failed is None:
        return old.status is new.status and is_part(old.printed.lines, new.printed.lines)
    if fewer and old.counts.passed is not None and new.counts.passed is not None:
        return new.counts.passed < old.counts.passed
    return new.counts.failed > old.counts.failed


def failing_text(failed: int, total: int) -> str:
    """Return the number of failing checks as text, such as `1 of 3 checks fails`."""
    if total == 1:
        return "the check fails"
    return f"{failed} of {total} checks {'fails' if failed == 1 else 'fail'}"


NAME_CHARACTERS = 80


def check_name(title: str) -> str:
    """Return a check's name, shortened to the form that histories store."""
    return shorten(title, NAME_CHARACTERS)


def check_key(run: str) -> str:
    """Return a short digest of a check's command.

    If the command changes, the check counts as a new check that has not failed yet.
    """
    return hashlib.sha256(run.encode()).hexdigest()[:12]


class FailedCheck(Value):
    """A failing check, in a form that is small enough for the workflow history."""

    name: str
    key: str = ""
    """Key of the check, as returned by `check_key`."""
    status: CheckStatus = CheckStatus.FAILED
    signature: str = ""
    tail: str = ""
    """Lines of the output that explain the failure, the error first, at most 360 characters."""

    def __str__(self) -> str:
        """Return the name, followed by the status unless the check simply failed."""
        why = "" if self.status is CheckStatus.FAILED else f" ({self.status.value.replace('_', ' ')})"
        return f"{self.name}{why}"


class Verification(Value):
    """The result of running all checks. The full `CheckReport` is stored as an artifact."""

    tree: str
    """Tree that was checked. After the checks, it is the tree on disk again."""
    total: int = 0
    failed: tuple[FailedCheck, ...] = ()
    """Failing checks, at most `FAILING_LIMIT` of them."""
    failed_count: int = 0
    signature: str = ""
    report: ArtifactRef | None = None
    progress: bool = False
    """True if the result is better than the previous report."""
    regress: bool = False
    """True if the result is worse than the previous report."""
    same: bool = False
    """True if the failures are the same as in the previous report."""
    newly_failing: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()
    """Checks that failed and then passed when they were repeated without a change. They count as passed."""
    drift: Drift | None = None
    """Changes found before the checks, compared with the expected tree. They were saved and undone."""
    touched: Drift | None = None
    """Changes made while the checks ran. They were saved and undone."""
    cpu_s: float | None = None
    """Total CPU time of the checks for which it was measured, in seconds."""
    remarks: tuple[str, ...] = ()
    """Notes on checks that passed although tests fail, such as `red before: 3 tests, unchanged`."""
    checks_touched_tree: bool = False
    """True if the checks wrote to the tree. Their changes were undone, so the tree is the one that was checked."""
    attempt: int = 1

    @property
    def green(self) -> bool:
        """True if there is at least one check and all checks passed."""
        return self.total > 0 and self.failed_count == 0

    @property
    def passed_of_all(self) -> str:
        """The number of passed checks out of the total, such as `2/3`, followed by any remarks."""
        passed = f"{self.total - self.failed_count}/{self.total}"
        return f"{passed} ({'; '.join(self.remarks)})" if self.remarks else passed
