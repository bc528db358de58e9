"""What a failed check shows: the error first, whole lines, and the names of the checks."""

import pytest

from tightloop.episode.check import Check, CheckReport, CheckResult, CheckStatus, FailedCheck, find_checks, judge
from tightloop.episode.decisions import about_work
from tightloop.episode.failure import explain_output, find_cause
from tightloop.episode.model import EpisodeState
from tightloop.errors import InvalidRequestError
from tightloop.run.question import EVIDENCE_LINES
from tightloop.value import last_lines

PYTEST = """\
============================= test session starts ==============================
collected 2 items

    def test_total():
>       assert total([1, 2]) == 4
E       assert 3 == 4

test_shop.py:4: AssertionError
=========================== short test summary info ============================
FAILED test_shop.py::test_total - assert 3 == 4
========================= 1 failed, 1 passed in 0.02s ==========================
"""


def test_the_failing_assertion_comes_first_and_then_the_last_lines() -> None:
    lines = explain_output(PYTEST, 240).splitlines()
    assert lines[0] == "assert 3 == 4"
    assert lines[-1] == "========================= 1 failed, 1 passed in 0.02s =========================="
    assert all(line in PYTEST for line in lines), "no line is cut"
    assert sum(map(len, lines)) <= 240


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", ""),
        ("\n \n", ""),
        ("3 tests, 2 failed\n", "3 tests, 2 failed"),
        ("\x1b[31mError: no such table\x1b[0m\nsee the log\n", "Error: no such table\nsee the log"),
        (
            "a.c:3:1: error: expected ';'\nmake: *** [all] Error 1\n",
            "a.c:3:1: error: expected ';'\nmake: *** [all] Error 1",
        ),
    ],
)
def test_output_of_any_tool_is_explained(output: str, expected: str) -> None:
    assert explain_output(output, 240) == expected


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            "--- FAIL: TestTotal (0.00s)\n    shop_test.go:9: got 3, want 4\nFAIL\nFAIL\tshop\t0.002s\n",
            "    shop_test.go:9: got 3, want 4",
        ),
        (
            "thread 't' panicked at src/lib.rs:9:5:\nassertion `left == right` failed\n  left: 3\nerror: test failed\n",
            "assertion `left == right` failed",
        ),
        ("  ● total\n\n    Expected: 4\n    Received: 3\n\nTests: 1 failed, 1 total\n", "    Expected: 4"),
        ("ok 1 - a\nnot ok 2 - total\n# tests 2\n", "not ok 2 - total"),
        ("REASON: done.txt is missing\nbye\n", "REASON: done.txt is missing"),
    ],
)
def test_cause_is_found_in_the_output_of_other_tools(output: str, cause: str) -> None:
    assert find_cause(output) == cause
    assert explain_output(output, 400).splitlines()[0] == cause.strip()


def test_only_a_line_that_is_too_long_itself_is_cut() -> None:
    assert explain_output("x" * 900, 100) == "x" * 94 + " [...]"
    assert last_lines("first\nsecond\nthird", 12) == "second\nthird"
    assert last_lines("first\nsecond\nthird", 11) == "third"
    assert last_lines("x" * 90, 20) == "[...] " + "x" * 14


def test_result_keeps_an_error_that_stands_far_above_its_end() -> None:
    output = PYTEST + "coverage of a file: 12 %\n" * 100
    result = judge(Check(run="pytest"), tree="t", exit_code=1, timed_out=False, duration_s=1, output=output)
    assert result.tail.startswith("E       assert 3 == 4\ncoverage of a file: 12 %\n")
    assert len(result.tail) <= 1_200
    passed = judge(Check(run="pytest"), tree="t", exit_code=0, timed_out=False, duration_s=1, output=output)
    assert passed.tail.startswith("coverage of a file")


def result(name: str, status: CheckStatus) -> CheckResult:
    return CheckResult(name=name, run=name, status=status)


def test_checks_are_found_by_name_and_by_default_those_that_fail() -> None:
    red, green = result("pytest -q", CheckStatus.FAILED), result("ruff check", CheckStatus.PASSED)
    report = CheckReport(results=(red, green))
    assert find_checks(report) == (red,)
    assert find_checks(CheckReport(results=(green,))) == (green,)
    assert find_checks(report, "ruff") == (green,)
    with pytest.raises(InvalidRequestError, match=r"no check is named 'mypy'\. Checks: 'pytest -q', 'ruff check'"):
        find_checks(report, "mypy")


def test_question_about_the_work_shows_why_the_checks_fail() -> None:
    failed = (FailedCheck(name="pytest", tail="assert 3 == 4\n1 failed"),)
    state = EpisodeState(failed_checks=failed, last_words="I fixed it")
    shown = about_work(state, ("the finding",), output="tightloop output ep")
    assert shown == (
        "the finding",
        "pytest:",
        "assert 3 == 4",
        "1 failed",
        "full output: tightloop output ep",
        "the executor's last message: I fixed it",
    )
    assert len(about_work(state, ("line",) * 40, output="o")) == EVIDENCE_LINES
    assert about_work(EpisodeState(), ("line",), output="o") == ("line",)


def test_a_key_of_several_lines_is_left_out_as_a_whole() -> None:
    key = (
        "-----BEGIN OPENSSH PRIVATE KEY-----\n"
        + "b3BlbnNzaC1rZXktdjE" * 3
        + "\nAAAAB3NzaC1yc2E\n-----END OPENSSH PRIVATE KEY-----"
    )
    text = f"{key}\nerror: refused\nbye"
    assert last_lines(text, 70) == "\nerror: refused\nbye"
