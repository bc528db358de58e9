"""A running process and its descendants."""

import io
import os
import selectors
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from signal import SIGINT, SIGKILL, SIGTERM, Signals

from activities.process.output import ERRORS_BYTES, BoundedOutput, GrowthWatch
from activities.process.shim import SWEEP_S
from activities.process.start import (
    Footprint,
    NotStartedError,
    ProcessRequest,
    ProcessResult,
    ProcessTree,
    Reason,
    Shim,
    raw,
    start,
)

_TICK_S = 0.1
_OBSERVE_S = 1.0
_MEASURE_S = 0.5
"""Interval in seconds between measurements. One psutil scan of a tree takes 2.3 ms of CPU time."""
# A background process may hold the pipe long after the program ends, so its output is not awaited.
_LAST_OUTPUT_S = 0.5
_LAST_PROCESS_S = 0.05
_SLACK_S = 1.0
_KILL_S = 5.0
_CHUNK_BYTES = 65_536
_MEGABYTE = 1_000_000

_SIGNALS: Mapping[Reason | None, tuple[Signals, ...]] = {
    Reason.EXITED: (SIGTERM,),
    Reason.WALL_LIMIT: (SIGTERM,),
    Reason.IDLE_LIMIT: (SIGTERM,),
    # SIGINT first: after a SIGTERM to its group, Claude Code 2.1.197 lost its tool, asked the model again and exited
    # with 0.
    Reason.CANCELLED: (SIGINT, SIGTERM),
}
"""Signals to send before SIGKILL. There are none if the program exceeded a limit or if the caller failed (None)."""


class Child:
    """A running program with its output and its descendants. Only one thread may use it at a time."""

    def __init__(
        self, shim: Shim, marker: str, request: ProcessRequest, on_output: Callable[[bytes], None] | None
    ) -> None:
        """Wrap a program that was started by `start` with this `marker`. Use `read_from` to read its output."""
        self.output = BoundedOutput(request.output_bytes)
        self.errors = BoundedOutput(ERRORS_BYTES, head_bytes=0)
        self._survivors: set[int] = set()
        self._message = ""
        self._exit_code: int | None = None
        self._footprint = Footprint(0, 0, 0.0)
        self._shim = shim
        self._request = request
        self._on_output = on_output
        self._tree = ProcessTree(shim.pid, marker, adopter=shim.popen.pid if shim.adopts else None)
        self._pipes: dict[io.FileIO, BoundedOutput] = {}
        # Unlike epoll and kqueue it needs no descriptor, and unlike select it takes those above 1 023.
        self._selector = selectors.PollSelector()
        self._selector.register(shim, selectors.EVENT_READ)
        self._growth = GrowthWatch(request.growth) if request.growth else None
        self._grown = ""
        self._read_bytes = 0
        self._begun = self._last_output = time.monotonic()

    def read_from(self, pipe: io.FileIO, output: BoundedOutput) -> None:
        """Read a pipe while the program is running, then close the pipe."""
        self._pipes[pipe] = output
        self._selector.register(pipe, selectors.EVENT_READ)

    def exit_code(self) -> int | None:
        """Return the program's exit code, or None if the program is still running."""
        if self._shim.has_ended and self._shim.exit_code is None:
            # The shim is gone, so the kernel killed the program (PR_SET_PDEATHSIG).
            return -int(SIGKILL)
        return self._shim.exit_code

    def watch(self, cancelled: Callable[[], bool]) -> Reason:
        """Read the program's output until it exits or must be killed."""
        next_look = self._begun
        limited = self._request.memory_limit_bytes is not None or self._request.process_limit is not None
        while not self._has_exit_code():
            self._read(_TICK_S)
            now = time.monotonic()
            # Before the exit code: a program that ends on its own meanwhile was cancelled nevertheless.
            if cancelled():
                return Reason.CANCELLED
            if self._has_exit_code():
                break
            if now >= next_look:
                self._look_at_disk()
                if limited:
                    size, most = self._tree.footprint(), self._footprint
                    self._footprint = Footprint(
                        max(size.processes, most.processes),
                        max(size.resident_bytes, most.resident_bytes),
                        max(size.cpu_s, most.cpu_s),
                    )
                else:
                    # Without a subreaper a descendant is only found while its parent lives, so record it in time.
                    self._tree.observe()
                next_look = now + (_MEASURE_S if limited else _OBSERVE_S)
            if reason := self._beyond(now):
                return reason
        # A short program may have written much since the last look.
        self._look_at_disk()
        return self._beyond_output() or (Reason.DISK_LIMIT if self._grown else Reason.EXITED)

    def end(self, reason: Reason | None) -> None:
        """End the remaining processes of the tree and read their output."""
        self._exit_code = self.exit_code()
        has_ended = False
        try:
            if reason is Reason.EXITED:
                # What ends by itself in a moment must not count as a killed survivor.
                self._settle(self._has_all_output, _LAST_OUTPUT_S)
                self._settle(self._gone, _LAST_PROCESS_S)
            for number in _SIGNALS.get(reason, ()):
                if has_ended := self._gone():
                    break
                self._signal(number)
                if has_ended := self._settle(self._gone, self._request.grace_s):
                    break
        finally:
            # The callback may be what failed, so it is not called for the rest of the output.
            self._on_output = None
            if not has_ended:
                self._kill()
            self._settle(self._has_all_output, _LAST_OUTPUT_S)
            self._shim.finish()
            self._selector.close()
            for pipe in self._pipes:
                pipe.close()

    def await_exit(self, seconds: float) -> None:
        self._settle(self._has_exit_code, seconds)

    def result(self, reason: Reason) -> ProcessResult:
        """Return the result of a program that has finished."""
        # Both sources, because a pid namespace reaps inside: getrusage(2) outside saw 2 ms of such a run.
        report, footprint = self._shim.report, self._footprint
        return ProcessResult(
            reason=reason,
            exit_code=self._exit_code,
            output=self.output.value(),
            errors=self.errors.value(),
            cut=self.output.cut or self.errors.cut,
            written_bytes=self._read_bytes,
            duration_s=time.monotonic() - self._begun,
            survivors_ended=len(self._survivors),
            cpu_s=max(report.cpu_s, footprint.cpu_s) if report else None,
            peak_memory_bytes=max(report.largest_bytes, footprint.resident_bytes) if report else None,
            message=self._message or self._describe_reason(reason),
        )

    def _look_at_disk(self) -> None:
        if self._growth is not None:
            self._grown = self._growth.describe_excess(lambda: [process.pid for process in self._tree.members()])

    def _beyond(self, now: float) -> Reason | None:
        request, footprint = self._request, self._footprint
        if request.memory_limit_bytes is not None and footprint.resident_bytes > request.memory_limit_bytes:
            return Reason.MEMORY_LIMIT
        if request.process_limit is not None and footprint.processes > request.process_limit:
            return Reason.PROCESS_LIMIT
        if self._grown:
            return Reason.DISK_LIMIT
        if now - self._begun >= request.wall_limit_s:
            return Reason.WALL_LIMIT
        if request.idle_limit_s is not None and now - self._last_output >= request.idle_limit_s:
            return Reason.IDLE_LIMIT
        return self._beyond_output()

    def _beyond_output(self) -> Reason | None:
        limit = self._request.output_limit_bytes
        return Reason.OUTPUT_LIMIT if limit is not None and self._read_bytes > limit else None

    def _describe_reason(self, reason: Reason) -> str:
        request, footprint = self._request, self._footprint
        if self._shim.report is None:
            return "the program's supervisor was killed or stopped. All processes that could be found were killed"
        match reason:
            case Reason.MEMORY_LIMIT:
                allowed, used = (request.memory_limit_bytes or 0) / _MEGABYTE, footprint.resident_bytes / _MEGABYTE
                return (
                    f"killed: the program used {used:.0f} MB of memory, but the limit is {allowed:.0f} MB. Raise "
                    "the limit or use less memory"
                )
            case Reason.PROCESS_LIMIT:
                allowed = request.process_limit or 0
                return (
                    f"killed: the program ran {footprint.processes} processes at once, but the limit is {allowed}. "
                    "Raise the limit or start fewer processes"
                )
            case Reason.OUTPUT_LIMIT:
                allowed = request.output_limit_bytes or 0
                return f"killed: the program wrote more than {allowed} bytes of output. Write less, or write to a file"
            case Reason.DISK_LIMIT:
                return self._grown
            case _:
                return ""

    def _kill(self) -> None:
        # Only processes that outlive the program are survivors; the others are killed with it.
        late = self._has_exit_code()
        # If the shim dies during the sweep, descendants that were not recorded are lost.
        self._tree.observe()
        self._shim.sweep()
        self._settle(lambda: self._shim.report is not None or self._shim.has_ended, SWEEP_S + _SLACK_S)
        report = self._shim.report
        if report is not None and late:
            self._survivors |= report.killed - {self._shim.pid}
        if self._shim.proves_the_end():
            return
        # The shim hangs or is dead. Without it the descendants get another parent, so they are collected first.
        if report is None:
            self._tree.observe()
            self._shim.popen.kill()
        deadline = time.monotonic() + _KILL_S
        while members := self._signal(SIGKILL):
            if time.monotonic() > deadline:
                self._message = f"could not kill processes {sorted(members)}. Kill the processes manually: kill -9 PID"
                return
            self._settle(self._gone, _TICK_S)

    def _signal(self, number: Signals) -> set[int]:
        members = {process.pid for process in self._tree.signal(number)}
        if self._has_exit_code():
            self._survivors |= members - {self._shim.pid}
        return members

    def _has_exit_code(self) -> bool:
        return self.exit_code() is not None

    def _gone(self) -> bool:
        if self._shim.adopts and not self._shim.has_ended:
            # The report of a subreaper is proof, and cheaper than a scan of all processes.
            return self._shim.proves_the_end()
        return self._shim.proves_the_end() or (self._has_exit_code() and not self._tree.members())

    def _has_all_output(self) -> bool:
        return not any(pipe in self._selector.get_map() for pipe in self._pipes)

    def _settle(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Read output until `reached` returns True or the time is up. Return whether `reached` returned True."""
        deadline = time.monotonic() + seconds
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._read(min(left, _TICK_S / 2))
        return True

    def _read(self, seconds: float) -> None:
        """Read output for up to `seconds`. Return early if the program's state changes."""
        until = time.monotonic() + seconds
        turned = False
        while not turned and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if isinstance(key.fileobj, Shim):
                    self._shim.take()
                    if self._shim.has_ended:
                        self._selector.unregister(self._shim)
                    turned = True
                elif isinstance(key.fileobj, io.FileIO):
                    turned = self._take(key.fileobj) or turned

    def _take(self, pipe: io.FileIO) -> bool:
        """Read a chunk of output. Return True if the output has ended or exceeds its limit."""
        chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
        if not chunk:
            self._selector.unregister(pipe)
            return True
        self._last_output = time.monotonic()
        self._read_bytes += len(chunk)
        output = self._pipes[pipe]
        output.add(chunk)
        if self._on_output is not None and output is self.output:
            self._on_output(chunk)
        return self._beyond_output() is not None


class ProcessSession:
    """The pipes of a running program. The session can also end the program.

    The session owns `stdin` and `stdout`. You may close them early, as asyncio's pipe transports do.
    Leaving the context also closes them. If you need to close the bare descriptors, `os.dup` them first.
    Both are /dev/null if the program could not be started.
    """

    def __init__(
        self, child: Child | None, stdin: io.FileIO, stdout: io.FileIO, request: ProcessRequest, failure: str = ""
    ) -> None:
        """Wrap a started program. If it could not be started, `child` is None and `failure` is the reason."""
        self.stdin = stdin
        self.stdout = stdout
        self._child = child
        self._request = request
        self._asked = threading.Event()
        self._ending = threading.Lock()
        self._limit: Reason | None = None
        self._result = None if child else ProcessResult(reason=Reason.NOT_STARTED, message=failure)
        # A daemon thread: a program that cannot be killed must not keep the worker from exiting.
        self._watcher = threading.Thread(target=self._watch, name="process-session", daemon=True)

    def poll(self) -> int | None:
        """Return the exit code of the program, or None if it is still running.

        The exit code is negative for a signal, and 127 if the program was never started.
        """
        return 127 if self._child is None else self._child.exit_code()

    def start_watching(self) -> None:
        """Start reading standard error and watching the limits."""
        self._watcher.start()

    def end(self, reason: Reason | None) -> ProcessResult:
        """End the program and its descendants, and return the result. Later calls return the same result.

        If `reason` is `EXITED`, the program's input is closed and it is given the grace period to exit. If `reason` is
        None, because the caller failed, everything is killed immediately. An exceeded limit or a failed start takes
        precedence over `reason`. `exit_code` is set if the program exited before it was signalled. This blocks for at
        most two grace periods and a few seconds.
        """
        self._asked.set()
        with self._ending:
            if self._result is None:
                assert self._child is not None
                # The watcher reads the same pipes and may already be ending the program: only one thread at a time.
                if self._watcher.ident is not None:
                    self._watcher.join()
                if self._limit is None:
                    if reason is Reason.EXITED:
                        self.stdin.close()
                        self._child.await_exit(self._request.grace_s)
                    self._child.end(reason)
                self._result = self._child.result(self._limit or reason or Reason.CANCELLED)
            return self._result

    def _watch(self) -> None:
        """Read standard error until the program ends, exceeds a limit or is ended by `end`."""
        assert self._child is not None
        reason = self._child.watch(self._asked.is_set)
        if reason not in (Reason.EXITED, Reason.CANCELLED):
            self._limit = reason
            self._child.end(reason)


@contextmanager
def open_process(request: ProcessRequest, *, started: Callable[[int], None]) -> Iterator[ProcessSession]:
    """Start a program and yield its pipes. Leaving the context always ends its whole process tree.

    Standard error is read continuously so that it never blocks the program. The caller reads standard output, so the
    request's `idle_limit_s`, `output_limit_bytes` and `stdin` are ignored. Wall-time, memory and process limits apply.
    Exceeding a limit kills the program, and `end` returns the limit.

    Args:
        request: the program and its limits.
        started: receives the pid, which is also the process group and session id. It is not called if the
            program could not be started. In that case, `poll` returns 127 and `end` returns the message.
    """
    request = replace(request, separate_errors=True, idle_limit_s=None, output_limit_bytes=None)
    marker = uuid.uuid4().hex
    try:
        shim = start(request, marker, stdin=subprocess.PIPE)
    except NotStartedError as refusal:
        with io.FileIO(os.devnull, "w") as stdin, io.FileIO(os.devnull) as stdout:
            yield ProcessSession(None, stdin, stdout, request, str(refusal))
        return
    child = Child(shim, marker, request, None)
    child.read_from(raw(shim.popen.stderr), child.errors)
    session = ProcessSession(child, raw(shim.popen.stdin), raw(shim.popen.stdout), request)
    try:
        started(shim.pid)
        session.start_watching()
        yield session
        session.end(Reason.EXITED)
    except BaseException:
        session.end(None)
        raise
    finally:
        session.stdin.close()
        session.stdout.close()
