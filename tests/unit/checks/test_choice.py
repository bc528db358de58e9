"""Which of the checks found decide about work, and what people are told."""

import pytest

from tightloop.checks.choice import TriedCheck, choose_checks, no_checks_message, unusable
from tightloop.checks.commands import CheckKind, FoundCheck
from tightloop.episode.check import Check, CheckStatus, failed_tests, judge

PYTEST = FoundCheck(run="pytest tests", kind=CheckKind.TESTS, source="tox.ini", name="pytest")
RED = ("tests/test_iter.py::test_chunked[a b]", "tests/test_iter.py::test_windowed", "tests/test_net.py::test_fetch")


def tried(check: FoundCheck = PYTEST, *failed: str, code: int = 1, **more: object) -> TriedCheck:
    return TriedCheck(check=check, passed=code == 0, exit_code=code, duration_s=12.4, failed_tests=failed).evolve(
        **more
    )


def test_green_check_is_used_and_said() -> None:
    chosen = choose_checks([tried(code=0)], "fix the bug in chunked")
    assert chosen.sentences == ("Checks from tox.ini: pytest tests (12 s, passes). To use other checks, pass --done.",)
    assert [(check.run, check.known_failures) for check in chosen.checks] == [("pytest tests", ())]


@pytest.mark.parametrize(
    ("goal", "may_stay"),
    [
        ("", ()),
        ("Fix the bug", ()),
        ("Fix chunked(fill=...): the last chunk is one short", (RED[2],)),
        ("repair tests/test_net.py", RED[:2]),
        ("Make the tests pass", ()),
        ("get pytest green again", ()),
        ("run `pytest tests` until it passes", ()),
        ("Add a command-line option for colours", RED),
    ],
)
def test_goal_decides_which_failures_have_to_go(goal: str, may_stay: tuple[str, ...]) -> None:
    [check] = choose_checks([tried(PYTEST, *RED)], goal).checks
    assert check.known_failures == may_stay


def test_the_singular_of_a_word_names_the_same_test() -> None:
    [check] = choose_checks([tried(PYTEST, "test_small (test_fees.T.test_small)")], "Correct the fee of 100").checks
    assert check.known_failures == ()


def test_failures_that_have_nothing_to_do_with_the_goal_may_stay_and_are_said() -> None:
    [sentence] = choose_checks([tried(PYTEST, *RED)], "Add an option for colours").sentences
    assert "pytest tests (12 s, fails: 3 tests that may keep failing)" in sentence


def test_red_check_without_names_is_left_out_unless_the_goal_is_about_it() -> None:
    lint = FoundCheck(run="flake8", kind=CheckKind.LINT, source="setup.cfg", name="flake8")
    chosen = choose_checks([tried(code=0), tried(lint)], "fix chunked")
    assert [check.run for check in chosen.checks] == ["pytest tests"]
    reason = "it already fails with exit code 1, without naming any tests"
    assert chosen.sentences[1] == f"Not used: flake8 (setup.cfg): {reason}."
    unable = tried(lint, tail="ignored: 1\nerror: cannot find the plug-in\n")
    assert choose_checks([unable], "fix chunked").sentences[0].endswith("any tests: error: cannot find the plug-in.")
    assert [check.run for check in choose_checks([tried(lint)], "fix the lint errors").checks] == ["flake8"]
    assert [check.run for check in choose_checks([tried(lint)], "").checks] == ["flake8"]
    ruff = FoundCheck(run="ruff check .", kind=CheckKind.LINT, source="pyproject.toml", name="ruff check")
    for goal, used in (("Make ruff pass", ["ruff check ."]), ("Use ruff in reports", []), ("Fix check()", [])):
        chosen = choose_checks([tried(code=0), tried(ruff)], goal)
        assert [check.run for check in chosen.checks][1:] == used, goal


def test_the_only_tests_decide_also_where_they_have_no_names() -> None:
    other = FoundCheck(run="go test ./...", kind=CheckKind.TESTS, source="go.mod", name="go")
    chosen = choose_checks([tried(code=2), tried(other)], "fix chunked")
    assert [(check.run, check.known_failures) for check in chosen.checks] == [("pytest tests", ())]
    assert chosen.sentences[0].startswith(
        "Checks from tox.ini: pytest tests (12 s, fails with exit code 2, to be fixed)"
    )
    named = choose_checks([tried(code=2), tried(other, "TestChunked")], "fix chunked")
    assert [check.run for check in named.checks] == ["go test ./..."]


def test_code_that_the_goal_names_decides_before_words() -> None:
    [check] = choose_checks([tried(PYTEST, *RED, reached=RED[1:])], "Fix chunked").checks
    assert check.known_failures == RED[:1]


def test_nothing_usable_names_the_reasons_and_what_to_do() -> None:
    chosen = choose_checks([tried(not_used="it needs the network")], "fix it")
    message = no_checks_message(chosen.sentences)
    assert not chosen.checks
    assert "--done 'pytest -q'" in message
    assert "pytest tests (tox.ini): it needs the network" in message


@pytest.mark.parametrize(
    ("command", "code", "output", "reason"),
    [
        ("pytest", 0, "1 passed", ""),
        ("pytest", 1, "FAILED a.py::b\n", ""),
        ("pytest", None, "", "it did not finish in time"),
        ("ruff check .", 127, "/bin/sh: 1: ruff: not found\n", "ruff is not installed"),
        ("make lint", 2, "make: flake8: No such file or directory\nmake: *** Error 127\n", "flake8 is not installed"),
        ("python -m mypy .", 1, "/w/.venv/bin/python: No module named mypy\n", "mypy is not installed"),
        (
            "pytest --x=a",
            4,
            "pytest: error: no --x=a\n",
            "pytest does not accept the options of the command: pytest: error: no --x=a",
        ),
        ("pytest", 5, "no tests ran in 0.01s\n", "there are no tests"),
        ("python -m unittest discover", 0, "Ran 0 tests in 0.000s\n\nOK\n", "there are no tests"),
        ("python -m unittest discover", 0, "Ran 10 tests in 0.100s\n\nOK\n", ""),
        ("npm test", 1, "npm error code EAI_AGAIN\n", "it needs the network"),
    ],
)  # fmt: skip
def test_first_run_shows_what_cannot_decide(command: str, code: int | None, output: str, reason: str) -> None:
    assert unusable(command, code, output, (), failed_tests(output)) == reason


def test_check_that_changes_tracked_files_is_not_used() -> None:
    assert unusable("make test", 0, "", ("b.py", "a.py"), ()) == "it changes tracked files: a.py, b.py"


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("FAILED t/a.py::test_b[x y] - assert 1 - 2\nERROR t/c.py - ImportError\n", ("t/a.py::test_b[x y]", "t/c.py")),
        ("FAIL: test_a (m.T.test_a)\n-----\nRan 2 tests in 0.1s\n\nFAILED (failures=1)\n", ("test_a (m.T.test_a)",)),
        ("======\nFAIL: test_a (m.T.test_a)\n------\nERROR: test_b (m.T)\n", ("test_a (m.T.test_a)", "test_b (m.T)")),
        ("TAP version 13\nok 1 - a\n    not ok 2 - b c # time=1ms\nnot ok 3 - d # TODO later\n", ("b c",)),
        ("--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n", ("TestA", "TestA/b")),
        ("test a::b ... ok\ntest a::c ... FAILED\n", ("a::c",)),
        ("\x1b[31m  ● suite › adds\x1b[39m\n", ("suite › adds",)),
        ("✖ adds numbers (1.25ms)\nℹ fail 1\n✖ failing tests:\n", ("adds numbers",)),
        ("all good\n", ()),
    ],
)  # fmt: skip
def test_failed_tests_are_read_by_name(output: str, names: tuple[str, ...]) -> None:
    assert failed_tests(output) == names


@pytest.mark.parametrize(
    ("output", "passed", "remark"),
    [
        ("FAILED t.py::a\nFAILED t.py::b\n2 failed, 3 passed in 1s", True, "red before: 2 tests, unchanged"),
        ("FAILED t.py::a\n1 failed, 4 passed in 1s", True, "red before: 2 tests, now 1"),
        ("FAILED t.py::a\nFAILED t.py::c\n2 failed, 3 passed in 1s", False, ""),
        ("Segmentation fault", False, ""),
    ],
)
def test_known_failures_do_not_fail_a_check_but_others_do(output: str, passed: bool, remark: str) -> None:
    check = Check(run="pytest", known_failures=("t.py::a", "t.py::b"))
    result = judge(check, tree="", exit_code=1, timed_out=False, duration_s=1, output=output)
    assert (result.passed, result.remark) == (passed, remark)
    missing = judge(check, tree="", exit_code=127, timed_out=False, duration_s=1, output="FAILED t.py::a\n")
    assert missing.status is CheckStatus.NOT_FOUND
