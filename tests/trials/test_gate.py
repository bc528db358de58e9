"""Real tests and empty ones, in four sets: which of them the gate lets through."""

from pathlib import Path

import pytest

from activities.sandbox.bubblewrap import BubblewrapSandbox
from tests.support.extent import ALL
from tests.support.gating import judge_prepared, make_lean_environment, prepared

# The other two led to rules.
SETS = ["first", "second", "third", "fourth"] if ALL else ["first"]
FILES = 10
"""Of each kind in each set."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SETS)
def test_real_tests_count_and_empty_ones_do_not(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if problem := BubblewrapSandbox().probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    reports = judge_prepared(tmp_path, name, make_lean_environment(tmp_path / "environment"))
    accepted = {one.test for report in reports.values() for one in report.accepted}
    refused = {one.test: one.reason for report in reports.values() for one in report.refused}
    empty = {path for files in prepared(name, "empty").values() for path in files}
    real = {path for files in prepared(name, "real").values() for path in files}
    assert (len(empty), len(real)) == (FILES, FILES)
    assert {test for test in accepted if test.partition("::")[0] in empty} == set()
    # Nobody judged nothing: each file has its verdict.
    assert {test.partition("::")[0] for test in (*accepted, *refused)} == empty | real
    wrong = {test: reason for test, reason in refused.items() if test.partition("::")[0] in real}
    assert len(wrong) <= 1, wrong
