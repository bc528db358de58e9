"""Child processes: real ones, and the worst of them."""

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.process import ProcessResult, Reason, run_process, search_path
from activities.process.output import BoundedOutput
from activities.process.start import MARK
from tests.support.processes import request_for

LONG_S = 25.0
"""Less than the wall limit of `run` and than the programs sleep: what took less was ended, however slow the machine."""


def never() -> bool:
    return False


def ignore(pid: int) -> None:
    """Somebody else's business."""


def run(cwd: Path, *argv: str, **changes: Any) -> ProcessResult:
    callbacks = {name: changes.pop(name) for name in ("cancelled", "started", "on_output") if name in changes}
    request = request_for(argv, cwd=cwd, **{"grace_s": 0.5, "wall_limit_s": 30.0, **changes})
    return run_process(request, **{"cancelled": never, "started": ignore, **callbacks})


def python(cwd: Path, code: str, **changes: Any) -> ProcessResult:
    return run(cwd, sys.executable, "-c", code, **changes)


def after(seconds: float) -> Any:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() > until


class Said:
    """What the program has printed so far; `cancelled` once it holds the words."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._seen = b""

    def take(self, chunk: bytes) -> None:
        self._seen += chunk

    def cancelled(self) -> bool:
        return self._words in self._seen

    @property
    def watched(self) -> dict[str, Any]:
        return {"cancelled": self.cancelled, "on_output": self.take}


def alive(pid_file: Path) -> bool:
    """Whether the process that wrote its pid is still there; it must have been."""
    try:
        return psutil.Process(int(pid_file.read_text())).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    before = psutil.Process().num_fds()
    yield
    # The Temporal client of the session may open a connection meanwhile.
    assert psutil.Process().num_fds() <= before + 2


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("daemon.pid.part", "w").write(str(os.getpid()))
        os.rename("daemon.pid.part", "daemon.pid")
        time.sleep(60)
    os._exit(0)
while not os.path.exists("daemon.pid"):
    time.sleep(0.01)
print("leader done", flush=True)
"""
"""Forks twice into a session of its own and keeps the output pipe open."""


def test_output_and_exit_code_are_returned(tmp_path: Path) -> None:
    result = run(tmp_path, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
    assert (result.reason, result.exit_code, result.output) == (Reason.EXITED, 3, b"out\nerr\n")
    assert not result.cut
    assert result.survivors_ended == 0


def test_a_signal_is_a_negative_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path, "/bin/sh", "-c", "kill -9 $$").exit_code == -9


def test_stdin_is_closed_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("hello")
    assert run(tmp_path, "cat").output == b""
    assert run(tmp_path, "cat", stdin=tmp_path / "in.txt").output == b"hello"


def test_started_is_told_the_leader_of_a_new_session(tmp_path: Path) -> None:
    pids: list[int] = []
    result = python(tmp_path, "import os; print(os.getpid(), os.getsid(0), os.getpgrp())", started=pids.append)
    assert [int(word) for word in result.output.split()] == pids * 3


def test_a_flood_stays_bounded_and_keeps_both_ends(tmp_path: Path) -> None:
    code = "import sys; w=sys.stdout.buffer.write; w(b'first'); [w(b'x'*100_000) for _ in range(1000)]; w(b'last')"
    seen = [0]

    def count(chunk: bytes) -> None:
        seen[0] += len(chunk)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = python(tmp_path, code, output_bytes=500_000, on_output=count)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert seen[0] == 100_000_009
    assert len(result.output) <= 500_000
    assert result.cut
    assert result.output.startswith(b"firstx")
    assert result.output.endswith(b"xlast")
    assert b"bytes cut ...]" in result.output
    if sys.platform == "linux":
        assert grown_kb < 20_000


def test_bounded_output_counts_what_is_missing() -> None:
    kept = BoundedOutput(1_000)
    for _ in range(1_000):
        kept.add(b"x" * 1_000)
    value = kept.value()
    missing = int(value.split(b"[... ")[1].split()[0])
    mark = f"\n[... {missing} bytes cut ...]\n".encode()
    assert len(value) <= 1_000
    assert len(value) - len(mark) + missing == 1_000_000


def test_an_endless_flood_ends_at_the_wall_limit(tmp_path: Path) -> None:
    result = run(tmp_path, "yes", wall_limit_s=0.5)
    assert result.reason is Reason.WALL_LIMIT
    assert result.exit_code is None


def test_binary_output_is_returned_byte_for_byte(tmp_path: Path) -> None:
    blob = bytes(range(256)) * 50
    (tmp_path / "blob").write_bytes(blob)
    assert run(tmp_path, "cat", "blob").output == blob


def test_a_missing_program_is_reported_not_raised(tmp_path: Path) -> None:
    result = run(tmp_path, "no-such-program-here")
    assert (result.reason, result.exit_code) == (Reason.NOT_STARTED, None)
    assert result.message == "program 'no-such-program-here' was not found"


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        ((), {}),
        (("",), {}),
        (("nul\0byte",), {}),
        (("/",), {}),
        (("true", "x" * 3_000_000), {}),
        (("true",), {"stdin": Path("/no/such/file")}),
        (("true",), {"cwd": Path("/no/such/folder")}),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, argv: tuple[str, ...], changes: dict[str, Any]) -> None:
    request = request_for(argv, **{"cwd": tmp_path, **changes})
    result = run_process(request, cancelled=never, started=ignore)
    assert result.reason is Reason.NOT_STARTED
    assert result.message


def test_wall_limit_ends_a_child_that_ignores_term(tmp_path: Path) -> None:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); signal.signal(2, signal.SIG_IGN); time.sleep(60)"
    pids: list[int] = []
    result = python(tmp_path, code, wall_limit_s=0.5, started=pids.append)
    assert result.reason is Reason.WALL_LIMIT
    assert result.duration_s < LONG_S
    assert not psutil.pid_exists(pids[0])


def test_idle_limit_ends_a_silent_program_only(tmp_path: Path) -> None:
    silent = run(tmp_path, "/bin/sh", "-c", "echo once; sleep 60", idle_limit_s=2.0)
    assert (silent.reason, silent.output) == (Reason.IDLE_LIMIT, b"once\n")
    talking = "import time\nfor n in range(12): print(n, flush=True); time.sleep(0.2)"
    assert python(tmp_path, talking, idle_limit_s=2.0).reason is Reason.EXITED


def test_closing_the_output_is_not_the_end(tmp_path: Path) -> None:
    result = run(tmp_path, "/bin/sh", "-c", "exec >&- 2>&-; sleep 0.4; exit 5")
    assert (result.reason, result.exit_code) == (Reason.EXITED, 5)
    silent = run(tmp_path, "/bin/sh", "-c", "exec >&- 2>&-; sleep 60", idle_limit_s=0.3)
    assert silent.reason is Reason.IDLE_LIMIT


def test_cancel_asks_with_interrupt_first(tmp_path: Path) -> None:
    code = """
import signal, sys, time
def bye(*_):
    print("tidied up", flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, bye)
signal.signal(signal.SIGTERM, lambda *_: print("terminated", flush=True))
print("ready", flush=True)
time.sleep(60)
"""
    result = python(tmp_path, code, grace_s=LONG_S, **Said(b"ready\n").watched)
    assert (result.reason, result.exit_code) == (Reason.CANCELLED, None)
    assert result.output == b"ready\ntidied up\n", "a second signal comes only after the grace"


def test_cancel_ends_one_that_ignores_everything_but_kill(tmp_path: Path) -> None:
    code = (
        "import signal,time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
        "print('ready', flush=True); time.sleep(60)"
    )
    result = python(tmp_path, code, **Said(b"ready").watched)
    assert result.reason is Reason.CANCELLED
    assert result.duration_s < LONG_S


def test_cancel_during_a_flood_is_noticed_soon(tmp_path: Path) -> None:
    result = run(tmp_path, "yes", cancelled=after(0.3))
    assert result.reason is Reason.CANCELLED
    assert result.duration_s < LONG_S


def test_cancelled_before_the_start_runs_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, "touch", "made.txt", cancelled=lambda: True)
    assert result.reason is Reason.CANCELLED
    assert not (tmp_path / "made.txt").exists()


def test_a_daemon_that_holds_the_pipe_is_ended_after_a_normal_exit(tmp_path: Path) -> None:
    result = python(tmp_path, DAEMON)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 0)
    assert result.output == b"leader done\n"
    assert result.survivors_ended == 1
    assert result.duration_s < LONG_S
    assert not alive(tmp_path / "daemon.pid")


@pytest.mark.parametrize("limit", ["wall", "cancel"])
def test_a_daemon_is_ended_with_its_program(tmp_path: Path, limit: str) -> None:
    changes = Said(b"leader done").watched if limit == "cancel" else {"wall_limit_s": 4.0}
    result = python(tmp_path, DAEMON + "time.sleep(60)", **changes)
    assert result.reason is (Reason.CANCELLED if limit == "cancel" else Reason.WALL_LIMIT)
    assert not alive(tmp_path / "daemon.pid")


def test_a_daemon_that_ignores_term_and_floods_is_ended(tmp_path: Path) -> None:
    stubborn = DAEMON.replace("time.sleep(60)", "exec('while 1: os.write(1, b\"y\" * 9000)')")
    result = python(tmp_path, "import signal; signal.signal(15, signal.SIG_IGN)\n" + stubborn)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 0)
    assert result.survivors_ended == 1
    assert result.duration_s < LONG_S
    assert not alive(tmp_path / "daemon.pid")


def test_a_quiet_background_job_is_ended(tmp_path: Path) -> None:
    result = run(tmp_path, "/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $! > daemon.pid")
    assert (result.exit_code, result.survivors_ended) == (0, 1)
    assert result.duration_s < LONG_S
    assert not alive(tmp_path / "daemon.pid")


def test_a_child_without_the_mark_is_known_by_its_parent(tmp_path: Path) -> None:
    script = "env -i setsid sleep 60 >/dev/null 2>&1 & echo $! > daemon.pid; sleep 1.5"
    result = run(tmp_path, "/bin/sh", "-c", script)
    assert result.survivors_ended == 1
    assert not alive(tmp_path / "daemon.pid")


def test_the_last_words_of_a_child_are_waited_for(tmp_path: Path) -> None:
    script = "(while kill -0 $$ 2>/dev/null; do :; done; echo last) & echo first"
    result = run(tmp_path, "/bin/sh", "-c", script)
    assert result.output == b"first\nlast\n"
    assert result.survivors_ended == 0


def test_nobody_else_is_ended(tmp_path: Path) -> None:
    ended = threading.Event()
    results: list[ProcessResult] = []
    other = threading.Thread(target=lambda: results.append(run(tmp_path, "sleep", "60", cancelled=ended.is_set)))
    other.start()
    try:
        assert python(tmp_path, DAEMON).survivors_ended == 1
        assert other.is_alive()
    finally:
        ended.set()
        other.join(30)
    assert results[0].reason is Reason.CANCELLED


def test_an_inner_run_belongs_to_the_outer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "outer")
    result = run(tmp_path, "/bin/sh", "-c", f"echo ${MARK}")
    outer, inner = result.output.decode().strip().split(":")
    assert outer == "outer"
    assert len(inner) == 32


def test_a_failing_callback_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the caller failed")

    pids: list[int] = []
    with pytest.raises(RuntimeError, match="the caller failed"):
        python(tmp_path, DAEMON + "time.sleep(60)", started=pids.append, on_output=fail)
    assert not psutil.pid_exists(pids[0])
    assert not alive(tmp_path / "daemon.pid")
    with pytest.raises(RuntimeError, match="the caller failed"):
        run(tmp_path, "sleep", "60", started=fail)
    assert "sleep" not in {child.name() for child in psutil.Process().children()}


def test_no_secret_of_the_worker_reaches_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "AWS_SECRET", "LC_KEY", "DATABASE_URL", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    seen = dict(line.split("=", 1) for line in run(tmp_path, "env").output.decode().splitlines())
    assert "planted-secret" not in seen.values()
    assert seen["PATH"] == os.environ["PATH"]
    assert (seen["TERM"], seen["LC_CTYPE"], seen["PYTHONDONTWRITEBYTECODE"]) == ("dumb", "C.UTF-8", "1")


def test_extras_are_added_but_never_a_secret(tmp_path: Path) -> None:
    assert run(tmp_path, "/bin/sh", "-c", "echo $FLAVOUR", environment={"FLAVOUR": "plain"}).output == b"plain\n"
    refused = run(tmp_path, "true", environment={"MY_API_KEY": "x"})
    assert refused.reason is Reason.NOT_STARTED
    assert "MY_API_KEY" in refused.message


def test_the_toolchains_of_rustup_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUSTUP_HOME", str(tmp_path))
    assert "RUSTUP_HOME" not in search_path(tmp_path)
    (tmp_path / "toolchains").mkdir()
    assert search_path(tmp_path)["RUSTUP_HOME"] == str(tmp_path)


def test_the_tree_s_own_tools_come_first(tmp_path: Path) -> None:
    assert search_path(tmp_path)["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    found = search_path(tmp_path)
    assert found["PATH"].split(":")[:2] == [str(tmp_path / ".venv" / "bin"), str(Path(sys.executable).parent)]
    assert found["VIRTUAL_ENV"] == str(tmp_path / ".venv")
