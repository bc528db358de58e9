"""What a program may add to the disk, in all the ways to add something."""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.checks.runner import CheckRunner
from activities.executor.agent.cli import AgentExecutor
from activities.process import Growth, ProcessResult, Reason, run_process
from activities.process.output import GrowthWatch
from activities.sandbox.bubblewrap import BubblewrapSandbox
from tests.support.agents.sample import SampleAdapter
from tests.support.orders import Supervision, order
from tests.support.processes import request_for
from tightloop.episode.check import Check
from tightloop.executor.model import ErrorKind, ExecutorChoice, ExecutorStatus
from tightloop.settings import AgentSettings, SandboxSettings

LIMIT_BYTES = 64 * 2**20
WRITE = """
import os, sys
def fill(name, size=20_000_000):
    with open(name, "wb") as file: file.write(os.urandom(1000) * (size // 1000))
"""
LINGER = "\nimport time; time.sleep(60)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder where few others write: what they remove meanwhile hides what is added."""
    quiet = Path("/dev/shm")
    if not quiet.is_dir() or shutil.disk_usage(quiet).free < 2 * 10**9:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=quiet) as folder:
        yield Path(folder)


def run(root: Path, code: str, **changes: Any) -> ProcessResult:
    growth = Growth(folders=(root, root / "inner"), limit_bytes=LIMIT_BYTES)
    argv = (sys.executable, "-c", WRITE + code)
    request = request_for(argv, cwd=root, growth=growth, grace_s=0.5, wall_limit_s=40.0, **changes)
    return run_process(request, cancelled=lambda: False, started=lambda _pid: None)


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("os.mkdir('build')\nfor n in range(8): fill(f'build/{n}')", "build ("),
        ("for n in range(8):\n fill(f'{n}')\n", " MB)"),
        ("os.makedirs('a/b/c'); fill('a/b/c/big', 150_000_000)", "a ("),
        (
            "kept = open('held', 'wb'); os.remove('held'); kept.write(bytes(10**8))",
            "deleted files that are still",
        ),
        ("fill('old', 150_000_000); os.utime('old', (0, 0))", "old ("),
    ],
    ids=["folder", "files", "deep", "removed", "dated back"],
)
def test_a_program_that_fills_the_disk_is_ended_and_told_where(disk: Path, code: str, most: str) -> None:
    (disk / "before").write_bytes(b"x" * 90_000_000)
    begun = time.monotonic()
    result = run(disk, code + LINGER)
    assert result.reason is Reason.DISK_LIMIT, result
    assert result.message.startswith("killed: the program added more than 67 MB to the disk, mostly in ")
    assert most in result.message
    assert "before" not in result.message
    assert time.monotonic() - begun < 30


def test_one_that_is_done_before_the_next_look_is_found_out_as_well(disk: Path) -> None:
    assert run(disk, "fill('big', 100_000_000)").reason is Reason.DISK_LIMIT


def test_what_was_there_or_is_small_does_not_count(disk: Path) -> None:
    (disk / "before").write_bytes(b"x" * 90_000_000)
    code = """
os.chmod("before", 0o600); os.rename("before", "after")
for n in range(30): os.link("after", f"link-{n}")
fill("new"); fill("gone"); os.remove("gone")
with open("sparse", "wb") as file: file.truncate(10**9)
"""
    assert run(disk, code).reason is Reason.EXITED


def test_room_that_others_use_is_not_that_of_the_program(disk: Path) -> None:
    mine, other = disk / "mine", disk / "other"
    mine.mkdir()
    watch = GrowthWatch(Growth(folders=(mine,), limit_bytes=LIMIT_BYTES))
    other.write_bytes(b"x" * 2 * LIMIT_BYTES)
    assert watch.describe_excess(list) == ""
    (mine / "small").write_bytes(b"x" * 1000)
    assert watch.describe_excess(list) == ""


def test_a_check_that_fills_the_tree_says_so(disk: Path) -> None:
    if problem := BubblewrapSandbox().probe():
        pytest.skip(problem)
    runner = CheckRunner(BubblewrapSandbox(), SandboxSettings(disk_mb=64), grace_s=0.5)
    check = Check(run="mkdir out; for n in 1 2 3 4; do head -c 40000000 /dev/urandom > out/$n; done; sleep 60")
    result = runner.run(check, disk, cancelled=lambda: False, started=lambda _pid: None)
    assert result.exit_code is None
    assert b"the program added more than 67 MB to the disk, mostly in out (" in result.output
    assert b"raise sandbox.disk_mb" in result.output


def test_an_agent_that_fills_the_tree_has_failed(disk: Path) -> None:
    root = disk / "project"
    (root / ".tightloop").mkdir(parents=True)
    settings = AgentSettings()
    executor = AgentExecutor(SampleAdapter(), settings=settings, homes=disk / "homes", grace_s=0.5, disk_mb=64)
    code = "for n in range(8): open(f'big-{n}', 'wb').write(os.urandom(20_000_000))\ntime.sleep(60)"
    choice = ExecutorChoice(name="sample", wall_limit_s=60.0, idle_limit_s=50.0)
    wanted = order(root).evolve(prompt=code, executor=choice)
    outcome = executor.execute(wanted, Supervision(), root / ".tightloop")
    assert (outcome.status, outcome.error_kind) == (ExecutorStatus.FAILED, ErrorKind.SANDBOX)
    assert "mostly in big-" in outcome.error
