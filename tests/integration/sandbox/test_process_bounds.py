"""Child processes that flee, flood and multiply, and supervisors that are killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.process import ProcessResult, Reason, run_process
from tests.support.processes import request_for

ROOT = Path(__file__).parents[3]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers: macOS finds by mark and parent")
MEGABYTE = 1_000_000


def ignore(pid: int) -> None:
    """Somebody else's business."""


def run(cwd: Path, *argv: str, **changes: Any) -> ProcessResult:
    callbacks = {name: changes.pop(name) for name in ("cancelled", "started", "on_output") if name in changes}
    request = request_for(argv, cwd=cwd, **{"grace_s": 0.5, "wall_limit_s": 30.0, **changes})
    return run_process(request, **{"cancelled": lambda: False, "started": ignore, **callbacks})


def python(cwd: Path, code: str, **changes: Any) -> ProcessResult:
    return run(cwd, sys.executable, "-c", code, **changes)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_in(folder: Path, count: int) -> list[int]:
    """Wait until that many processes wrote their pids, and return them."""
    until = time.monotonic() + 25
    while len(found := [int(path.name) for path in folder.iterdir() if path.name.isdigit()]) < count:
        assert time.monotonic() < until, f"only {found} came up"
        time.sleep(0.02)
    return found


def gone_within(pids: list[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """The Temporal server of the session may be there before, and its client may open a connection meanwhile."""
    descriptors, children = psutil.Process().num_fds(), set(psutil.Process().children())
    yield
    assert psutil.Process().num_fds() <= descriptors + 2
    assert set(psutil.Process().children()) <= children


TREE = """
import os, signal, subprocess, time
signal.signal(15, signal.SIG_IGN)
open(str(os.getpid()), "w")
if os.fork() == 0:
    os.setsid()
    open(str(os.getpid()), "w")
    if os.fork() == 0:
        signal.signal(2, signal.SIG_IGN)
        os.execve("/bin/sh", ["sh", "-c", "touch $$; exec sleep 60"], {"PATH": "/usr/bin:/bin"})
    os._exit(0)
os.wait()
time.sleep(60)
"""
"""A leader, and a grandchild that fled into a session of its own without the environment."""


@LINUX
def test_a_daemon_that_sheds_everything_is_gone_on_return(tmp_path: Path) -> None:
    daemon = "env -i PATH=$PATH setsid sh -c 'sh -c \": > \\$\\$; exec sleep 60\" >/dev/null 2>&1 &'"
    script = f'({daemon} &); while [ -z "$(ls)" ]; do sleep 0.05; done'
    result = run(tmp_path, "/bin/sh", "-c", script)
    (pid,) = pids_in(tmp_path, 1)
    assert (result.reason, result.exit_code, result.survivors_ended) == (Reason.EXITED, 0, 1)
    assert not alive(pid)


@LINUX
def test_a_fled_grandchild_that_ignores_signals_is_gone_on_cancel(tmp_path: Path) -> None:
    result = python(tmp_path, TREE, cancelled=lambda: len(list(tmp_path.iterdir())) == 3)
    assert result.reason is Reason.CANCELLED
    assert gone_within(pids_in(tmp_path, 3), 0)
    assert result.duration_s < 25


@LINUX
def test_a_killed_worker_takes_its_whole_tree_along(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from activities.process import run_process
from tests.support.processes import request_for
request = request_for((sys.executable, "-c", {TREE!r}), cwd=Path({str(tmp_path)!r}))
run_process(request, cancelled=lambda: False, started=lambda pid: None)
"""
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        pids = pids_in(tmp_path, 3)
        shim = psutil.Process(worker.pid).children()
        assert len(shim) == 1
    finally:
        worker.kill()
        worker.wait()
    assert gone_within([*pids, shim[0].pid], 25)


@LINUX
def test_a_killed_shim_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    leader: list[int] = []
    asked: list[float] = []

    def kill_the_shim() -> bool:
        if len(list(tmp_path.iterdir())) == 3:
            asked.append(time.monotonic())
        # The tree is looked at once a second, between two questions.
        late = [at for at in asked if at - asked[0] > 1.0]
        if len(late) == 3:
            os.kill(psutil.Process(leader[0]).ppid(), signal.SIGKILL)
        return False

    result = python(tmp_path, TREE, started=leader.append, cancelled=kill_the_shim)
    assert (result.reason, result.exit_code) == (Reason.EXITED, -9)
    assert "supervisor was killed" in result.message
    assert gone_within(pids_in(tmp_path, 3), 0)


@LINUX
def test_a_stopped_shim_cannot_hold_the_tree(tmp_path: Path) -> None:
    def stop_the_shim(pid: int) -> None:
        pids_in(tmp_path, 3)
        os.kill(psutil.Process(pid).ppid(), signal.SIGSTOP)

    result = python(tmp_path, TREE, started=stop_the_shim, wall_limit_s=0.2, grace_s=0.1)
    assert result.reason is Reason.WALL_LIMIT
    assert gone_within(pids_in(tmp_path, 3), 0)


def test_a_fork_bomb_is_bounded_by_the_process_limit(tmp_path: Path) -> None:
    bomb = "import os, time\nfor _ in range(400): os.fork() or time.sleep(60); time.sleep(0.01)\ntime.sleep(60)"
    result = python(tmp_path, bomb, process_limit=20)
    assert result.reason is Reason.PROCESS_LIMIT
    assert "the limit is 20" in result.message
    assert result.exit_code is None
    assert result.duration_s < 25


def test_memory_is_counted_over_the_whole_tree(tmp_path: Path) -> None:
    code = "import os, time; os.fork(); x = bytearray(80_000_000); print('has it', flush=True); time.sleep(60)"
    result = python(tmp_path, code, memory_limit_bytes=140 * MEGABYTE)
    assert result.reason is Reason.MEMORY_LIMIT
    assert "the limit is 140 MB" in result.message
    assert result.peak_memory_bytes is not None
    assert 140 * MEGABYTE < result.peak_memory_bytes < 400 * MEGABYTE


def test_too_much_output_ends_the_program_soon(tmp_path: Path) -> None:
    result = run(tmp_path, "yes", output_limit_bytes=5 * MEGABYTE)
    assert (result.reason, result.exit_code, result.cut) == (Reason.OUTPUT_LIMIT, None, True)
    assert "5000000 bytes" in result.message
    assert result.duration_s < 25
    enough = python(tmp_path, "print('x' * 999)", output_limit_bytes=1_000)
    assert (enough.reason, enough.message) == (Reason.EXITED, "")
    assert python(tmp_path, "print('x' * 1000)", output_limit_bytes=1_000).reason is Reason.OUTPUT_LIMIT


def test_errors_are_kept_apart(tmp_path: Path) -> None:
    seen: list[bytes] = []
    script = "echo out; echo err >&2"
    result = run(tmp_path, "/bin/sh", "-c", script, separate_errors=True, on_output=seen.append)
    assert (result.output, result.errors, b"".join(seen)) == (b"out\n", b"err\n", b"out\n")


def test_a_secret_reaches_the_program_and_nothing_else(tmp_path: Path) -> None:
    secrets = {"PROVIDER_API_KEY": "sk-planted-secret"}
    arguments: list[str] = []

    def look(pid: int) -> None:
        for process in (psutil.Process(pid).parent(), psutil.Process(pid)):
            assert process is not None
            arguments.extend(process.cmdline())
        shim = psutil.Process(pid).parent()
        assert shim is not None
        arguments.extend(shim.environ().values())
        (tmp_path / "looked").touch()

    script = "while [ ! -e looked ]; do sleep 0.02; done; echo $PROVIDER_API_KEY"
    request = request_for(("/bin/sh", "-c", script), cwd=tmp_path, secrets=secrets)
    result = run_process(request, cancelled=lambda: False, started=look)
    assert result.output == b"sk-planted-secret\n"
    assert "sk-planted" not in f"{request!r} {result!r} {arguments}"
    for bad in ({"argv": ("no-such",)}, {"cwd": Path("/no/such")}, {"secrets": {"A_KEY": "sk-planted\0secret"}}):
        refused = run_process(
            request_for(**{"argv": ("true",), "cwd": tmp_path, "secrets": secrets, **bad}),
            cancelled=lambda: False,
            started=ignore,
        )
        assert refused.reason is Reason.NOT_STARTED
        assert "sk-planted" not in refused.message


def test_little_is_inherited_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-the-worker")
    monkeypatch.setenv("SSL_CERT_FILE", "/certificates.pem")
    given = {"environment": {"XDG_DATA_HOME": "/data"}, "inherit": False}
    seen = dict(line.split("=", 1) for line in run(tmp_path, "env", **given).output.decode().splitlines())
    assert (seen["XDG_DATA_HOME"], seen["SSL_CERT_FILE"]) == ("/data", "/certificates.pem")
    assert "PATH" in seen
    assert "HOME" not in seen


def test_resource_limits_hold_from_the_start(tmp_path: Path) -> None:
    import resource

    code = "open('big', 'wb').write(b'x' * 2_000_000)"
    limited = python(tmp_path, code, resources={resource.RLIMIT_FSIZE: MEGABYTE, resource.RLIMIT_CORE: 0})
    assert limited.exit_code == 1
    assert b"File too large" in limited.output
    assert python(tmp_path, code).exit_code == 0
    unknown = python(tmp_path, code, resources={9999: 1})
    assert (unknown.reason, "resource limit 9999" in unknown.message) == (Reason.NOT_STARTED, True)


@LINUX
def test_cores_are_limited(tmp_path: Path) -> None:
    assert python(tmp_path, "import os; print(len(os.sched_getaffinity(0)))", cores=1).output == b"1\n"


@LINUX
def test_a_control_group_that_cannot_be_joined_is_told(tmp_path: Path) -> None:
    result = run(tmp_path, "true", cgroups=(tmp_path / "group",))
    assert result.reason is Reason.NOT_STARTED
    assert "control group" in result.message
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "cgroup.procs").write_text("")
    assert run(tmp_path, "true", cgroups=(tmp_path / "group",)).exit_code == 0
    assert (tmp_path / "group" / "cgroup.procs").read_text() == "0"


@LINUX
def test_files_are_found_at_their_descriptors(tmp_path: Path) -> None:
    code = "import os; print(os.read(10, 100), os.read(11, 100), os.read(10, 100))"
    files = {10: b"one", 11: b"two"}
    assert python(tmp_path, code, files=files).output == b"b'one' b'two' b''\n"


def plainly(*argv: str) -> bytes:
    """Return what a program prints that a terminal starts, whatever signals the tests themselves ignore."""
    start = (
        "import os, signal, sys\n"
        "for name in ('SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGPIPE', 'SIGXFSZ'):\n"
        "    signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return subprocess.run([sys.executable, "-c", start, *argv], capture_output=True, check=True, timeout=60).stdout


def test_only_the_streams_and_signals_of_a_plain_start_reach_the_program(tmp_path: Path) -> None:
    code = (
        "import os, signal; print(sorted(map(int, os.listdir('/dev/fd')))[:4], "
        "[signal.getsignal(n) == signal.SIG_DFL for n in (1, 15, 17)])"
    )
    through = python(tmp_path, code).output
    plain = plainly(sys.executable, "-c", code)
    assert through == plain
    ignored = "grep SigIgn /proc/self/status || true"
    through = run(tmp_path, "/bin/sh", "-c", ignored).output
    assert through == plainly("/bin/sh", "-c", ignored)


@pytest.mark.parametrize("code", [0, 1, 127, 255])
def test_exit_codes_arrive_exactly(tmp_path: Path, code: int) -> None:
    assert run(tmp_path, "/bin/sh", "-c", f"exit {code}").exit_code == code


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_deadly_signals_arrive_exactly(tmp_path: Path, number: signal.Signals) -> None:
    assert run(tmp_path, "/bin/sh", "-c", f"kill -{number.value} $$").exit_code == -number


def test_what_it_took_is_told(tmp_path: Path) -> None:
    code = "import time; x = bytearray(60_000_000); t = time.process_time() + 0.3\nwhile time.process_time() < t: pass"
    result = run(tmp_path, "/bin/sh", "-c", f'{sys.executable} -c "{code}"; true')
    assert result.cpu_s is not None
    assert result.cpu_s >= 0.3
    assert result.peak_memory_bytes is not None
    assert result.peak_memory_bytes > 60 * MEGABYTE


def test_thirty_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    def one(number: int) -> ProcessResult:
        return run(tmp_path, "/bin/sh", "-c", f"sleep 60 >/dev/null 2>&1 & echo {number}; exit {number}")

    with ThreadPoolExecutor(30) as pool:
        results = list(pool.map(one, range(30)))
    assert [result.exit_code for result in results] == list(range(30))
    assert [int(result.output) for result in results] == list(range(30))
    assert {result.survivors_ended for result in results} == {1}


def test_a_shell_does_not_go_on_to_its_next_command_when_its_child_is_ended(tmp_path: Path) -> None:
    late = tmp_path / "late"
    loop = f"sleep 60; echo late >> {late}"
    for reason in ("cancelled", "left behind"):
        for _ in range(7):
            script = f"{loop}; {loop}" if reason == "cancelled" else f"({loop}) & exit 0"
            begun = time.monotonic()

            def over(begun: float = begun, reason: str = reason) -> bool:
                return reason == "cancelled" and time.monotonic() - begun > 0.15

            run_process(request_for(("/bin/sh", "-c", script), cwd=tmp_path), cancelled=over, started=lambda _pid: None)
    assert not late.exists()
