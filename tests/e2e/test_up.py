"""`up`: who owns the server, also after a crash, and where its Web UI is."""

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.episodes import APPEND, eventually, scripted
from tests.support.stack.stack import ROOT
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.settings import parse_settings
from worker.server import Owner, free_port, owner_file


def start_up(
    home: Path, port: int, ui_port: int, *, environment: dict[str, str] | None = None, within: Sequence[str] = ()
) -> subprocess.Popen[str]:
    variables = {
        **(os.environ if environment is None else environment),
        "TIGHTLOOP_HOME": str(home),
        "TIGHTLOOP_TEMPORAL__ADDRESS": f"127.0.0.1:{port}",
        "TIGHTLOOP_TEMPORAL__UI_URL": f"http://127.0.0.1:{ui_port}",
        "TIGHTLOOP_GATEWAY__LISTEN": f"127.0.0.1:{free_port()}",
    }
    command = [*within, sys.executable, "-m", "worker", "up"]
    return subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def stopped(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(90)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End what a failed test leaves running: `Popen` would wait for it."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()


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
            told = f"The server was already running. It belongs to process {first.pid} and stops with it."
            assert told in first_line(second)
            assert stopped(second) == 0
        assert server_of(tmp_path) == server
        assert lives(server)
        assert stopped(first) == 0


async def test_up_beside_a_server_that_is_not_its_own_says_so_and_names_no_file_that_is_not_there(
    tmp_path: Path, temporal
) -> None:
    address = temporal.client.service_client.config.target_host
    with start_up(tmp_path, int(address.rpartition(":")[2]), free_port()) as up:
        said = "".join(first_line(up) for _ in range(6))
        assert stopped(up) == 0
    assert f"uses the Temporal server already running at {address} (namespace default)" in said
    assert "The server was not started from this state home" in said
    assert "use other ports: TIGHTLOOP_TEMPORAL__ADDRESS=127.0.0.1:" in said
    assert "temporal.db" not in said
    assert "Start an episode from another terminal" in said


def test_the_address_of_the_ui_itself_is_random_and_stands_nowhere(tmp_path: Path) -> None:
    port, ui_port = free_port(), free_port()
    with start_up(tmp_path, port, ui_port) as up:
        said = [first_line(up)]
        server = psutil.Process(server_of(tmp_path))
        command = server.cmdline()
        host, raw_port = (command[command.index(option) + 1] for option in ("--ui-ip", "--ui-port"))
        open_ports = {each.laddr.port for each in server.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
        status, page = get(f"{host}:{raw_port}", "/")
        assert (status, "svelte" in page) == (200, True), "the UI itself knows no sign-in"
        door = f"127.0.0.1:{ui_port}"
        token = (tmp_path / "ui-token").read_text()
        for path in ("/", "/api/v1/namespaces", "/metrics", "/debug/pprof/"):
            assert get(door, path)[0] == 401
            status, page = get(door, path, token)
            assert status == 200
            assert "go_goroutines" not in page
        assert stopped(up) == 0
        said += list(up.stdout or ())
    if sys.platform == "linux":
        assert re.fullmatch(r"127\.\d+\.\d+\.\d+", host)
        assert host != "127.0.0.1"
    assert not open_ports & {8233, 8234, port + 1000, 9090, 6060, 7243}
    readable = [*said, *(file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file())]
    for text in readable:
        assert f"{host}:{raw_port}" not in text
        assert host == "127.0.0.1" or host not in text
    assert (tmp_path / "temporal.log").stat().st_mode & 0o077 == 0


def test_a_taken_address_of_the_ui_ends_up_with_a_sentence(tmp_path: Path) -> None:
    port, ui_port = free_port(), free_port()
    with socket.create_server(("127.0.0.1", ui_port)), start_up(tmp_path, port, ui_port) as up:
        said = up.communicate(timeout=120)[0]
        assert up.returncode == 1
    assert f"cannot listen on 127.0.0.1:{ui_port}" in said
    assert "change temporal.ui_url" in said
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "Temporal was ended, too"


def get(address: str, path: str, token: str = "") -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_up_works_for_a_user_whom_the_machine_does_not_know(tmp_path: Path) -> None:
    """As a container's user often is: no entry in passwd, neither HOME nor USER."""
    command = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare cannot map users here")
    known = {name: value for name, value in os.environ.items() if name not in ("HOME", "USER", "LOGNAME", "USERNAME")}
    with start_up(tmp_path, free_port(), free_port(), environment=known, within=command) as up:
        assert "tightloop is up" in first_line(up)
        assert stopped(up) == 0
    del known["TIGHTLOOP_HOME"]
    refused = subprocess.run(
        [*command, sys.executable, "-m", "worker", "up"], cwd=ROOT, env=known, capture_output=True, text=True
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "cannot find a home folder for uid 54321" in refused.stderr
    assert "export TIGHTLOOP_HOME=" in refused.stderr


async def test_sigterm_hands_back_what_runs_and_the_next_up_goes_on(workspace: Path, tmp_path: Path) -> None:
    port, ui_port = free_port(), free_port()
    settings = parse_settings(f"temporal: {{address: '127.0.0.1:{port}', authenticate: false}}", {})
    request = EpisodeRequest(
        goal="write a line",
        workspace=str(workspace),
        definition_of_done=["test -e log.txt || { sleep 15.25; false; }"],  # type: ignore[list-item]
        executor=scripted(APPEND),
    )
    variables = {
        **os.environ,
        "TIGHTLOOP_WORKER__GRACEFUL_SHUTDOWN_S": "1",
        "TIGHTLOOP_SANDBOX__UNSAFE_LOCAL": "true",
        "TIGHTLOOP_TEMPORAL__AUTHENTICATE": "false",
    }
    home = tmp_path / "home"
    with start_up(home, port, ui_port, environment=variables) as up, ended(up):
        assert "tightloop is up" in first_line(up)
        client = await TightloopClient.connect(settings=settings)
        episode_id = await client.start(request)

        async def checking() -> bool:
            return any("15.25" in process.info["cmdline"] for process in psutil.process_iter(["cmdline"], ""))

        await eventually(checking, seconds=60)
        server = server_of(home)
        assert await asyncio.to_thread(stopped, up) == 0
        assert not lives(server), "the server ends, after the worker"
    with start_up(home, port, ui_port, environment=variables) as up, ended(up):
        assert "tightloop is up" in first_line(up)
        client = await TightloopClient.connect(settings=settings)
        async with asyncio.timeout(90):
            assert (await client.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
        assert await asyncio.to_thread(stopped, up) == 0
