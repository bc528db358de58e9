"""Starts programs behind a shim (`activities/process/shim.py`), and reads the shim's reports."""

import errno
import io
import marshal
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from activities.process.request import ProcessRequest
from activities.process.shim import LENGTH_BYTES
from activities.process.tree import MARK
from tightloop.host.programs import TrustedProgram, absolute_folders, own_python, trusted_path

CERTIFICATES = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
)
NEEDED = CERTIFICATES | {"PATH", "LANG", "TZ"}
"""Variables that every child gets from the worker, besides `LC_*`."""
INHERITED = NEEDED | {
    "HOME", "USER", "LOGNAME", "LANGUAGE", "TMPDIR", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"
}  # fmt: skip
"""Variables that a child gets, where the request does not say otherwise."""
START_S = 30.0
"""Maximum time of a start, which takes about 10 ms."""

_FINISH_S = 2.0
_SHIM = Path(__file__).with_name("shim.py")
# A script is compiled at every start, which takes a quarter of it. A module is not, where its bytecode is current.
_LOAD = (
    "import sys; from _frozen_importlib_external import SourceFileLoader as L; "
    "exec(L('shim', sys.argv[1]).get_code('shim'), {'__name__': '__main__'})"
)
# Without the first two, a Python that is linked to a shared library of its own may not start.
_FOR_PYTHON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", MARK)
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)


class NotStartedError(Exception):
    """A program could not be started; the message says why, in a sentence for the user."""


@dataclass(frozen=True)
class Done:
    """The last report of a shim."""

    ended: frozenset[int]
    """Processes that it had to kill."""
    left: frozenset[int]
    """Processes that it could not kill."""
    cpu_s: float
    largest_bytes: int


class Shim:
    """The worker's end of a running shim."""

    def __init__(self, popen: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.popen = popen
        self.pid = 0
        """Of the program, which leads its group and its session."""
        self.adopts = False
        """Whether orphans come to the shim, so that `done` is the proof that nobody is left."""
        self.exit_code: int | None = None
        """Of the program; negative: the signal that killed it."""
        self.done: Done | None = None
        self.over = False
        """Whether no more reports will come."""
        self._channel = channel
        self._unread = b""

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is news."""
        return self._channel.fileno()

    def order(self, order: Mapping[str, object]) -> None:
        """Say what to run, and wait until it runs.

        Raises:
            NotStartedError: it cannot be executed.
            OSError: the shim does not answer.
        """
        # One that has ended may have said why.
        with suppress(BrokenPipeError, ConnectionResetError):
            _send(self._channel, order)
        deadline = time.monotonic() + START_S
        while not self.pid:
            self._channel.settimeout(max(deadline - time.monotonic(), 0.001))
            self.take()
            if self.over and not self.pid:
                raise OSError(f"its supervisor ended with exit code {self.popen.wait(_FINISH_S)}")
        self._channel.setblocking(False)

    def take(self) -> None:
        """Read the news; blocks as the channel does."""
        try:
            chunk = self._channel.recv(65_536)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk = b""
        if not chunk:
            self.over = True
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            self._hear(line.decode("utf-8", "replace").split(" ", 4))

    def sweep(self) -> None:
        """Have all that is left ended at once; the result is reported as `done`."""
        try:
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def abandon(self) -> None:
        """End a shim whose program does not run; one that has ended stays so."""
        self.over = self.over or not self.pid
        self.finish()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends: a shim that only a forked process knows of ends by that."""
        self._channel.close()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()

    def proves_the_end(self) -> bool:
        """Return whether no descendant is left, for sure."""
        return self.adopts and self.done is not None and not self.done.left

    def finish(self) -> None:
        """Wait for the end of the shim and close its channel."""
        self.sweep()
        try:
            self.popen.wait(_FINISH_S if self.done or self.over else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(_FINISH_S)
        finally:
            self._channel.close()

    def _hear(self, words: list[str]) -> None:
        match words:
            case ["started", pid, adopts]:
                self.pid, self.adopts = int(pid), adopts == "1"
            case ["exited", code]:
                self.exit_code = int(code)
            case ["done", ended, left, cpu_s, largest]:
                self.done = Done(_pids(ended), _pids(left), float(cpu_s), int(largest))
            case ["failed", what, number, *text]:
                raise _refusal(bytes.fromhex(what).decode("utf-8", "replace"), int(number), " ".join(text))
            case _:
                return


def prepare(*, cgroups: tuple[Path, ...] = (), stdin: IO[bytes] | int, separate_errors: bool = False) -> Shim:
    """Start a shim, and in it the process that joins the control groups and then waits for the order of `start`.

    Its pipes are those of `popen`, unbuffered. It ends by `finish`, and with this process.

    Raises:
        OSError: no process can be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        channel = theirs.fileno()
        try:
            popen = subprocess.Popen(
                # Neither the packages of the user nor PYTHON* variables reach the shim.
                own_python().command("-I", "-S", "-B", "-c", _LOAD, _SHIM, str(channel)),
                # Its environment can be read by whoever runs under the same user.
                env=_for_shim(),
                cwd="/",
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if separate_errors else subprocess.STDOUT,
                # The descriptors themselves are polled: a buffer would hide what has come.
                bufsize=0,
                pass_fds=(channel,),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    shim = Shim(popen, ours)
    try:
        ours.settimeout(START_S)
        _send(ours, [os.fsencode(folder) for folder in cgroups])
    except BaseException:
        shim.abandon()
        raise
    return shim


def start(request: ProcessRequest, mark: str, *, stdin: IO[bytes] | int) -> Shim:
    """Start a program in a session of its own, behind the shim of the request if that has one.

    Raises:
        NotStartedError: it cannot be started.
        UntrustedProgramError: it lies where the project can write, or we do.
    """
    program = request.program
    if isinstance(program, TrustedProgram):
        for started in (program, own_python()):
            started.refuse_within(_project_folders(request))
    try:
        environment, files = _environment(request, mark), dict(request.files)
        if request.options_at is not None:
            files[request.options_at] = inner_options(environment)
            environment = {"PATH": trusted_path(*_project_folders(request)), MARK: environment[MARK]}
        order = {
            "argv": [os.fsencode(word) for word in (str(program), *request.arguments)],
            "look_up": not isinstance(program, TrustedProgram),
            "environment": {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            "cwd": os.fsencode(request.cwd),
            "cores": request.cores,
            "resources": {int(number): int(value) for number, value in request.resources.items()},
            "files": files,
        }
        shim = request.shim or prepare(cgroups=request.cgroups, stdin=stdin, separate_errors=request.separate_errors)
        try:
            shim.order(order)
        except BaseException:
            shim.abandon()
            raise
    except NotStartedError as refusal:
        raise NotStartedError(
            f"cannot start {str(program)!r}: {refusal}" if refusal.args else f"program {str(program)!r} was not found"
        ) from None
    except (OSError, ValueError) as error:
        raise NotStartedError(f"cannot start {str(program)!r}: {error}") from None
    return shim


def inner_options(environment: Mapping[str, str]) -> bytes:
    """Return variables as options of bubblewrap (`--args`): they hold for the command inside alone."""
    parts = (part for name, value in environment.items() for part in ("--setenv", name, value))
    return b"".join(os.fsencode(part) + b"\0" for part in parts)


def _project_folders(request: ProcessRequest) -> tuple[Path, ...]:
    """Return the folders that the request shows to belong to a project: what runs for it may write them."""
    folders = request.growth.folders if request.growth is not None else ()
    return (request.cwd, *folders)


def _for_shim() -> dict[str, str]:
    variables = {name: os.environ[name] for name in _FOR_PYTHON if name in os.environ}
    return {name: value if name == MARK else absolute_folders(value) for name, value in variables.items()}


def _send(channel: socket.socket, message: Any) -> None:
    # Over the channel, because other users of the host can read a command line.
    content = marshal.dumps(message)
    channel.sendall(len(content).to_bytes(LENGTH_BYTES, "big") + content)


def _environment(request: ProcessRequest, mark: str) -> dict[str, str]:
    for name in request.environment:
        if _SECRET.search(name):
            raise ValueError(f"the environment of a child may not hold {name}: it looks like a secret")
    allowed = INHERITED if request.inherit else NEEDED
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (name in allowed or name.startswith("LC_")) and not _SECRET.search(name)
    }
    # What the program starts in turn is found there: the credential helper of a client, the interpreter of a script.
    inherited["PATH"] = trusted_path(*_project_folders(request))
    # A tree changes faster than the one-second resolution of the times in .pyc files.
    fixed = {"TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
    outer = os.environ.get(MARK)
    marked = {MARK: f"{outer}:{mark}" if outer else mark}
    return {**inherited, **fixed, **request.environment, **request.secrets, **marked}


def _refusal(what: str, number: int, text: str) -> NotStartedError:
    """Return the error without arguments where the program was not found."""
    step, _, detail = what.partition(" ")
    if step == "execute":
        return NotStartedError() if number == errno.ENOENT else NotStartedError(text)
    purpose = {
        "enter": f"cannot work in {detail!r}",
        "join": f"cannot join the control group {detail!r}",
        "limit": f"cannot set resource limit {detail}",
        "schedule": "cannot choose the cores that it may use",
    }
    return NotStartedError(f"{purpose.get(step, what)}: {text}")


def _pids(joined: str) -> frozenset[int]:
    return frozenset(int(pid) for pid in joined.split(",") if pid.isdigit())


def raw(pipe: IO[bytes] | None) -> io.FileIO:
    """Return a pipe of `popen` as the unbuffered file that it is."""
    assert isinstance(pipe, io.FileIO)
    return pipe
