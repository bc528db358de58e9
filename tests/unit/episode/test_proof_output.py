"""Reports of runners that are read from what a check printed."""

import pytest

from tightloop.episode.proof.report import FAILED, PASSED, SKIPPED, Observation, add_printed_reports

LIBTEST = """     Running unittests src/lib.rs (target/debug/deps/calc-80f166f2dd2d63d2)

running 3 tests
test tests::adds ... FAILED
test tests::refuses - should panic ... ok
test tests::later ... ignored, slow

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests calc

running 1 test
test src/lib.rs - add (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
"""
CTEST = """Test project /tmp/build
    Start 1: calc
1/3 Test #1: calc .............................Subprocess aborted***Exception:   0.01 sec
2/3 Test #2: sub ..............................   Passed    0.02 sec
3/3 Test #3: later ............................***Skipped   0.00 sec

50% tests passed, 1 tests failed out of 3
"""
SUREFIRE = """[INFO]  T E S T S
[INFO] -------------------------------------------------------
[INFO] Running calc.CalcTest
[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1, Time elapsed: 0.25 s <<< FAILURE! - in calc.CalcTest
[INFO] BUILD FAILURE
"""
DENO = """\x1b[0m\x1b[38;5;245mrunning 3 tests from ./test/calc_test.ts\x1b[0m
adds ... \x1b[0m\x1b[31mFAILED\x1b[0m \x1b[0m\x1b[38;5;245m(1ms)\x1b[0m
multiplies ... ok (75us)
later ... ignored (0ms)

FAILED | 1 passed | 1 failed | 1 ignored (38ms)
"""
GTEST = """[==========] Running 3 tests from 1 test suite.
[ RUN      ] Calc.Adds
[  FAILED  ] Calc.Adds (0 ms)
[       OK ] Calc.Multiplies (0 ms)
[  SKIPPED ] Calc.Later (0 ms)
[==========] 3 tests from 1 test suite ran. (0 ms total)
"""
TAP = "1..4\nnot ok 1 adds\n# 0 is not 4\nok 2 multiplies\nok 3 later # skip no time\nok 4 multiplies\n"
FORMS = {
    "libtest": (
        LIBTEST,
        {
            "src/lib.rs > tests::adds": FAILED,
            "src/lib.rs > tests::refuses": PASSED,
            "src/lib.rs > tests::later": SKIPPED,
            "Doc-tests calc > src/lib.rs - add": PASSED,
        },
    ),
    "ctest": (CTEST, {"calc": FAILED, "sub": PASSED, "later": SKIPPED}),
    "surefire": (SUREFIRE, {"calc.CalcTest[1]": FAILED, "calc.CalcTest[2]": SKIPPED, "calc.CalcTest[3]": PASSED}),
    "deno": (
        DENO,
        {
            "./test/calc_test.ts > adds": FAILED,
            "./test/calc_test.ts > multiplies": PASSED,
            "./test/calc_test.ts > later": SKIPPED,
        },
    ),
    "gtest": (GTEST, {"Calc.Adds": FAILED, "Calc.Multiplies": PASSED, "Calc.Later": SKIPPED}),
    "tap": (TAP, {"adds": FAILED, "multiplies": PASSED, "later": SKIPPED, "multiplies[2]": PASSED}),
}  # fmt: skip


@pytest.mark.parametrize("checker", FORMS)
def test_tests_and_their_results_are_read(checker: str) -> None:
    text, results = FORMS[checker]
    seen = add_printed_reports(Observation(), text)
    assert seen.results == {checker: results}
    assert seen.complete == {checker: True}


@pytest.mark.parametrize("checker", FORMS)
def test_a_runner_that_stopped_in_between_is_not_complete(checker: str) -> None:
    text, _ = FORMS[checker]
    lines = text.splitlines()
    seen = add_printed_reports(Observation(), "\n".join(lines[:3]))
    assert seen.complete == {checker: False}


def test_an_output_with_a_gap_tells_nothing() -> None:
    assert not add_printed_reports(Observation(), f"{TAP}[... 12 bytes cut ...]\n{TAP}").checkers


def test_what_an_observer_has_reported_is_not_read_again() -> None:
    observed = Observation(checkers=("cargo",), results={"cargo": {"calc > adds": PASSED}}, complete={"cargo": True})
    seen = add_printed_reports(observed, LIBTEST)
    assert seen.results["cargo"] == {"calc > adds": PASSED}
    assert seen.results["libtest"] == {"Doc-tests calc > src/lib.rs - add": PASSED}
    assert add_printed_reports(observed, TAP).checkers == ("cargo",)


@pytest.mark.parametrize("text", ["", "ok\n", "ok then\nnot ok\n", "running late\n", "1..2..3\n"])
def test_other_words_are_no_report(text: str) -> None:
    assert add_printed_reports(Observation(), text) == Observation()
