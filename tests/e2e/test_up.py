"""`up`: who owns the server, also after a crash."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.episodes import eventually
from tests.support.stack.stack import ROOT
from worker.server import Owner, free_port, owner_file


def start_up(home: Path, port: int, ui_port: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "TIGHTLOOP_HOME": str(home),
        "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{port}",
        "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{ui_port}",
    }
    command = [sys.executable, "-m", "worker", "up"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def stopped(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(90)


def lives(pid: int) -> bool:
    """Whether a process runs; one that its adopter has not looked after yet does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def server_of(home: Path) -> int:
    return Owner.model_validate_json(owner_file(home).read_text()).server.pid


async def test_a_server_left_behind_by_a_killed_up_gets_a_new_owner(tmp_path: Path) -> None:
    port, ui_port = free_port(), free_port()
    with start_up(tmp_path, port, ui_port) as first:
        assert "tightloop is up" in first_line(first)
        left = server_of(tmp_path)
        first.kill()
    assert lives(left)
    with start_up(tmp_path, port, ui_port) as second:
        assert "tightloop is up" in first_line(second)
        own = server_of(tmp_path)
        assert stopped(second) == 0

    async def both_gone() -> bool:
        return not lives(left) and not lives(own)

    await eventually(both_gone, seconds=90)
    assert not owner_file(tmp_path).exists()


async def test_a_second_up_uses_the_server_of_the_first_and_leaves_it_running(tmp_path: Path) -> None:
    port, ui_port = free_port(), free_port()
    with start_up(tmp_path, port, ui_port) as first:
        assert "tightloop is up" in first_line(first)
        server = server_of(tmp_path)
        with start_up(tmp_path, port, ui_port) as second:
            assert "tightloop is up" in first_line(second)
            assert stopped(second) == 0
        assert server_of(tmp_path) == server
        assert lives(server)
        assert stopped(first) == 0
