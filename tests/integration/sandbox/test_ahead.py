"""A supervisor that waits ahead of the next command: used once, and never left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from activities.process.start import Shim
from activities.sandbox.bubblewrap import BubblewrapSandbox
from activities.sandbox.control_group import PREPARED_GROUP, ControlGroup, find_hierarchy
from activities.sandbox.port import SandboxResult, SandboxSpec
from tests.support.stack.stack import ROOT

WAIT_S = 20.0
T = TypeVar("T")
Ready = tuple[ControlGroup, Shim]
OWNER = """
import sys, time
from pathlib import Path
from typing import TypeVar
from tests.integration.sandbox.test_ahead import command, waiting
command(Path(sys.argv[1]), "true")
group, shim = waiting()
print(shim.popen.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _walled() -> Iterator[None]:
    if problem := BubblewrapSandbox().probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    if find_hierarchy() is None:
        pytest.skip("this user may not make control groups here")
    PREPARED_GROUP.discard()
    yield
    PREPARED_GROUP.discard()


def command(root: Path, line: str, **bounds: int) -> SandboxResult:
    spec = SandboxSpec(argv=("sh", "-c", line), root=root, **bounds)  # type: ignore[arg-type]
    return BubblewrapSandbox().run(spec, cancelled=lambda: False, started=lambda _pid: None)


def until(found: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + WAIT_S
    while (value := found()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def waiting() -> Ready:
    """Return what waits, once it does; it stays where it is."""
    return until(lambda: PREPARED_GROUP.ready)


def gone(pid: int) -> bool | None:
    return True if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else None


def test_one_command_has_it_and_its_own_bounds(tmp_path: Path) -> None:
    assert command(tmp_path, "true").exit_code == 0
    group, shim = waiting()
    result = command(tmp_path, "echo here; cat /proc/self/limits | grep -c 'Max open files *4096'", processes=30)
    assert (result.exit_code, result.output) == (0, b"here\n1\n")
    assert until(lambda: gone(shim.popen.pid))
    assert not any(folder.exists() for folder in group.folders)
    assert waiting()[1] is not shim
    refused = command(tmp_path, "for i in $(seq 60); do sleep 30 & done", processes=20)
    assert refused.reason.value == "process_limit", refused


def test_a_command_that_cannot_start_ends_it(tmp_path: Path) -> None:
    command(tmp_path, "true")
    group, shim = waiting()
    spec = SandboxSpec(argv=("true",), root=tmp_path, environment={"MY_TOKEN": "x"})
    result = BubblewrapSandbox().run(spec, cancelled=lambda: False, started=lambda _pid: None)
    assert "suggests that it holds a secret" in result.message
    assert until(lambda: gone(shim.popen.pid))
    assert not any(folder.exists() for folder in group.folders)


def test_a_command_with_input_of_its_own_leaves_it(tmp_path: Path) -> None:
    command(tmp_path, "true")
    _, shim = waiting()
    (tmp_path / "input").write_text("words")
    spec = SandboxSpec(argv=("cat",), root=tmp_path, stdin=tmp_path / "input")
    result = BubblewrapSandbox().run(spec, cancelled=lambda: False, started=lambda _pid: None)
    assert result.output == b"words"
    assert waiting()[1] is shim


def test_nothing_is_left_when_it_is_given_up(tmp_path: Path) -> None:
    command(tmp_path, "true")
    group, shim = waiting()
    PREPARED_GROUP.discard()
    assert until(lambda: gone(shim.popen.pid))
    assert not any(folder.exists() for folder in group.folders)


def test_one_that_was_killed_while_it_waited_costs_no_command(tmp_path: Path) -> None:
    command(tmp_path, "true")
    group, shim = waiting()
    shim.popen.kill()
    shim.popen.wait(WAIT_S)
    assert command(tmp_path, "echo all the same").output == b"all the same\n"
    assert not any(folder.exists() for folder in group.folders)


def test_a_killed_worker_leaves_none(tmp_path: Path) -> None:
    owner = subprocess.Popen((sys.executable, "-c", OWNER, str(tmp_path)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        members = [pid, until(lambda: next((child.pid for child in psutil.Process(pid).children()), None))]
    finally:
        owner.kill()
        owner.communicate(timeout=WAIT_S)
    assert all(until(lambda each=each: gone(each)) for each in members)


def test_a_forked_process_has_none_of_its_own(tmp_path: Path) -> None:
    command(tmp_path, "true")
    _, shim = waiting()
    child = os.fork()
    if child == 0:
        os._exit(0 if PREPARED_GROUP.ready is None and command(tmp_path, "true").exit_code == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert waiting()[1] is shim
    assert command(tmp_path, "echo still").output == b"still\n"
