"""Programs that a tree brings along, under the names of others: nothing of it runs outside of a sandbox."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from activities.sandbox.bubblewrap import BubblewrapSandbox
from tests.support.agents.install import agent_program
from tests.support.extent import ALL
from tests.support.hostile_programs import (
    FOLDERS,
    NAMES,
    OWN,
    PROGRAMS,
    TRACER,
    plant,
    programs_outside,
    programs_started,
)

PROJECT = Path(__file__).parents[2]
SOME = tuple(PROGRAMS) if ALL else ("codex", "codex-alone")


@pytest.fixture
def watch(tmp_path: Path) -> Path:
    if shutil.which("strace") is None:
        pytest.skip("strace is needed to see every program that is started: apt install strace")
    if problem := BubblewrapSandbox().probe():
        pytest.skip(problem)
    assert len(NAMES) >= 60
    folder = tmp_path / "watch"
    folder.mkdir(mode=0o777)
    return folder


@pytest.mark.timeout(400)
@pytest.mark.parametrize("agent", SOME)
def test_an_agent_runs_programs_of_the_tree_in_the_sandbox_only(
    agent: str, workspace: Path, watch: Path, tmp_path: Path
) -> None:
    agent_program(PROGRAMS[agent][0])
    plant(workspace, watch)
    trace = tmp_path / "trace"
    done = subprocess.run(
        (*TRACER, str(trace), sys.executable, "-m", "tests.support.hostile_programs", agent, str(tmp_path)),
        cwd=PROJECT, env={**os.environ, "TIGHTLOOP_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False, timeout=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    fences = {"codex": "bubblewrap+own", "codex-alone": "own"}
    assert done.stdout == f"completed {fences.get(agent, 'bubblewrap')} \n", done.stdout
    assert (workspace / "made.txt").read_text() == "made\n"
    assert programs_outside(watch) == []
    own = str(workspace / FOLDERS[0] / OWN)
    assert own in programs_started(trace), "the tracer did not see the program that the model started"
