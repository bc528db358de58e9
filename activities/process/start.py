"""Process requests, results and startup."""

import errno
import io
import marshal
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from signal import SIGCONT, SIGSTOP, Signals
from typing import IO, Any, NotRequired, TypedDict, TypeVar

import psutil

from activities.process.output import OUTPUT_BYTES, Growth
from activities.process.shim import LENGTH_BYTES
from tightloop.host.programs import TrustedProgram, absolute_folders, own_python, trusted_path

GRACE_S = 3.0
"""Time in seconds between SIGTERM and SIGKILL."""


class Reason(StrEnum):
    """The reason why a process ended."""

    EXITED = "exited"
    WALL_LIMIT = "wall_limit"
    IDLE_LIMIT = "idle_limit"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"


class Callbacks(TypedDict):
    """A running process's callbacks; see `run_process`."""

    cancelled: Callable[[], bool]
    started: Callable[[int], None]
    on_output: NotRequired[Callable[[bytes], None] | None]


@dataclass(frozen=True)
class ProjectProgram:
    """A program that runs with the worker's permissions and is looked up in the request's PATH.

    Use it only for project commands that a person has chosen to run without a sandbox.
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class ProcessRequest:
    """A program to run. It is started without a shell, unless the program itself is a shell."""

    program: TrustedProgram | ProjectProgram
    """The program to start outside a sandbox. A sandboxed command is part of the sandbox program's arguments."""
    arguments: tuple[str, ...] = ()
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the allow-list. They take precedence over it. Names that look like secrets are rejected."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that may look like secrets and are named explicitly by the caller. They never appear in messages."""
    inherit: bool = True
    """If False, only PATH, LANG, LC_*, TZ and certificates from the allow-list are inherited. The rest must be in
    `environment`."""
    stdin: Path | None = None
    """The file to read from. If None, the input ends immediately."""
    wall_limit_s: float = 3600.0
    idle_limit_s: float | None = None
    """Longest time without output."""
    grace_s: float = GRACE_S
    output_bytes: int = OUTPUT_BYTES
    separate_errors: bool = False
    """True if standard error goes to `ProcessResult.errors` instead of the output."""
    output_limit_bytes: int | None = None
    """A program that writes more than this to both streams together is killed immediately."""
    memory_limit_bytes: int | None = None
    """Limit on the sum of resident memory over the tree, sampled twice a second. A program that exceeds it is killed
    immediately. Shared memory counts for each process."""
    process_limit: int | None = None
    """Limit on the number of processes, which is also sampled. A fork bomb may exceed it between two samples. Only a
    control group prevents that.
    """
    growth: Growth | None = None
    """Limit on the data that the program may add to folders. It is also sampled, so a fast writer exceeds it for a
    second or two."""
    resources: Mapping[int, int] = field(default_factory=dict)
    """Soft and hard limits by `resource.RLIMIT_*`, set before the program starts. If the worker has a lower hard limit,
    that limit is kept."""
    cores: int | None = None
    """Number of cores that the program may be scheduled on (Linux)."""
    cgroups: tuple[Path, ...] = ()
    """Folders of control groups that the program joins before it starts."""
    files: Mapping[int, bytes] = field(default_factory=dict)
    """Contents of inherited descriptors above 9 (Linux)."""
    options_at: int | None = None
    """The descriptor from which bubblewrap reads the inner command's variables as options. Variables such as LD_PRELOAD
    affect every program that has them, so the sandbox program itself, which is outside, must not have them."""
    shim: "Shim | None" = None
    """A supervisor that `prepare` started in advance, with these control groups, without input and without separate
    errors."""


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """The result of a process."""

    reason: Reason
    exit_code: int | None = None
    """Set only if the process exited on its own. A negative value is the signal that killed it."""
    output: bytes = field(default=b"", repr=False)
    """Interleaved stdout and stderr, at most `output_bytes`. With `separate_errors`, only stdout."""
    errors: bytes = field(default=b"", repr=False)
    """Standard error if `separate_errors` is set, at most the last 64 kB."""
    cut: bool = False
    """True if output was dropped. If so, a line in the output states how much."""
    written_bytes: int = 0
    """Number of bytes that the program wrote to both streams, including those that were dropped."""
    duration_s: float = 0.0
    survivors_ended: int = 0
    """Number of processes that outlived the program and were killed."""
    cpu_s: float | None = None
    """Observed CPU time of the whole process tree. None if the platform does not report it."""
    peak_memory_bytes: int | None = None
    """Resident memory of the largest process, or of the whole tree if a limit was watched. It is at least the 10 MB of
    the process from which the program was forked."""
    message: str = ""
    """Reason why the start failed, which limit was exceeded, or which processes could not be killed."""


Inspected = TypeVar("Inspected")
MARK = "CHILD_OF_TIGHTLOOP"
"""Environment variable with the ids of the runs that a process belongs to, joined with `:`."""


@dataclass(frozen=True)
class Footprint:
    """The resource usage of a process tree at a point in time."""

    processes: int
    resident_bytes: int
    cpu_s: float
    """CPU time used by the living processes and their reaped children."""


class ProcessTree:
    """A session leader and its descendants.

    While their shim is alive and is their subreaper, they always remain descendants of the shim.
    Otherwise (on macOS, or if the shim was killed), a descendant is recognised by its session, by the
    marker in its environment, or by its parent. The marker survives a double fork and `setsid`. The
    parent must have been seen while it was alive. A process that drops all three at once
    (`env -i setsid ... &`) is missed.
    """

    def __init__(self, leader: int, marker: str, *, adopter: int | None) -> None:
        """Set the pid of the leader, the marker in its environment, and the pid of the subreaper, if any."""
        self._pid = leader
        self._mark = marker
        self._leader = _process(leader)
        self._adopter = None if adopter is None else _process(adopter)
        self._known: set[psutil.Process] = {self._leader} if self._leader else set()

    def observe(self) -> Set[psutil.Process]:
        """Record and return the current descendants of the leader.

        A descendant is only found while its parent is alive.
        """
        if self._adopter is not None and is_alive(self._adopter):
            covered = _children(self._adopter)
        else:
            covered = set()
            for process in self._known:
                if process not in covered:
                    covered |= _children(process)
        # psutil compares the start time as well, so a reused pid is another process.
        self._known = {process for process in self._known | covered if is_alive(process)}
        return self._known

    def members(self) -> Set[psutil.Process]:
        """Return all live processes in the tree, including the leader.

        Without a subreaper, this scans the whole host.
        """
        if self._adopter is not None and is_alive(self._adopter):
            return self.observe()
        known_pids = {process.pid for process in self._known} | {os.getpid()}
        # None once another process has reused the pid of a dead leader.
        runs = self._leader is not None and self._leader.is_running()
        session = self._pid if runs or not psutil.pid_exists(self._pid) else None
        for pid in psutil.pids():
            # Environments of other users' processes are unreadable; those are not members.
            with suppress(psutil.Error, OSError):
                if pid in known_pids:
                    continue
                process = psutil.Process(pid)
                if os.getsid(pid) == session or self._mark in process.environ().get(MARK, "").split(":"):
                    self._known.add(process)
        return self.observe()

    def signal(self, number: Signals) -> Set[psutil.Process]:
        """Send a signal to all processes in the tree, and return the processes.

        All processes are stopped until each one has received the signal. Otherwise, a shell would run its
        next command when its child dies.
        """
        members = self.members()
        for signal_number in (SIGSTOP, number, SIGCONT):
            for process in members:
                with suppress(psutil.Error):
                    process.send_signal(signal_number)
        return members

    def footprint(self) -> Footprint:
        """Measure the resource usage of the running processes in the tree.

        Processes that end in the meantime are ignored.
        """
        sizes = []
        for process in self.observe():
            with suppress(psutil.Error):
                # User and system time, then those of reaped children; on Linux iowait follows.
                sizes.append((process.memory_info().rss, sum(process.cpu_times()[:4])))
        return Footprint(len(sizes), sum(size for size, _ in sizes), sum(cpu_s for _, cpu_s in sizes))


def _inspect(probe: Callable[[], Inspected], otherwise: Inspected) -> Inspected:
    """Call a function that inspects a process.

    Return `otherwise` if the process has ended or belongs to another user.
    """
    try:
        return probe()
    except psutil.Error:
        return otherwise


def _process(pid: int) -> psutil.Process | None:
    return _inspect(lambda: psutil.Process(pid), None)


def _children(process: psutil.Process) -> set[psutil.Process]:
    return _inspect(lambda: set(process.children(recursive=True)), set())


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running. Zombies are treated as ended."""
    return _inspect(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, otherwise=False)


CERTIFICATES = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}
)
NEEDED = CERTIFICATES | {"PATH", "LANG", "TZ"}
"""Variables that every child inherits, in addition to `LC_*`."""
INHERITED = NEEDED | {
    "HOME", "USER", "LOGNAME", "LANGUAGE", "TMPDIR", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"
}  # fmt: skip
"""Variables that a child inherits by default."""
START_S = 30.0
"""Timeout for starting a program, which normally takes about 10 ms."""

_FINISH_S = 2.0
_SHIM = Path(__file__).with_name("shim.py")
# A script is compiled at every start, which takes a quarter of it; a module is loaded from its bytecode.
_LOAD = (
    "import sys; from _frozen_importlib_external import SourceFileLoader as L; "
    "exec(L('shim', sys.argv[1]).get_code('shim'), {'__name__': '__main__'})"
)
# A Python linked to its own shared library may not start without these.
_FOR_PYTHON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)


class NotStartedError(Exception):
    """Raised if a program could not be started. The message is for the user."""


@dataclass(frozen=True)
class ShimReport:
    """A shim's last report."""

    killed: frozenset[int]
    """Processes that the shim had to kill."""
    survivors: frozenset[int]
    """Processes that the shim could not kill."""
    cpu_s: float
    largest_bytes: int


class Shim:
    """The worker's end of the connection to a running shim."""

    def __init__(self, popen: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.popen = popen
        self.pid = 0
        """The pid of the program, which leads its process group and session."""
        self.adopts = False
        """True if orphans are adopted by the shim, so that `done` proves that no descendants are left."""
        self.exit_code: int | None = None
        """The program's exit code. A negative value is the signal that killed it."""
        self.report: ShimReport | None = None
        self.has_ended = False
        """True if there will be no more reports."""
        self._channel = channel
        self._unread = b""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is a new report."""
        return self._channel.fileno()

    def order(self, order: Mapping[str, object]) -> None:
        """Tell the shim to start the program, and wait until the program is running.

        Raises:
            NotStartedError: the program cannot be executed.
            OSError: the shim does not respond.
        """
        # A shim that has exited may have sent the reason.
        with suppress(BrokenPipeError, ConnectionResetError):
            _send(self._channel, order)
        deadline = time.monotonic() + START_S
        while not self.pid:
            self._channel.settimeout(max(deadline - time.monotonic(), 0.001))
            self.take()
            if self.has_ended and not self.pid:
                raise OSError(f"the supervisor exited with code {self.popen.wait(_FINISH_S)}")
        self._channel.setblocking(False)

    def take(self) -> None:
        """Read the reports that the shim has sent. Blocks if the channel is blocking."""
        try:
            chunk = self._channel.recv(65_536)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk = b""
        if not chunk:
            self.has_ended = True
            return
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            match line.decode("utf-8", "replace").split(" ", 4):
                case ["started", pid, adopts]:
                    self.pid, self.adopts = int(pid), adopts == "1"
                case ["exited", code]:
                    self.exit_code = int(code)
                case ["done", ended, left, cpu_s, largest]:
                    self.report = ShimReport(_pids(ended), _pids(left), float(cpu_s), int(largest))
                case ["failed", what, number, *text]:
                    raise _refusal(bytes.fromhex(what).decode("utf-8", "replace"), int(number), " ".join(text))

    def sweep(self) -> None:
        """Kill all remaining descendants. The shim then reports `done`."""
        try:
            self._channel.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def abandon(self) -> None:
        """End a shim whose program is not running. Idempotent."""
        self.has_ended = self.has_ended or not self.pid
        self.finish()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close this process's ends of the pipes. The shim exits once all copies are closed."""
        self._channel.close()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()

    def proves_the_end(self) -> bool:
        """Return whether the shim has reported that no descendants are left."""
        return self.adopts and self.report is not None and not self.report.survivors

    def finish(self) -> None:
        self.sweep()
        try:
            # A shim without a report hangs, so waiting would not help.
            self.popen.wait(_FINISH_S if self.report or self.has_ended else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(_FINISH_S)
        finally:
            self._channel.close()


def prepare(*, cgroups: tuple[Path, ...] = (), stdin: IO[bytes] | int, separate_errors: bool = False) -> Shim:
    """Start a shim and a process. The process joins the control groups and waits for `start`.

    The pipes come from `popen` and are unbuffered. The shim ends when `finish` is called or when this process ends.

    Raises:
        OSError: no process can be started.
    """
    environment = {name: absolute_folders(os.environ[name]) for name in _FOR_PYTHON if name in os.environ}
    if MARK in os.environ:
        environment[MARK] = os.environ[MARK]
    # One descriptor for orders, reports and, as end of file, the death of either side.
    ours, theirs = socket.socketpair()
    with theirs:
        channel = theirs.fileno()
        try:
            popen = subprocess.Popen(
                # Keeps the user's packages and PYTHON* variables away from the shim.
                own_python().command("-I", "-S", "-B", "-c", _LOAD, _SHIM, str(channel)),
                # Its environment is readable by all processes of the same user.
                env=environment,
                # The current folder of the worker may have been removed.
                cwd="/",
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if separate_errors else subprocess.STDOUT,
                # The descriptors themselves are polled: a buffer would hide received data.
                bufsize=0,
                pass_fds=(channel,),
                # A signal to the group of the worker must not end it before it has killed the tree.
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


def start(request: ProcessRequest, marker: str, *, stdin: IO[bytes] | int) -> Shim:
    """Start a program in its own session, using the request's prepared shim if there is one.

    Raises:
        NotStartedError: the program cannot be started.
        UntrustedProgramError: the project can write to the program or to our Python.
    """
    program = request.program
    if isinstance(program, TrustedProgram):
        # Our Python runs the shim outside the sandbox, so a project must not write to it either.
        for started in (program, own_python()):
            started.refuse_within(_project_folders(request))
    try:
        environment, files = _environment(request, marker), dict(request.files)
        if request.options_at is not None:
            # Options of bubblewrap (`--args`), which apply to the command inside only.
            parts = (part for name, value in environment.items() for part in ("--setenv", name, value))
            files[request.options_at] = b"".join(os.fsencode(part) + b"\0" for part in parts)
            environment = {"PATH": trusted_path(*_project_folders(request)), MARK: environment[MARK]}
        order = {
            "argv": [os.fsencode(argument) for argument in (str(program), *request.arguments)],
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


def _project_folders(request: ProcessRequest) -> tuple[Path, ...]:
    """Return the project folders that the program of a request may write to."""
    folders = request.growth.folders if request.growth is not None else ()
    return (request.cwd, *folders)


def _send(channel: socket.socket, message: Any) -> None:
    # Over the channel, because other users of the host can read command lines.
    content = marshal.dumps(message)
    channel.sendall(len(content).to_bytes(LENGTH_BYTES, "big") + content)


def _environment(request: ProcessRequest, marker: str) -> dict[str, str]:
    for name in request.environment:
        if _SECRET.search(name):
            raise ValueError(
                f"the environment of a child process must not contain {name}, because the name suggests that it "
                "holds a secret"
            )
    allowed = INHERITED if request.inherit else NEEDED
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (name in allowed or name.startswith("LC_")) and not _SECRET.search(name)
    }
    # The program looks up its own helpers there: a client's credential helper, a script's interpreter.
    inherited["PATH"] = trusted_path(*_project_folders(request))
    # A tree changes faster than the one-second resolution of the times in .pyc files.
    fixed = {"TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}
    outer = os.environ.get(MARK)
    marked = {MARK: f"{outer}:{marker}" if outer else marker}
    # The mark comes last, so that no request can replace it.
    return {**inherited, **fixed, **request.environment, **request.secrets, **marked}


def _refusal(what: str, number: int, text: str) -> NotStartedError:
    """Return the error for a program that was not started. An empty message means it was not found."""
    step, _, detail = what.partition(" ")
    if step == "execute":
        # ENOENT may also mean that the interpreter of a script is missing.
        return NotStartedError() if number == errno.ENOENT else NotStartedError(text)
    purpose = {
        "enter": f"cannot enter the folder {detail!r}",
        "join": f"cannot join the control group {detail!r}",
        "limit": f"cannot set resource limit {detail}",
        "schedule": "cannot set the CPU cores to use",
    }
    return NotStartedError(f"{purpose.get(step, what)}: {text}")


def _pids(joined: str) -> frozenset[int]:
    return frozenset(int(pid) for pid in joined.split(",") if pid.isdigit())


def raw(pipe: IO[bytes] | None) -> io.FileIO:
    """Return a pipe from `popen` as an unbuffered file."""
    assert isinstance(pipe, io.FileIO)
    return pipe
