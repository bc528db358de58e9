"""Rules of the proof: which files decide what checks say, what reports and lines tell."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.check import CheckStatus, ProofRule
from tightloop.episode.proof import ChangedFile, CheckRun, FileChange, FileKind, ProofRun
from tightloop.episode.proof import TestsFrom as From
from tightloop.episode.proof.files import (
    Guards,
    data_named_in,
    is_same_setup,
    programs_of,
    suspicious_lines,
)
from tightloop.episode.proof.report import CheckBaseline, InitialState, Observation, missing, read_events
from tightloop.episode.proof.verdict import Changes, ObservedRun, checks_without_tests, findings_of
from tightloop.value import clip

ADDED = FileChange.ADDED


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("tests/test_a.py", FileKind.TEST),
        ("pkg/test_a.py", FileKind.TEST),
        ("conftest.py", FileKind.TEST),
        ("src/a.test.ts", FileKind.TEST),
        ("tests/data/x.csv", FileKind.TEST_DATA),
        ("pkg/testdata/x", FileKind.TEST_DATA),
        ("pytest.ini", FileKind.CONFIGURATION),
        ("sub/package.json", FileKind.CONFIGURATION),
        ("Makefile", FileKind.CONFIGURATION),
        ("json.py", FileKind.START_UP),
        ("src/pytest/__init__.py", FileKind.START_UP),
        ("_pytest.py", FileKind.START_UP),
        ("sitecustomize.py", FileKind.START_UP),
        (".venv/bin/pytest", FileKind.ENVIRONMENT),
        ("a/node_modules/x/index.js", FileKind.ENVIRONMENT),
        ("app/json.py", None),
        ("app/pytest/helper.py", None),
        ("calc.py", None),
        ("contest.py", None),
    ],
)
def test_files_are_known_by_their_place(path: str, kind: FileKind | None) -> None:
    assert Guards().kind_of(path, ADDED) is kind


def test_a_module_that_the_goal_names_shadows_nothing() -> None:
    assert Guards(goal_files=frozenset({"statistics.py"})).kind_of("statistics.py", ADDED) is None
    assert Guards().kind_of("statistics.py", FileChange.MODIFIED) is None, "it was there before"


def test_programs_that_check_are_told_from_those_that_are_checked() -> None:
    paths = ["check.py", "main.py", "run.sh", "scripts/verify", "Makefile"]
    found = programs_of(["python main.py && python check.py", "sh ./run.sh", "scripts/verify", "make all"], paths)
    assert found == {"check.py", "run.sh", "scripts/verify", "Makefile"}
    assert data_named_in(["open('cases.json')"], ["data/cases.json", "other.json", "calc.py"]) == {"data/cases.json"}


def test_metadata_of_a_package_is_not_configuration_of_its_checks() -> None:
    old = b'[project]\nversion = "1"\n[tool.pytest.ini_options]\naddopts = ""\n[tool.poetry]\nname = "x"\n'
    assert is_same_setup("pyproject.toml", old, old.replace(b'"1"', b'"2"').replace(b'"x"', b'"y"'))
    assert not is_same_setup("pyproject.toml", old, old.replace(b'addopts = ""', b'addopts = "-k x"'))
    assert is_same_setup("package.json", b'{"version": "1"}', b'{"version": "2", "dependencies": {"a": "1"}}')
    assert not is_same_setup("package.json", b'{"scripts": {"test": "jest"}}', b'{"scripts": {"test": "true"}}')
    assert not is_same_setup("pytest.ini", b"[pytest]\n", b"[pytest]\naddopts = --co\n")
    assert not is_same_setup("pyproject.toml", b"not toml [", b"[tool]\n")


def test_an_assertion_of_debug_builds_may_not_change_what_it_asserts() -> None:
    old = "impl Box {\n    fn flush(&mut self) -> usize { 0 }\n    fn len(&self) -> usize { 0 }\n}\n"
    for line, found in (("debug_assert!(self.flush() < 9);", True), ("debug_assert_eq!(self.len(), 0);", False)):
        assert bool(suspicious_lines("src/lib.rs", old, f"{old}fn close(b: Box) {{\n    {line}\n}}\n")) is found


CRATE = b"""[package]
name = "csv"
version = "0.1.0"

[dependencies]
quote = "1"
"""


@pytest.mark.parametrize(
    ("new", "same"),
    [
        (CRATE.replace(b"0.1.0", b"0.2.0") + b'more = { path = "crates/more" }\n', True),
        (b'[workspace]\nmembers = ["crates/more"]\n' + CRATE, True),
        (b'[workspace]\nmembers = ["crates/more"]\ndefault-members = ["crates/more"]\n' + CRATE, False),
        (CRATE.replace(b'quote = "1"', b'quote = { path = "crates/quote" }'), False),
        (CRATE + b'std = { path = "crates/std" }\n', False),
        (CRATE + b'loose = { package = "quote", version = "1", features = ["loose"] }\n', False),
        (CRATE + b'[dev-dependencies]\nquote = { path = "crates/quote" }\n', False),
        (CRATE.replace(b'name = "csv"', b'name = "csv"\nautotests = false'), False),
        (CRATE + b'[patch.crates-io]\nquote = { path = "crates/quote" }\n', False),
        (CRATE + b"[lib]\ntest = false\n", False),
        (CRATE + b"[profile.test]\nopt-level = 3\n", False),
    ],
)
def test_only_packages_members_and_descriptions_may_be_added_to_a_crate(new: bytes, same: bool) -> None:
    assert is_same_setup("Cargo.toml", CRATE, new) is same
    assert not is_same_setup("Cargo.toml", new, b"[package]\n")


def test_a_new_crate_is_no_configuration_unless_it_runs_while_it_is_built() -> None:
    assert is_same_setup("crates/more/Cargo.toml", None, CRATE)
    assert not is_same_setup("crates/more/Cargo.toml", None, CRATE.replace(b"[dep", b'build = "run.rs"\n[dep'))
    assert not is_same_setup("crates/more/Cargo.toml", None, CRATE + b"[lib]\nproc-macro = true\n")
    assert not is_same_setup("GNUmakefile", None, b"test:\n\ttrue\n")


def test_lines_that_make_any_check_pass_are_found_where_they_are_new() -> None:
    code = "import os\nos._exit(0)\n\n\nclass A:\n    def __eq__(self, o):\n        '''Any.'''\n        return True\n"
    assert suspicious_lines("a.py", "", code) == ("a.py:2: os._exit(0)", "a.py:8: return True")
    assert suspicious_lines("a.py", code, code) == ()
    assert suspicious_lines("a.md", "", code) == ()
    assert (
        suspicious_lines("a.py", "", "import sys\n\n\ndef main():\n    sys.exit(0)\n\n\ndef f():\n    return True\n")
        == ()
    )


def lines(*events: dict[str, object], nonce: str = "n") -> str:
    return "\n".join(json.dumps({"n": nonce, **event}) for event in events)


SESSION = {"e": "session", "s": "1", "k": "pytest"}
ENDS = ({"e": "canary", "s": "1", "failed": True}, {"e": "finish", "s": "1"})


def test_events_become_a_report() -> None:
    tests = [{"e": "test", "s": "1", "id": f"t{n}", "r": result} for n, result in enumerate(("passed", "failed"))]
    seen = read_events(lines(SESSION, *tests, *ENDS), "n", "/w")
    [report] = seen.reports
    assert (report.total, report.passed, report.failed, report.is_complete) == (2, 1, 1, True)
    assert not read_events(lines(SESSION, *tests), "n", "/w").reports[0].is_complete, "it never ended"
    assert read_events(lines(SESSION, *tests, *ENDS, nonce="other"), "n", "/w").reports == ()
    alive = {"e": "canary", "s": "1", "failed": False}
    assert read_events(lines(SESSION, alive, ENDS[1]), "n", "/w").denied


def test_an_error_that_was_reported_as_passed_is_seen() -> None:
    raised = {"e": "raw", "s": "1", "id": "t"}
    told = {"e": "test", "s": "1", "id": "t", "r": "passed"}
    assert read_events(lines(SESSION, raised, told, *ENDS), "n", "/w").denied == ("t",)
    assert read_events(lines(SESSION, raised, {**told, "r": "failed"}, *ENDS), "n", "/w").denied == ()


def test_a_test_that_fails_in_its_second_run_is_doubted() -> None:
    told, again = {"e": "test", "s": "1", "id": "t", "r": "passed"}, {"e": "again", "s": "1", "id": "t"}
    seen = read_events(lines(SESSION, told, again, *ENDS), "n", "/w")
    assert (seen.unrepeatable, seen.results["pytest"]) == (("t",), {"t": "passed"})
    found = findings_of([], InitialState(tree="a"), Changes(unrepeatable=seen.unrepeatable))
    assert [(finding.rule, finding.evidence, finding.is_open) for finding in found] == [
        (ProofRule.SUSPICIOUS, ("t",), True)
    ]


def test_an_interpreter_without_a_regular_end_is_seen_where_no_other_started_it() -> None:
    start = {"e": "start", "pid": 5, "ppid": 1, "argv": ["python", "check.py"]}
    assert read_events(lines(start), "n", "/w").cut_short == ("python check.py",)
    assert read_events(lines(start, {"e": "end", "pid": 5}), "n", "/w").cut_short == ()
    child = {"e": "start", "pid": 6, "ppid": 5, "argv": ["python"]}
    assert read_events(lines(start, child, {"e": "end", "pid": 5}), "n", "/w").cut_short == ()


def test_tests_with_parameters_count_by_their_number() -> None:
    assert missing({"t[a]": "passed", "t[b]": "failed"}, {"t[1]": "passed", "t[2]": "passed"}) == ()
    assert missing({"t[a]": "passed", "t[b]": "failed"}, {"t[1]": "passed"}) == ("t[a]", "t[b]")
    assert missing({"t": "skipped", "u": "failed"}, {"t": "skipped", "u": "skipped"}) == ("u",)


@given(st.text(max_size=300))
def test_any_events_are_read(text: str) -> None:
    odd = lines({"e": "test", "s": 3, "id": ["x"], "r": None})
    assert read_events(f"{text}\n{odd}", "n", "/w").reports == ()


def check_run(status: CheckStatus = CheckStatus.PASSED, code: int = 0) -> CheckRun:
    return CheckRun(name="pytest", run="pytest", status=status, exit_code=code, tail=clip("out", 10))


def measured(seen: Observation, check: CheckRun, tests: From = From.DELIVERED) -> ObservedRun:
    import datetime

    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return ObservedRun(ProofRun(tests=tests, checks=(check,), started=now, ended=now), (seen,))


def observed(**results: str) -> Observation:
    return Observation(checkers=("pytest",), results={"pytest": results}, complete={"pytest": True})


BEGINNING = InitialState(
    tree="b", checks=(CheckBaseline(run="pytest", exit_code=1, observation=observed(a="failed", b="passed")),)
)


def rules(*runs: ObservedRun, changes: Changes = Changes()) -> list[tuple[ProofRule, bool]]:
    found = findings_of(runs, BEGINNING, changes)
    return [(finding.rule, finding.announced) for finding in found]


def test_what_passed_as_before_is_proven() -> None:
    assert rules(measured(observed(a="passed", b="passed", c="passed"), check_run())) == []


def test_fewer_tests_skipped_tests_and_no_report_are_not() -> None:
    gone = (ProofRule.TESTS_CHANGED, False)
    assert rules(measured(observed(b="passed"), check_run())) == [gone]
    assert rules(measured(observed(a="skipped", b="passed"), check_run())) == [gone]
    assert rules(measured(observed(a="skipped", b="skipped"), check_run())) == [(ProofRule.NOTHING_PASSED, False), gone]
    assert rules(measured(Observation(), check_run())) == [(ProofRule.NO_REPORT, False)]
    assert rules(measured(observed(a="failed", b="passed"), check_run())) == [(ProofRule.REPORT_DIFFERS, False), gone]


def test_a_test_that_others_replace_counts_if_the_delivered_sources_pass_it() -> None:
    replaced = measured(observed(b="passed", c="passed"), check_run())
    original = measured(observed(a="passed", b="passed"), check_run(), From.BEGINNING)
    assert rules(replaced, original) == []
    deleted = measured(observed(b="passed"), check_run())
    assert rules(deleted, original) == [(ProofRule.TESTS_CHANGED, False)]
    skipped = measured(observed(a="skipped", b="passed"), check_run(), From.BEGINNING)
    assert (ProofRule.TESTS_CHANGED, False) in rules(replaced, skipped)


def test_a_check_whose_tests_came_with_the_work_has_nothing_to_say_about_the_original_ones() -> None:
    runs = ("pytest -q", "pytest -q tests/test_a.py::test_new")
    file = ChangedFile(path="tests/test_a.py", kind=FileKind.TEST, change=FileChange.MODIFIED)
    changes = Changes(restored=(file,), unannounced=(file.path,))
    beginning = InitialState(
        tree="b",
        checks=(
            CheckBaseline(run=runs[0], passed=True, exit_code=0, observation=observed(a="passed")),
            CheckBaseline(run=runs[1], exit_code=4, observation=observed()),
        ),
    )

    def both(tests: From, suite: CheckStatus, new: CheckStatus, *seen: Observation) -> ObservedRun:
        codes = [0 if status is CheckStatus.PASSED else code for status, code in ((suite, 1), (new, 4))]
        checks = [
            check_run(status, code).evolve(run=run) for run, status, code in zip(runs, (suite, new), codes, strict=True)
        ]
        single = measured(seen[0], checks[0], tests)
        return ObservedRun(single.run.evolve(checks=tuple(checks)), seen)

    passed, failed = CheckStatus.PASSED, CheckStatus.FAILED
    delivered = both(From.DELIVERED, passed, passed, observed(a="passed", n="passed"), observed(n="passed"))
    original = both(From.BEGINNING, passed, failed, observed(a="passed"), observed())
    assert findings_of((delivered, original), beginning, changes) == ()
    assert checks_without_tests(original, beginning, changes) == (runs[1],)
    broken = both(From.BEGINNING, failed, failed, observed(a="failed"), observed())
    [finding] = findings_of((delivered, broken), beginning, changes)
    assert finding.rule is ProofRule.TESTS_CHANGED


def test_the_files_that_a_test_runner_gets_are_no_programs() -> None:
    started = {"e": "start", "pid": 1, "ppid": 0, "cwd": "/w"}
    session = {**SESSION, "pid": 1}
    for argv in (["python", "-m", "pytest", "-q", "tests/test_a.py"], ["python", "/usr/bin/pytest", "tests/test_a.py"]):
        assert read_events(lines({**started, "argv": argv}, session), "n", "/w").programs == ()
    script = {**started, "argv": ["python", "-B", "run_all.py"]}
    assert read_events(lines(script, session), "n", "/w").programs == ("run_all.py",)
    bare = {**started, "argv": ["python", "-m", "coverage", "run", "run_all.py"]}
    assert read_events(lines(bare), "n", "/w").programs == ("run_all.py",)


def test_a_change_that_the_goal_announces_is_evidence() -> None:
    file = ChangedFile(path="tests/test_a.py", kind=FileKind.TEST, change=FileChange.MODIFIED)
    red = measured(observed(a="failed", b="passed"), check_run(CheckStatus.FAILED, 1), From.BEGINNING)
    green = measured(observed(a="passed", b="passed"), check_run())
    changes = Changes(restored=(file,), unannounced=(file.path,))
    assert rules(green, red, changes=changes) == [(ProofRule.TESTS_CHANGED, False)]
    assert rules(green, red, changes=changes._replace(unannounced=())) == [(ProofRule.TESTS_CHANGED, True)]
