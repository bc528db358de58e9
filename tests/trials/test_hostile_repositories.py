"""Whatever a repository says, nothing of it runs, nothing outside of it changes, and the error names the cause."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.git_sample import on_disk
from tests.support.hostile_repositories import KINDS, make
from tightloop.episode.model import EpisodeOutcome

PROJECT = Path(__file__).parents[2]
EXECUTED = re.compile(r'execve\("([^"]+)", \[(.*?)\]')


@pytest.mark.timeout(900)
def test_hostile_repositories_run_nothing_and_change_nothing_outside(tmp_path: Path) -> None:
    if sys.platform != "linux" or shutil.which("strace") is None:
        pytest.skip("strace is needed to see every program that is started: apt install strace")
    for kind in KINDS:
        make(kind, tmp_path)
    (tmp_path / "watch/ran").unlink(missing_ok=True)
    before = on_disk(tmp_path / "watch")
    trace = tmp_path / "trace"
    done = subprocess.run(
        ("strace", "-f", "-qq", "-s", "200", "-e", "trace=execve", "-e", "signal=none", "-o", str(trace),
         sys.executable, "-m", "tests.support.hostile_repositories", str(tmp_path)),
        cwd=PROJECT, env={**os.environ, "TIGHTLOOP_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, check=False, timeout=880,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    results = {line["kind"]: line["errors"] for line in map(json.loads, done.stdout.splitlines())}
    assert len(results) == len(KINDS) >= 60
    assert not (tmp_path / "watch/ran").exists()
    assert on_disk(tmp_path / "watch") == before
    started = EXECUTED.findall(trace.read_text())
    foreign = {name for name, _ in started if Path(name).name not in ("git", Path(sys.executable).name)}
    assert foreign == set()
    assert len(started) > len(KINDS), "the tracer saw nothing"
    for kind, errors in results.items():
        for error in errors:
            assert len(error) > 40, (kind, error)


@pytest.mark.parametrize("kind", ["filter-process", "hooks-tracked", "submodule", "fsmonitor", "object-format-lines"])
async def test_episode_in_a_hostile_repository_runs_nothing_of_it(
    client, working, request_for, workspace: Path, tmp_path: Path, kind: str
) -> None:
    watch = tmp_path / "watch"
    watch.mkdir()
    KINDS[kind](workspace, watch)
    (watch / "ran").unlink(missing_ok=True)
    async with working():
        result = await client.result(await client.start(request_for()))
    assert result.outcome is EpisodeOutcome.SUCCEEDED
    assert list(watch.iterdir()) == []
