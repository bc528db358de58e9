"""Start of a process."""

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
"""Time between SIGTERM and SIGKILL."""


class Reason(StrEnum):
    """Why a process ended."""

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
    """Callbacks of a running process; see `run_process`."""

    cancelled: Callable[[], bool]
    started: Callable[[int], None]
    on_output: NotRequired[Callable[[bytes], None] | None]


@dataclass(frozen=True)
class ProjectProgram:
    """A program that runs with the rights of the worker, and is looked up along the PATH of the request.

    Only for commands of a project where a person wanted no sandbox.
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class ProcessRequest:
    """A program to run, without a shell unless it is one."""

    program: TrustedProgram | ProjectProgram
    """What is started outside of a sandbox. A command inside stands in the arguments of the sandbox's program."""
    arguments: tuple[str, ...] = ()
    cwd: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to the allow-list; wins over it. Names that look like secrets are refused."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that may look like secrets, each named by who starts the program; shown in no message."""
    inherit: bool = True
    """False: of the allow-list only PATH, LANG, LC_*, TZ and the certificates; the rest stands in `environment`."""
    stdin: Path | None = None
    """File to read from; None: end of file at once."""
    wall_limit_s: float = 3600.0
    idle_limit_s: float | None = None
    """Longest time without output."""
    grace_s: float = GRACE_S
    output_bytes: int = OUTPUT_BYTES
    separate_errors: bool = False
    """Standard error goes to `ProcessResult.errors` and not among the output."""
    output_limit_bytes: int | None = None
    """A program that writes more, to both streams together, is ended at once."""
    memory_limit_bytes: int | None = None
    """Watched twice a second over the whole tree (sum of resident memory); a program that needs more is ended at once.

    What processes share counts for each of them.
    """
    process_limit: int | None = None
    """Watched likewise. Between two looks a fork bomb may pass it: only a control group holds that one."""
    growth: Growth | None = None
    """What it may add to folders, watched likewise: a fast writer gets a second or two beyond it."""
    resources: Mapping[int, int] = field(default_factory=dict)
    """`resource.RLIMIT_*` to soft and hard limit, set before the program starts; a lower hard limit of ours stays."""
    cores: int | None = None
    """Number of cores that it may be scheduled on (Linux)."""
    cgroups: tuple[Path, ...] = ()
    """Folders of control groups that it joins before it starts."""
    files: Mapping[int, bytes] = field(default_factory=dict)
    """Descriptor, above 9, to the content that it finds there (Linux)."""
    options_at: int | None = None
    """Descriptor at which bubblewrap finds the variables of the command inside as its options.

    Variables such as LD_PRELOAD act on every program that has them: the sandbox itself, outside, has none of them.
    """
    shim: "Shim | None" = None
    """A supervisor that `prepare` started ahead: with these control groups, without input, errors not apart."""


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """Result of a process."""

    reason: Reason
    exit_code: int | None = None
    """Only where it exited by itself; negative: the signal that killed it."""
    output: bytes = field(default=b"", repr=False)
    """Both streams as they came, at most `output_bytes`; standard output alone with `separate_errors`."""
    errors: bytes = field(default=b"", repr=False)
    """Standard error with `separate_errors`, at most 64 kB of its end."""
    cut: bool = False
    """Output is missing; a line in it says how much."""
    duration_s: float = 0.0
    survivors_ended: int = 0
    """Other processes that outlived the program and were ended."""
    cpu_s: float | None = None
    """Of the whole tree, as far as it was seen; None where the platform does not tell."""
    peak_memory_bytes: int | None = None
    """Resident memory of the largest process, or of the whole tree where a limit was watched; at least the 10 MB
    of the process from which the program was forked."""
    message: str = ""
    """Why it was not started or ran into a limit of ours, or which processes could not be ended."""


Seen = TypeVar("Seen")
MARK = "CHILD_OF_TIGHTLOOP"
"""Environment variable with the ids, joined by `:`, of the runs that a process belongs to."""


@dataclass(frozen=True)
class Footprint:
    """Resources of a process tree at one moment."""

    processes: int
    resident_bytes: int
    cpu_s: float
    """Of the processes that live, and of those that they waited for."""


class ProcessTree:
    """A child process that leads its own session, and its descendants.

    While its shim lives and is their subreaper, they are the descendants of the shim, whatever they shed. Else
    (macOS, or somebody killed the shim) one is recognised by its parent, seen while that lived; by its session; or
    by the mark in its environment, which outlives a double fork and `setsid`. One that sheds all three at once
    (`env -i setsid ... &`) is then missed.
    """

    def __init__(self, leader: int, mark: str, *, adopter: int | None) -> None:
        """Take the pid of the leader, the id in its environment, and the pid of the subreaper if there is one."""
        self._pid = leader
        self._mark = mark
        self._leader = _process(leader)
        self._adopter = None if adopter is None else _process(adopter)
        self._known: set[psutil.Process] = {self._leader} if self._leader else set()

    def observe(self) -> Set[psutil.Process]:
        """Remember and return the descendants by parent; once the parent is gone they are not found that way."""
        if self._adopter is not None and is_alive(self._adopter):
            covered = _children(self._adopter)
        else:
            covered = set()
            for process in self._known:
                if process not in covered:
                    covered |= _children(process)
        self._known = {process for process in self._known | covered if is_alive(process)}
        return self._known

    def members(self) -> Set[psutil.Process]:
        """Return all members that live, the leader included; without a subreaper looks at the whole host."""
        if self._adopter is not None and is_alive(self._adopter):
            return self.observe()
        known = {process.pid for process in self._known} | {os.getpid()}
        # None once the pid of a dead leader was given to another process.
        runs = self._leader is not None and self._leader.is_running()
        session = self._pid if runs or not psutil.pid_exists(self._pid) else None
        for pid in psutil.pids():
            # The environment of other users cannot be read: theirs are none of it.
            with suppress(psutil.Error, OSError):
                if pid in known:
                    continue
                process = psutil.Process(pid)
                if os.getsid(pid) == session or self._mark in process.environ().get(MARK, "").split(":"):
                    self._known.add(process)
        return self.observe()

    def signal(self, number: Signals) -> Set[psutil.Process]:
        """Send a signal to all members and return them.

        They are frozen until all have it: else a shell goes on to its next command when its child dies first.
        """
        members = self.members()
        for each in (SIGSTOP, number, SIGCONT):
            for process in members:
                with suppress(psutil.Error):
                    process.send_signal(each)
        return members

    def footprint(self) -> Footprint:
        """Measure what lives of the tree; a process that ends meanwhile counts for nothing."""
        sizes = []
        for process in self.observe():
            with suppress(psutil.Error):
                # User and system time, then those of children that were waited for; on Linux iowait follows.
                sizes.append((process.memory_info().rss, sum(process.cpu_times()[:4])))
        return Footprint(len(sizes), sum(size for size, _ in sizes), sum(cpu_s for _, cpu_s in sizes))


def _look(look: Callable[[], Seen], otherwise: Seen) -> Seen:
    """Return what a look at a process gives; `otherwise` where it has gone or belongs to another user."""
    try:
        return look()
    except psutil.Error:
        return otherwise


def _process(pid: int) -> psutil.Process | None:
    return _look(lambda: psutil.Process(pid), None)


def _children(process: psutil.Process) -> set[psutil.Process]:
    return _look(lambda: set(process.children(recursive=True)), set())


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie has ended, and only its parent has not asked yet."""
    return _look(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, otherwise=False)


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
# Without these, a Python that is linked to a shared library of its own may not start.
_FOR_PYTHON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
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
            match line.decode("utf-8", "replace").split(" ", 4):
                case ["started", pid, adopts]:
                    self.pid, self.adopts = int(pid), adopts == "1"
                case ["exited", code]:
                    self.exit_code = int(code)
                case ["done", ended, left, cpu_s, largest]:
                    self.done = Done(_pids(ended), _pids(left), float(cpu_s), int(largest))
                case ["failed", what, number, *text]:
                    raise _refusal(bytes.fromhex(what).decode("utf-8", "replace"), int(number), " ".join(text))

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
        self.sweep()
        try:
            self.popen.wait(_FINISH_S if self.done or self.over else 0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(_FINISH_S)
        finally:
            self._channel.close()


def prepare(*, cgroups: tuple[Path, ...] = (), stdin: IO[bytes] | int, separate_errors: bool = False) -> Shim:
    """Start a shim, and in it the process that joins the control groups and then waits for the order of `start`.

    Its pipes are those of `popen`, unbuffered. It ends by `finish`, and with this process.

    Raises:
        OSError: no process can be started.
    """
    environment = {name: absolute_folders(os.environ[name]) for name in _FOR_PYTHON if name in os.environ}
    if MARK in os.environ:
        environment[MARK] = os.environ[MARK]
    ours, theirs = socket.socketpair()
    with theirs:
        channel = theirs.fileno()
        try:
            popen = subprocess.Popen(
                # Neither the packages of the user nor PYTHON* variables reach the shim.
                own_python().command("-I", "-S", "-B", "-c", _LOAD, _SHIM, str(channel)),
                # Its environment can be read by whoever runs under the same user.
                env=environment,
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
            # Options of bubblewrap (`--args`): they hold for the command inside alone.
            parts = (part for name, value in environment.items() for part in ("--setenv", name, value))
            files[request.options_at] = b"".join(os.fsencode(part) + b"\0" for part in parts)
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


def _project_folders(request: ProcessRequest) -> tuple[Path, ...]:
    """Return the folders that the request shows to belong to a project: what runs for it may write them."""
    folders = request.growth.folders if request.growth is not None else ()
    return (request.cwd, *folders)


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
