"""Checks: only exit code 0 passes, tools' own numbers are understood, progress is progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.check import (
    FAILING_LIMIT,
    TAIL_CHARACTERS,
    Check,
    CheckReport,
    CheckResult,
    CheckStatus,
    Counts,
    Verification,
    judge,
    newly_failing,
    parse_counts,
    progress,
    start_in,
    why_no_evidence,
)

PYTEST = """\
F..E
=========================== short test summary info ============================
FAILED tests/test_a.py::test_x - assert 1 == 2
ERROR tests/test_b.py::test_y - ValueError
==================== 1 failed, 2 passed, 1 error in 0.12s ====================
"""
RUFF = """\
a.py:1:8: F401 [*] `os` imported but unused
F841 Local variable `x` is assigned to but never used
 --> a.py:3:5
Found 2 errors.
"""
BLACK = "would reformat a.py\nwould reformat b.py\n\n2 files would be reformatted, 1 file would be left unchanged.\n"
MYPY = "a.py:3: error: Incompatible types [assignment]\nFound 1 error in 1 file (checked 3 source files)\n"


@pytest.mark.parametrize(
    ("folder", "command", "expected"),
    [
        ("", "pytest", "pytest"),
        ("a b", "pytest | tail", "cd 'a b' && pytest | tail"),
        ("svc", "cd svc && pytest", "cd svc && pytest"),
        ("svc", "cd svc/web && npm test", "cd svc/web && npm test"),
        ("svc", "cd svc2 && pytest", "cd svc && cd svc2 && pytest"),
        ("svc", "", ""),
    ],
)
def test_a_command_starts_in_a_folder_once(folder: str, command: str, expected: str) -> None:
    assert start_in(folder, command) == expected
    assert start_in(folder, start_in(folder, command)) == expected


def result(run: str, *, passed: bool, failed: int | None = None) -> CheckResult:
    status = CheckStatus.PASSED if passed else CheckStatus.FAILED
    return CheckResult(name=run, run=run, status=status, counts=Counts(failed=failed), signature="" if passed else "s")


def finished(output: str, exit_code: int | None = 1, *, timed_out: bool = False, run: str = "x") -> CheckResult:
    return judge(Check(run=run), tree="t1", exit_code=exit_code, timed_out=timed_out, duration_s=0.12345, output=output)


@pytest.mark.parametrize(
    ("output", "counts", "failing"),
    [
        (PYTEST, Counts(tool="pytest", passed=2, failed=2), ("tests/test_a.py::test_x", "tests/test_b.py::test_y")),
        ("5 passed in 0.01s", Counts(tool="pytest", passed=5, failed=0), ()),
        (RUFF, Counts(tool="ruff", failed=2), ("F401", "F841")),
        (BLACK, Counts(tool="format", failed=2), ("a.py", "b.py")),
        (MYPY, Counts(tool="mypy", failed=1), ()),
        ("anything else", Counts(), ()),
    ],
)
def test_tools_say_what_fails(output: str, counts: Counts, failing: tuple[str, ...]) -> None:
    assert parse_counts(output) == (counts, failing)


@given(st.text(max_size=200), st.one_of(st.none(), st.integers(min_value=-20, max_value=255)), st.booleans())
def test_only_exit_code_zero_in_time_passes(output: str, exit_code: int | None, timed_out: bool) -> None:
    judged = finished(output, exit_code, timed_out=timed_out)
    assert judged.passed == (exit_code == 0 and not timed_out)
    assert bool(judged.signature) == (not judged.passed)
    assert len(judged.tail) <= TAIL_CHARACTERS


def test_output_that_claims_success_does_not_pass() -> None:
    assert finished("5 passed in 0.01s", 1).status is CheckStatus.FAILED
    assert finished("", 127).status is CheckStatus.NOT_FOUND
    assert finished("", None, timed_out=True).status is CheckStatus.TIMED_OUT


def test_same_failure_has_the_same_signature_whatever_the_time_it_took() -> None:
    assert finished(PYTEST).signature == finished(PYTEST.replace("0.12s", "7.5s")).signature
    assert finished(RUFF).signature != finished(RUFF.replace("F841", "F842")).signature
    assert finished(PYTEST, run="a").signature != finished(PYTEST, run="b").signature


def test_failing_list_is_bounded() -> None:
    lines = "\n".join(f"FAILED test_{n}" for n in range(50))
    assert len(finished(f"{lines}\n50 failed in 1.0s").failing) == FAILING_LIMIT


@pytest.mark.parametrize("output", ["1" * 1_000_000, "1 " * 500_000, "Error " * 200_000, "/a" * 500_000])
@pytest.mark.timeout(60)
def test_endless_line_is_judged_at_once(output: str) -> None:
    assert finished(output).status is CheckStatus.FAILED


def test_plain_text_is_a_check() -> None:
    assert Check.model_validate("pytest -q") == Check(run="pytest -q")
    assert Check(run="pytest -q").title == "pytest -q"
    assert Check(run="pytest -q", name="tests").title == "tests"


def test_report_is_green_only_with_checks_that_all_passed() -> None:
    assert not CheckReport().green
    assert CheckReport(results=(result("a", passed=True),)).green
    red = CheckReport(results=(result("a", passed=True), result("b", passed=False)))
    assert not red.green
    assert [r.name for r in red.failed] == ["b"]
    assert red.signature
    assert CheckReport(results=(result("a", passed=True),)).signature == ""


def test_newly_failing_checks_are_those_that_passed_before() -> None:
    before = CheckReport(results=(result("a", passed=True), result("b", passed=False)))
    after = CheckReport(results=(result("a", passed=False), result("b", passed=False)))
    assert newly_failing(before, after) == ("a",)
    assert newly_failing(None, after) == ()


@pytest.mark.parametrize(
    ("before", "after", "better"),
    [
        ((False, 5), (False, 3), True),
        ((False, 5), (False, 5), False),
        ((False, 3), (False, 5), False),
        ((False, 5), (True, 0), True),
        ((True, 0), (False, 1), False),
        ((False, None), (False, None), False),
    ],
)
def test_progress_is_fewer_failures(
    before: tuple[bool, int | None], after: tuple[bool, int | None], better: bool
) -> None:
    old, new = (CheckReport(results=(result("a", passed=passed, failed=failed),)) for passed, failed in (before, after))
    assert progress(old, new) is better


def test_one_check_worse_is_no_progress() -> None:
    before = CheckReport(results=(result("a", passed=False), result("b", passed=True)))
    after = CheckReport(results=(result("a", passed=True), result("b", passed=False)))
    assert not progress(before, after)


def test_verification_without_checks_is_not_green() -> None:
    assert not Verification(tree="t").green
    assert Verification(tree="t", total=3).green
    assert Verification(tree="t", total=3, failed_count=1).passed_of_all == "2/3"


@pytest.mark.parametrize("other", [PYTEST.replace("test_", "other_"), RUFF])
def test_reports_with_other_failures_of_the_same_check_have_other_signatures(other: str) -> None:
    one, another = (CheckReport(results=(finished(text, run="make check"),)) for text in (PYTEST, other))
    assert one.failed
    assert another.failed
    assert one.signature != another.signature
    assert one.signature == CheckReport(results=(finished(PYTEST, run="make check"),)).signature


ASSERTION = 'Traceback (most recent call last):\n  File "x.py", line 1\nAssertionError: 1\n'


@pytest.mark.parametrize(
    ("output", "exit_code", "problem"),
    [
        ("", 1, ""),
        (ASSERTION, 1, ""),
        ("3 lines differ", 1, ""),
        ("", 0, "passes before any work"),
        ("sh: 1: nothing: not found", 127, "does not finish: not found"),
        ("grep: a.txt: No such file or directory", 2, "exit code 2"),
        ("no tests ran in 0.01s", 5, "exit code 5"),
        ("", -9, "exit code -9"),
        ("", None, "exit code None"),
        (ASSERTION.replace("AssertionError: 1", "ModuleNotFoundError: No module named 'm'"), 1, "ModuleNotFoundError"),
        ('  File "x.py", line 1\nSyntaxError: invalid syntax\n', 1, "SyntaxError"),
    ],
)
def test_a_new_check_shows_what_is_missing_only_by_a_failed_assertion(
    output: str, exit_code: int | None, problem: str
) -> None:
    told = why_no_evidence(finished(output, exit_code), is_flaky=False)
    assert (problem in told) if problem else told == ""


def test_a_new_check_that_fails_at_random_or_takes_too_long_shows_nothing() -> None:
    assert "the check is flaky" in why_no_evidence(finished("", 1), is_flaky=True)
    assert "timed out" in why_no_evidence(finished("", 1, timed_out=True), is_flaky=False)
    # Its tests were observed, so an exception that the output quotes does not matter.
    assert why_no_evidence(finished("KeyError: 'a'", 1), is_flaky=False, is_judged=True) == ""
