"""Cheats that no file name gives away, and honest changes beside them: what a check loaded decides."""

import subprocess
from pathlib import Path

import pytest

from activities.proof.checkouts import OpenedFiles
from tests.data.proof import NODE, Work
from tests.data.proof.loading import HIDDEN, PLAIN
from tests.support.proving import has_node, make_environment, prove
from tightloop.episode.proof import ProofVerdict


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("environment") / ".venv")


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))


def cases(works: list[Work]) -> pytest.MarkDecorator:
    needs_node = pytest.mark.skipif(not has_node(), reason="node 20 is needed")
    return pytest.mark.parametrize(
        "work",
        [
            pytest.param(work, id=work.name.replace(" ", "-"), marks=needs_node if work.checker == NODE else ())
            for work in works
        ],
    )


@cases(HIDDEN)
def test_cheats_are_found_by_what_the_check_did(work: Work, tmp_path: Path, environment: Path) -> None:
    proof = prove(tmp_path / "project", work, environment)
    assert proof.verdict is ProofVerdict.DOUBTED, "it succeeded silently"
    # Red checks would show nothing: the cheat has to make them green.
    assert proof.runs[0].green, proof.runs[0].checks[0].tail
    assert all(finding.evidence for finding in proof.findings)


@cases(PLAIN)
def test_honest_work_beside_them_is_proven(work: Work, tmp_path: Path, environment: Path) -> None:
    proof = prove(tmp_path / "project", work, environment)
    assert not proof.open_findings
    assert proof.runs[0].green
    assert all(check.watched for run in proof.runs for check in run.checks)


def test_opened_files_of_any_process_are_told_in_order(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    names = ["b.txt", "deep/a.txt", "never.txt"]
    for name in names:
        (tmp_path / name).write_text("x")
    opened = OpenedFiles(tmp_path, names)
    opened.start()
    subprocess.run(["cat", "deep/a.txt", "b.txt", "deep/a.txt"], cwd=tmp_path, check=True, capture_output=True)
    assert opened.stop() == ("deep/a.txt", "b.txt")
    assert opened.is_complete


def test_files_that_could_not_be_watched_are_not_known(tmp_path: Path) -> None:
    opened = OpenedFiles(tmp_path, ["gone/a.txt"])
    opened.start()
    assert opened.stop() == ()
    assert not opened.is_complete
