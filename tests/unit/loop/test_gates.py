"""The gates of a project: their settings, and reading what they print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.check import Check, judge
from tightloop.loop.gates import GateCheck, gate_name, read_gate, report_file
from tightloop.loop.model import Conflict, GateResult, failing_gates
from tightloop.settings import parse_settings

GATE = Check(run="make check", name="check")


def read(output: str, code: int = 1, report: str = "", gate: Check = GATE) -> tuple[GateCheck, ...]:
    result = judge(gate, tree="", exit_code=code, timed_out=False, duration_s=1.25, output=output)
    return read_gate(gate, result, output, report)


def test_settings_name_gates_for_all_projects_or_for_one() -> None:
    found = parse_settings("gates: {checks: [make], projects: {/home/me/a/: [{run: pytest, name: tests}]}}", {}).gates
    assert [check.run for check in found.for_project("/home/me/b")] == ["make"]
    assert [check.name for check in found.for_project("/home/me/a")] == ["tests"]


@pytest.mark.parametrize(
    ("output", "first"),
    [
        ("FAILED tests/a.py::test_x - assert 0\n1 failed, 2 passed in 0.1s\n", "gate:check/tests/a.py::test_x"),
        ("TAP version 13\n1..2\nok 1 - a\nnot ok 2 - b c\n", "gate:check/b c"),
        ("src/a.ts(3,4): error TS2322: Type 'x'\n", "gate:check/src/a.ts:3:4 TS2322"),
        ("\x1b[96msrc/a.ts\x1b[0m:1:7 - \x1b[91merror\x1b[0m TS2322: no\n", "gate:check/src/a.ts:1:7 TS2322"),
        ("a.py:1:8: F401 unused import\nFound 1 error.\n", "gate:check/a.py:1:8 F401"),
        ("F401 [*] `os` unused\n --> a.py:1:8\n  |\n", "gate:check/a.py:1:8 F401"),
        ('a.py:5: error: No "x"  [return-value]\nFound 1 error in 1 file\n', "gate:check/a.py:5 return-value"),
        ('<?xml version="1.0"?><s><testcase classname="A" name="t"><failure/></testcase></s>', "gate:check/A::t"),
    ],
)
def test_what_failed_within_a_gate_is_named(output: str, first: str) -> None:
    gate, inside, *_ = read(output)
    assert (gate.name, gate.passed, gate.duration_ms) == ("gate:check", False, 1250)
    assert (inside.name, inside.passed) == (first, False)


def test_gate_with_a_slash_in_its_name_is_named_as_the_one_that_failed() -> None:
    checks = read("1..1\nnot ok 1 - b\n", gate=Check(run="sh ./x/y.sh"))
    assert [check.within for check in checks] == [False, True]
    assert failing_gates(GateResult(checks=checks)) == "gate:sh ./x/y.sh did not pass"


@pytest.mark.parametrize(
    ("time", "milliseconds"), [("nan", 0), ("-1", 0), ("inf", 1_000_000_000), ("soon", 0), ("0.25", 250)]
)
def test_the_time_in_a_report_may_be_any_text(time: str, milliseconds: int) -> None:
    report = f'<testsuite><testcase name="a" time="{time}"/></testsuite>'
    _, passed = read("", report=report)
    assert passed.duration_ms == milliseconds


def test_report_that_a_gate_wrote_wins_over_what_it_printed() -> None:
    report = '<testsuites><testsuite><testcase name="a" time="0.5"/><testcase name="b"><error message="no"/></testcase>'
    gate, failed, passed = read("FAILED x\n", report=report + "</testsuite></testsuites>")
    assert (failed.name, failed.message) == ("gate:check/b", "no")
    assert (passed.passed, passed.duration_ms) == (True, 500)
    assert gate.message.startswith("1 failed, 1 passed")
    assert report_file(Check(run="pytest --junitxml=out/r.xml -q")) == "out/r.xml"


def test_reports_of_scripts_that_run_one_after_the_other_are_all_read() -> None:
    one = '<?xml version="1.0"?><testsuites><testcase name="{}"/></testsuites>'
    output = f"1..1\nok 1 - a\nnpm warn x\n{one.format('b')}\nnpm notice\n{one.format('c')} bye\n"
    assert [check.name for check in read(output, code=0)[1:]] == ["gate:check/b", "gate:check/c", "gate:check/a"]


def test_exit_code_alone_decides() -> None:
    assert read("0 failed, 3 passed in 1s", code=1)[0].passed is False
    assert read("not ok 1 - x\nTAP version 13\n1..1", code=0)[0].passed is True
    assert "not installed" in read("", code=127)[0].message


def test_test_that_is_known_not_to_work_fails_nothing() -> None:
    assert [check.passed for check in read("1..2\nok 1 - a\nnot ok 2 - b # TODO later\n", code=0)] == [True] * 3


def test_document_with_entities_is_not_read() -> None:
    bomb = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><x><testcase name="&a;"/></x>'
    assert len(read(bomb)) == 1


@given(st.text(max_size=400), st.integers(0, 200), st.text(max_size=100))
def test_any_output_is_read_within_bounds(output: str, code: int, report: str) -> None:
    gate, *within = read(output, code, report)
    assert gate.passed == (code == 0)
    assert len(gate.message) <= 600
    assert len(within) <= 30
    assert all(len(check.name) <= 200 for check in within)


def test_name_of_a_gate_begins_with_gate_once() -> None:
    assert gate_name(Check(run="npm run x", name="gate:web")) == "gate:web"
    assert gate_name(Check(run="pytest -q")) == "gate:pytest -q"


def test_check_of_a_conflict_looks_for_markers_and_files_beside() -> None:
    check = Conflict(base="b", tree="t", paths=("a b.txt",), beside=("x.bin.theirs",)).check
    assert not check.problem
    assert "'a b.txt'" in check.run
    assert "test ! -e x.bin.theirs" in check.run
