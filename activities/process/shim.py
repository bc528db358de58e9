"""Supervisor between the worker and one program. It kills all of the program's descendants.

This is a script for an isolated interpreter. It is started once per run, so it imports only built-in modules (and
ctypes on Linux). It receives two messages over a socket (see `activities/process/start.py`). The first one names the
control groups; inside them, it forks the process that waits to become the program. The second one is the order. It
answers in lines:

    started <pid> <1: orphans are adopted by the shim>
    failed <what> <errno> <text>
    exited <exit code, negative: signal>
    done <killed pids, comma-separated> <pids that could not be killed> <cpu seconds> <largest resident bytes>

An end of file on the socket is the request to kill everything, because the worker asked for it or died. On Linux, the
shim is the subreaper (prctl(2)) of all descendants, so ECHILD from waitpid(2) proves that none of them is left.
"""

import _signal  # type: ignore[import-not-found]  # `signal` loads enum, a third of the whole start
import marshal
import os
import select
import sys
import time

SWEEP_S = 5.0
"""Time in seconds to wait for descendants to die after SIGKILL."""
LENGTH_BYTES = 8
_LINUX: bool = sys.platform == "linux"
_PARENT_POLL_MS = 1000
_ROUND_MS = 20
# A fork bomb creates processes during each pass; the next round finds them.
_STOP_PASSES = 50
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_prctl = None


def main(channel: int) -> None:
    """Run the program that the worker sends over `channel`.

    This returns after the program and its descendants have ended.
    """
    worker = os.getppid()
    # If the program inherited the channel, its end of file would never arrive.
    os.set_inheritable(channel, False)
    # With the default action, nothing is written to the wakeup descriptor.
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    groups = marshal.loads(_receive(channel))  # noqa: S302 - from the worker that started us
    adopts = _adopt_orphans()
    program = _start(channel, groups)
    if program is None:
        return
    # Group signals are meant for the program: the shim stays until all descendants have ended.
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_IGN)
    _send_line(channel, b"started %d %d" % (program, adopts))
    reaper = Reaper(channel, program)
    reaper.watch(worker)
    reaper.sweep()


class Reaper:
    """Reaps the program and its orphans, and handles the request to kill them."""

    def __init__(self, channel: int, program: int) -> None:
        self._channel = channel
        self._program = program
        self._ended: set[int] = set()
        self._alone = False
        wake, wake_by_signal = os.pipe()
        for end in (wake, wake_by_signal):
            # The signal handler of C writes to it, and must not block on a full pipe.
            os.set_blocking(end, False)
        _signal.set_wakeup_fd(wake_by_signal, warn_on_full_buffer=False)
        self._wake = wake
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)

    def watch(self, worker: int) -> None:
        """Wait until all processes have ended, or the worker has died or closed the channel."""
        self._poll.register(self._channel, select.POLLIN)
        # Poll the parent as well: if another process holds the channel, its end of file never arrives.
        while not self._reap() and os.getppid() == worker:
            if self._wait_for_event(_PARENT_POLL_MS) and not _read(self._channel):
                break
        self._poll.unregister(self._channel)

    def sweep(self) -> None:
        """Kill all descendants and report them.

        All descendants are stopped first, so that none can fork in the meantime.
        """
        until = time.monotonic() + SWEEP_S
        while not self._reap() and time.monotonic() < until:
            stopped: set[int] = set()
            for _ in range(_STOP_PASSES):
                new_pids = descendants(os.getpid()) - stopped
                if not new_pids:
                    break
                _signal_all(new_pids, _signal.SIGSTOP)
                stopped |= new_pids
            _signal_all(stopped, _signal.SIGKILL)
            self._ended |= stopped
            if not self._reap():
                self._wait_for_event(_ROUND_MS)
        left = set() if self._alone else descendants(os.getpid())
        # Not a built-in module, so it is imported only here, where it delays no start.
        from resource import RUSAGE_CHILDREN, getrusage

        used = getrusage(RUSAGE_CHILDREN)
        # ru_maxrss is in bytes on macOS and in KiB on Linux (getrusage(2)).
        cpu_s, largest = used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        ended = _join_pids(self._ended - left), _join_pids(left)
        _send_line(self._channel, b"done %s %s %.3f %d" % (*ended, cpu_s, largest))

    def _wait_for_event(self, milliseconds: int) -> bool:
        """Wait until a child ends or the channel has data. Return whether the channel has data."""
        ready = {descriptor for descriptor, _ in self._poll.poll(milliseconds)}
        if self._wake in ready:
            _read(self._wake)
        return self._channel in ready

    def _reap(self) -> bool:
        """Reap children that have ended. Return True if no descendants are left."""
        while not self._alone:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                break
            if pid == 0:
                break
            if pid == self._program:
                _send_line(self._channel, b"exited %d" % os.waitstatus_to_exitcode(status))
        return self._alone


def descendants(pid: int) -> set[int]:
    """Return the live descendants of a process, excluding the process itself."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for child, parent, lives in _processes():
        children.setdefault(parent, []).append((child, lives))
    living, queue = set(), [pid]
    while queue:
        # `pop`, because the listing is not a snapshot: reused pids could form a cycle.
        for child, lives in children.pop(queue.pop(), ()):
            queue.append(child)
            if lives:
                living.add(child)
    return living


def _processes() -> list[tuple[int, int, bool]]:
    """Return the pid, parent pid and liveness of all processes. Liveness is False for zombies."""
    if _LINUX:
        return [row for entry in os.scandir("/proc") if entry.name.isdigit() and (row := _stat(entry.name))]
    with os.popen("/bin/ps -A -o pid= -o ppid= -o state=") as listing:  # noqa: S605 - a fixed line
        rows = [line.split() for line in listing]
    # Without processes that have already ended: the listing contains `ps` itself.
    return [(int(row[0]), int(row[1]), not row[2].startswith("Z")) for row in rows if _exists(int(row[0]))]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _stat(pid: str) -> tuple[int, int, bool] | None:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    # The program name is in parentheses and may itself contain spaces and parentheses (proc(5)).
    fields = _read(descriptor).rpartition(b")")[2].split()
    os.close(descriptor)
    return (int(pid), int(fields[1]), fields[0] not in (b"Z", b"X")) if len(fields) > 1 else None


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def _adopt_orphans() -> bool:
    global _prctl
    if not _LINUX:
        return False
    try:
        import ctypes

        _prctl = ctypes.CDLL(None).prctl
        _prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    except (ImportError, OSError, AttributeError):
        return False
    return bool(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _start(channel: int, groups: list[bytes]) -> int | None:
    """Fork a child that runs the program. Return its pid, or None if the start failed.

    A failure is reported to the worker.
    """
    shim = os.getpid()
    failure, tell_failure = os.pipe()
    orders, tell_order = os.pipe()
    program = os.fork()
    if program == 0:
        # Until it executes the program, this copy would keep the channel open after the shim died.
        os.close(channel)
        os.close(tell_order)
        child = Program(groups, orders)
        try:
            child.become(shim)
        except (OSError, ValueError) as error:
            number, text = (error.errno or 0, error.strerror) if isinstance(error, OSError) else (0, None)
            line = b"failed %s %d %s" % (child.doing.hex().encode(), number, (text or str(error)).encode())
            os.write(tell_failure, line)
        finally:
            # Never return from here: there would be a second shim.
            os._exit(127)
    os.close(tell_failure)
    os.close(orders)
    # Drop the program's streams, so that the worker sees their end once no other process holds them.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    if null > 2:
        os.close(null)
    order = _receive(channel)
    content = len(order).to_bytes(LENGTH_BYTES, "big") + order
    try:
        while content:
            content = content[os.write(tell_order, content) :]
    except BrokenPipeError:
        pass  # the child reports the reason
    os.close(tell_order)
    line = b""
    while chunk := _read(failure):
        line += chunk
    os.close(failure)
    if not line:
        return program
    os.waitpid(program, 0)
    _send_line(channel, line)
    return None


class Program:
    """The program that replaces the forked child."""

    def __init__(self, groups: list[bytes], orders: int) -> None:
        self._groups = groups
        self._orders = orders
        self.doing = b""
        """The current step, for reporting failures."""

    def become(self, shim: int) -> None:
        """Replace this process with the program.

        Raises:
            OSError, ValueError: the program cannot be executed or set up; see `doing`.
        """
        if _prctl is not None:
            # After the fork, which clears it, as does the execution of a set-user-ID program (prctl(2)).
            _prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
        # If the parent died before the call, the signal never comes (prctl(2)).
        if os.getppid() != shim:
            os._exit(127)
        # A worker under nohup or in a script's background ignores signals that must end programs.
        for name in ("SIGPIPE", "SIGXFSZ", "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"):
            _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
        # Terminal signals such as Ctrl-C then reach only the worker.
        os.setsid()
        # Takes 15 to 25 ms if no process changed its group shortly before: the kernel waits for all cores.
        for folder in self._groups:
            self.doing = b"join " + folder
            procs = os.open(folder + b"/cgroup.procs", os.O_WRONLY)
            os.write(procs, b"0")
            os.close(procs)
        import resource  # noqa: F401 - here, because nobody waits yet where the supervisor was started ahead

        order = marshal.loads(_receive(self._orders))  # noqa: S302 - from the shim
        self.doing = b"enter " + order["cwd"]
        os.chdir(order["cwd"])
        if order["cores"] is not None and _LINUX:
            self._schedule(order["cores"])
        if order["resources"]:
            self._limit(order["resources"])
        for number, content in order["files"].items():
            self.doing = b"open"
            file = os.memfd_create("given")
            os.write(file, content)
            os.lseek(file, 0, os.SEEK_SET)
            os.dup2(file, number)
            os.close(file)
        self._execute(order["argv"], order["environment"], look_up=order["look_up"])

    def _schedule(self, cores: int) -> None:
        self.doing = b"schedule"
        allowed = sorted(os.sched_getaffinity(0))
        # Rotated, because otherwise concurrent runs would share the first cores while others idle.
        cpus = {allowed[(os.getpid() + index) % len(allowed)] for index in range(max(cores, 1))}
        os.sched_setaffinity(0, cpus)

    def _limit(self, limits: dict[int, int]) -> None:
        import resource

        for number, value in limits.items():
            self.doing = b"limit %d" % number
            # A lowered hard limit cannot be raised again without privileges (setrlimit(2)).
            hard = resource.getrlimit(number)[1]
            unlimited = resource.RLIM_INFINITY
            bound = min(value, hard) if unlimited not in (value, hard) else hard if value == unlimited else value
            resource.setrlimit(number, (bound, bound))

    def _execute(self, argv: list[bytes], environment: dict[bytes, bytes], *, look_up: bool) -> None:
        program = argv[0]
        self.doing = b"execute " + program
        folders = environment.get(b"PATH", os.defpath.encode()).split(b":") if look_up else []
        # Without a look-up the name is an absolute path and is never searched for.
        paths = [program] if b"/" in program else [os.path.join(folder, program) for folder in folders]  # noqa: PTH118
        refused: OSError | ValueError | None = None
        # Like execvp(3): an error other than "not found" takes precedence, whichever folder it came from.
        for path in paths:
            try:
                os.execve(path, argv, environment)  # noqa: S606
            except (FileNotFoundError, NotADirectoryError) as error:
                refused = refused or error
            except (OSError, ValueError) as error:
                if refused is None or isinstance(refused, (FileNotFoundError, NotADirectoryError)):
                    refused = error
        raise refused or FileNotFoundError(2, "No such file or directory")


def _receive(descriptor: int) -> bytes:
    """Read one message. Exit if the sender has closed the connection."""
    return _read_exactly(descriptor, int.from_bytes(_read_exactly(descriptor, LENGTH_BYTES), "big"))


def _read_exactly(channel: int, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        chunk = os.read(channel, size - len(content))
        if not chunk:
            os._exit(1)
        content += chunk
    return bytes(content)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except BlockingIOError:
        return b"?"
    except OSError:
        return b""


def _send_line(channel: int, line: bytes) -> None:
    try:
        os.write(channel, line + b"\n")
    except OSError:
        return


def _join_pids(pids: set[int]) -> bytes:
    return ",".join(map(str, sorted(pids))).encode() or b"-"


if __name__ == "__main__":
    main(int(sys.argv[-1]))
    os._exit(0)  # interpreter shutdown takes milliseconds
