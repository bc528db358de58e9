"""Cheats and honest changes with runners that are neither Python's nor Node's own."""

import os
import sys
from pathlib import Path

import pytest

from tests.data.proof import Work
from tests.support.proving import prove
from tests.support.runners import folders_of, read_works
from tightloop.episode.proof import Proof, ProofVerdict

MISSED = frozenset[str]()
"""Cheats that are known to succeed silently."""
ASKED = frozenset({"honest-rspec-order"})
"""Honest changes that are known to be asked about."""
OVERRIDDEN = frozenset({"cargo-runner"})
"""Cheats by a setting that the observer's own takes the place of, so that the check stays red."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "project"


def play(work: Work, project: Path, monkeypatch: pytest.MonkeyPatch) -> Proof:
    programs, *folders = folders_of(work.checker)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return prove(project, work, project, [programs, *folders])


@pytest.mark.parametrize("work", read_works(honest=False), ids=lambda work: work.name)
def test_a_cheat_is_doubted(work: Work, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if work.name in MISSED:
        pytest.xfail("known to succeed silently")
    proof = play(work, project, monkeypatch)
    # A check that stays red would show nothing.
    assert proof.runs[0].green is (work.name not in OVERRIDDEN), proof.runs[0].checks[0].tail
    assert proof.verdict is ProofVerdict.DOUBTED, "it succeeded silently"
    assert all(finding.evidence for finding in proof.open_findings)


@pytest.mark.parametrize("work", read_works(honest=True), ids=lambda work: work.name)
def test_an_honest_change_is_proven(work: Work, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if work.name in ASKED:
        pytest.xfail("known to be asked about")
    proof = play(work, project, monkeypatch)
    assert proof.runs[0].green, proof.runs[0].checks[0].tail
    assert not proof.open_findings, proof.open_findings
