"""Programs that are talked to over their standard input and output: real ones."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.process import ProcessRequest, ProcessSession, Reason, open_process
from activities.process.output import EventLines
from tests.support.processes import request_for


def ignore(pid: int) -> None:
    """Somebody else's business."""


def request(cwd: Path, code: str, **changes: Any) -> ProcessRequest:
    argv = (sys.executable, "-u", "-c", code)
    return request_for(argv, **{"cwd": cwd, "grace_s": 0.5, "wall_limit_s": 60.0, **changes})


def line_from(session: ProcessSession) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(session.stdout.fileno(), 1)):
        line += byte
    return line


def await_exit(session: ProcessSession, seconds: float = 30.0) -> int:
    until = time.monotonic() + seconds
    while (code := session.poll()) is None:
        assert time.monotonic() < until, "the program did not end in time"
        time.sleep(0.01)
    return code


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    """The Temporal server of the session may be there before, and its client may open a connection meanwhile."""
    descriptors, children = psutil.Process().num_fds(), set(psutil.Process().children())
    yield
    assert psutil.Process().num_fds() <= descriptors + 2
    assert set(psutil.Process().children()) <= children


ECHO = """
import sys
print("hello on stderr", file=sys.stderr)
for line in sys.stdin:
    print(line.strip().upper())
sys.exit(4)
"""
STUBBORN = """
import os, signal, time
[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]
if os.fork() == 0:
    os.setsid()
print("ready")
time.sleep(60)
"""


def test_what_is_said_is_answered_and_the_exit_code_arrives(tmp_path: Path) -> None:
    pids: list[int] = []
    with open_process(request(tmp_path, ECHO, grace_s=30.0), started=pids.append) as session:
        for word in (b"one\n", b"two\n"):
            os.write(session.stdin.fileno(), word)
            assert line_from(session) == word.upper()
        assert session.poll() is None
        result = session.end(Reason.EXITED)
        assert session.end(Reason.CANCELLED) is result
    assert (result.reason, result.exit_code, result.survivors_ended) == (Reason.EXITED, 4, 0)
    assert result.errors == b"hello on stderr\n"
    assert not psutil.pid_exists(pids[0])


def test_asyncio_talks_to_it_and_may_close_the_pipes_itself(tmp_path: Path) -> None:
    async def talk(session: ProcessSession) -> bytes:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), session.stdout)
        sink, _ = await loop.connect_write_pipe(asyncio.Protocol, session.stdin)
        sink.write(b"over asyncio\n")
        answer = await reader.readline()
        sink.close()
        source.close()
        await asyncio.sleep(0)
        return answer

    with open_process(request(tmp_path, ECHO, grace_s=30.0), started=ignore) as session:
        assert asyncio.run(talk(session)) == b"OVER ASYNCIO\n"
        assert session.end(Reason.EXITED).exit_code == 4


def test_cancel_is_polite_first(tmp_path: Path) -> None:
    code = """
import signal, sys, time
def bye(*_):
    print("tidied up", file=sys.stderr)
    sys.exit(0)
signal.signal(signal.SIGINT, bye)
print("ready")
time.sleep(60)
"""
    with open_process(request(tmp_path, code, grace_s=30.0), started=ignore) as session:
        assert line_from(session) == b"ready\n"
        result = session.end(Reason.CANCELLED)
    assert (result.reason, result.exit_code, result.errors) == (Reason.CANCELLED, None, b"tidied up\n")
    assert result.duration_s < 30


def test_one_that_ignores_everything_is_ended_with_its_children(tmp_path: Path) -> None:
    pids: list[int] = []
    with open_process(request(tmp_path, STUBBORN), started=pids.append) as session:
        line_from(session)
        line_from(session)
        children = psutil.Process(pids[0]).children()
        assert len(children) == 1
        result = session.end(Reason.CANCELLED)
        assert result.duration_s < 50
        assert not children[0].is_running()
        assert await_exit(session) == -9
    assert not psutil.pid_exists(pids[0])


def test_leaving_with_an_error_ends_everything_at_once(tmp_path: Path) -> None:
    pids: list[int] = []

    def talk() -> None:
        with open_process(request(tmp_path, STUBBORN, grace_s=50.0), started=pids.append) as session:
            line_from(session)
            raise RuntimeError("the talk failed")

    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="the talk failed"):
        talk()
    assert time.monotonic() - begun < 40
    assert not psutil.pid_exists(pids[0])


def test_a_failing_callback_leaves_no_process(tmp_path: Path) -> None:
    def fail(pid: int) -> None:
        raise RuntimeError(f"no room for {pid}")

    with pytest.raises(RuntimeError, match="no room for"), open_process(request(tmp_path, ECHO), started=fail):
        pytest.fail("the talk began")


def test_a_crash_is_seen_at_once_and_keeps_its_exit_code(tmp_path: Path) -> None:
    with open_process(request(tmp_path, "import os; os.kill(os.getpid(), 11)"), started=ignore) as session:
        assert await_exit(session) == -11
        assert os.read(session.stdout.fileno(), 10) == b""
        result = session.end(Reason.CANCELLED)
    assert (result.reason, result.exit_code) == (Reason.CANCELLED, -11)


def test_a_flood_of_errors_never_blocks_the_program(tmp_path: Path) -> None:
    code = (
        "import sys\nfor n in range(2000): sys.stderr.write('e' * 999 + '\\n')\nsys.stderr.write('last')\nprint('done')"
    )
    with open_process(request(tmp_path, code), started=ignore) as session:
        assert line_from(session) == b"done\n"
        result = session.end(Reason.EXITED)
    assert result.errors.endswith(b"last")
    assert len(result.errors) <= 64_000
    assert result.cut


def test_the_wall_limit_ends_it_while_nobody_looks(tmp_path: Path) -> None:
    with open_process(request(tmp_path, "import time; time.sleep(60)", wall_limit_s=0.4), started=ignore) as session:
        await_exit(session)
        result = session.end(Reason.EXITED)
    assert (result.reason, result.exit_code) == (Reason.WALL_LIMIT, None)


def test_the_memory_limit_ends_it_while_nobody_looks(tmp_path: Path) -> None:
    code = "import time; x = bytearray(150_000_000); time.sleep(60)"
    with open_process(request(tmp_path, code, memory_limit_bytes=100_000_000), started=ignore) as session:
        await_exit(session)
        result = session.end(Reason.CANCELLED)
    assert result.reason is Reason.MEMORY_LIMIT
    assert "the limit is 100 MB" in result.message


def test_a_missing_program_is_told_by_its_end(tmp_path: Path) -> None:
    pids: list[int] = []
    missing = request_for(("no-such-program-here",), cwd=tmp_path)
    with open_process(missing, started=pids.append) as session:
        assert session.poll() == 127
        result = session.end(Reason.EXITED)
    assert pids == []
    assert (result.reason, result.message) == (Reason.NOT_STARTED, "program 'no-such-program-here' was not found")


def test_lines_are_split_wherever_the_chunks_end() -> None:
    lines = EventLines()
    text = 'a\r\n\n{"ü": 1}\nrest'.encode()
    found = [line for byte in text for line in lines.feed(bytes([byte]))]
    assert found == ["a", "", '{"ü": 1}']
    assert lines.rest() == "rest"
    assert lines.rest() == ""
    assert EventLines().feed(text) == found


def test_a_line_without_end_is_cut_and_says_so() -> None:
    lines = EventLines(limit=10)
    for _ in range(1000):
        assert lines.feed(b"x" * 100) == []
    assert lines.feed(b"\nnext\n\xff\n") == ["x" * 10 + " [... 99990 bytes cut ...]", "next", "�"]
