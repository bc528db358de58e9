"""A running process, and the processes it belongs to."""

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
"""One look at a tree through psutil takes 2.3 ms of processor time."""
# A process in the background may hold the pipe for long after the program: its output is not waited for.
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
    # SIGINT first: after a SIGTERM to its group Claude Code 2.1.197 lost its tool, asked the model once more and
    # exited with 0.
    Reason.CANCELLED: (SIGINT, SIGTERM),
}
"""Signals that are tried before SIGKILL; none where the program is out of bounds, or where the caller failed (None)."""


class Child:
    """A running program with its output and its descendants. Used by one thread at a time."""

    def __init__(
        self, shim: Shim, mark: str, request: ProcessRequest, on_output: Callable[[bytes], None] | None
    ) -> None:
        """Take a program that `start` has started with `mark`; its output is read after `read_from`."""
        self.output = BoundedOutput(request.output_bytes)
        self.errors = BoundedOutput(ERRORS_BYTES, head_bytes=0)
        self._survivors: set[int] = set()
        self._message = ""
        self._exit_code: int | None = None
        self._footprint = Footprint(0, 0, 0.0)
        self._shim = shim
        self._request = request
        self._on_output = on_output
        self._tree = ProcessTree(shim.pid, mark, adopter=shim.popen.pid if shim.adopts else None)
        self._pipes: dict[io.FileIO, BoundedOutput] = {}
        self._selector = selectors.PollSelector()
        self._selector.register(shim, selectors.EVENT_READ)
        self._growth = GrowthWatch(request.growth) if request.growth else None
        self._grown = ""
        self._read_bytes = 0
        self._begun = self._last_output = time.monotonic()

    def read_from(self, pipe: io.FileIO, kept: BoundedOutput) -> None:
        """Read a pipe as long as the program lives, and close it then."""
        self._pipes[pipe] = kept
        self._selector.register(pipe, selectors.EVENT_READ)

    def exit_code(self) -> int | None:
        """Return the exit code of a program that has ended, whoever ended it."""
        if self._shim.over and self._shim.exit_code is None:
            # Its parent is gone, and with that the kernel killed it (PR_SET_PDEATHSIG).
            return -int(SIGKILL)
        return self._shim.exit_code

    def watch(self, cancelled: Callable[[], bool]) -> Reason:
        """Read output until the program exits or has to be ended."""
        next_look = self._begun
        limited = self._request.memory_limit_bytes is not None or self._request.process_limit is not None
        while not self._exited():
            self._read(_TICK_S)
            now = time.monotonic()
            if cancelled():
                return Reason.CANCELLED
            if self._exited():
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
                    self._tree.observe()
                next_look = now + (_MEASURE_S if limited else _OBSERVE_S)
            if reason := self._beyond(now):
                return reason
        self._look_at_disk()
        return self._beyond_output() or (Reason.DISK_LIMIT if self._grown else Reason.EXITED)

    def end(self, reason: Reason | None) -> None:
        """End what is left of the tree and read the rest of its output."""
        self._exit_code = self.exit_code()
        gone = False
        try:
            if reason is Reason.EXITED:
                self._settle(self._output_ended, _LAST_OUTPUT_S)
                self._settle(self._gone, _LAST_PROCESS_S)
            for number in _SIGNALS.get(reason, ()):
                if gone := self._gone():
                    break
                self._signal(number)
                if gone := self._settle(self._gone, self._request.grace_s):
                    break
        finally:
            self._on_output = None
            if not gone:
                self._kill()
            self._settle(self._output_ended, _LAST_OUTPUT_S)
            self._shim.finish()
            self._selector.close()
            for pipe in self._pipes:
                pipe.close()

    def await_exit(self, seconds: float) -> None:
        self._settle(self._exited, seconds)

    def result(self, reason: Reason) -> ProcessResult:
        """Return what is left of a program that was ended."""
        # Both, because a sandbox with a pid namespace reaps inside it: getrusage(2) outside saw 2 ms of such a run.
        done, seen = self._shim.done, self._footprint
        return ProcessResult(
            reason=reason,
            exit_code=self._exit_code,
            output=self.output.value(),
            errors=self.errors.value(),
            cut=self.output.cut or self.errors.cut,
            duration_s=time.monotonic() - self._begun,
            survivors_ended=len(self._survivors),
            cpu_s=max(done.cpu_s, seen.cpu_s) if done else None,
            peak_memory_bytes=max(done.largest_bytes, seen.resident_bytes) if done else None,
            message=self._message or self._why(reason),
        )

    def _look_at_disk(self) -> None:
        if self._growth is not None:
            self._grown = self._growth.exceeded(lambda: [process.pid for process in self._tree.members()])

    def _beyond(self, now: float) -> Reason | None:
        request, seen = self._request, self._footprint
        if request.memory_limit_bytes is not None and seen.resident_bytes > request.memory_limit_bytes:
            return Reason.MEMORY_LIMIT
        if request.process_limit is not None and seen.processes > request.process_limit:
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

    def _why(self, reason: Reason) -> str:
        request, seen = self._request, self._footprint
        if self._shim.done is None:
            return "its supervisor was killed or stopped: what it had started was ended as far as it was found"
        match reason:
            case Reason.MEMORY_LIMIT:
                allowed, used = (request.memory_limit_bytes or 0) / _MEGABYTE, seen.resident_bytes / _MEGABYTE
                return f"ended: it used {used:.0f} MB of memory, {allowed:.0f} MB are allowed. Allow more or do less"
            case Reason.PROCESS_LIMIT:
                allowed = request.process_limit or 0
                return f"ended: it ran {seen.processes} processes at once, {allowed} are allowed. Allow more or do less"
            case Reason.OUTPUT_LIMIT:
                allowed = request.output_limit_bytes or 0
                return f"ended: it wrote more than {allowed} bytes. Write less, or to a file"
            case Reason.DISK_LIMIT:
                return self._grown
            case _:
                return ""

    def _kill(self) -> None:
        late = self._exited()
        self._tree.observe()
        self._shim.sweep()
        self._settle(lambda: self._shim.done is not None or self._shim.over, SWEEP_S + _SLACK_S)
        done = self._shim.done
        if done is not None and late:
            self._survivors |= done.ended - {self._shim.pid}
        if self._shim.proves_the_end():
            return
        # The shim hangs or is dead. Once it is gone, its descendants have another parent: they are looked for first.
        if done is None:
            self._tree.observe()
            self._shim.popen.kill()
        deadline = time.monotonic() + _KILL_S
        while members := self._signal(SIGKILL):
            if time.monotonic() > deadline:
                self._message = f"processes {sorted(members)} could not be ended: end them by hand"
                return
            self._settle(self._gone, _TICK_S)

    def _signal(self, number: Signals) -> set[int]:
        members = {process.pid for process in self._tree.signal(number)}
        if self._exited():
            self._survivors |= members - {self._shim.pid}
        return members

    def _exited(self) -> bool:
        return self.exit_code() is not None

    def _gone(self) -> bool:
        if self._shim.adopts and not self._shim.over:
            return self._shim.proves_the_end()
        return self._shim.proves_the_end() or (self._exited() and not self._tree.members())

    def _output_ended(self) -> bool:
        return not any(pipe in self._selector.get_map() for pipe in self._pipes)

    def _settle(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Read output until `reached` or until the time is over; return whether it was reached."""
        deadline = time.monotonic() + seconds
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._read(min(left, _TICK_S / 2))
        return True

    def _read(self, seconds: float) -> None:
        """Take the output that comes within `seconds`; return earlier when something turned."""
        until = time.monotonic() + seconds
        turned = False
        while not turned and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if isinstance(key.fileobj, Shim):
                    self._shim.take()
                    if self._shim.over:
                        self._selector.unregister(self._shim)
                    turned = True
                elif isinstance(key.fileobj, io.FileIO):
                    turned = self._take(key.fileobj) or turned

    def _take(self, pipe: io.FileIO) -> bool:
        """Take a chunk and return whether it was the last one, or one too many."""
        chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
        if not chunk:
            self._selector.unregister(pipe)
            return True
        self._last_output = time.monotonic()
        self._read_bytes += len(chunk)
        kept = self._pipes[pipe]
        kept.add(chunk)
        if self._on_output is not None and kept is self.output:
            self._on_output(chunk)
        return self._beyond_output() is not None


class ProcessSession:
    """The pipes of a running program, and the way to end it.

    `stdin` and `stdout` belong to the session: closing the files early is fine (asyncio's pipe transports do),
    leaving the context closes them in any case. Who closes the bare descriptors has to `os.dup` them first.
    Both are /dev/null where the program could not be started.
    """

    def __init__(
        self, child: Child | None, stdin: io.FileIO, stdout: io.FileIO, request: ProcessRequest, failure: str = ""
    ) -> None:
        """Take a program that was started; None where it could not be, with the reason."""
        self.stdin = stdin
        self.stdout = stdout
        self._child = child
        self._request = request
        self._asked = threading.Event()
        self._ending = threading.Lock()
        self._limit: Reason | None = None
        self._result = None if child else ProcessResult(reason=Reason.NOT_STARTED, message=failure)
        # A daemon: a program that cannot be ended must not keep the worker from exiting.
        self._watcher = threading.Thread(target=self._watch, name="process-session", daemon=True)

    def poll(self) -> int | None:
        """Return the exit code of a program that has ended (negative: the signal), 127 where none was started."""
        return 127 if self._child is None else self._child.exit_code()

    def start_watching(self) -> None:
        """Read its standard error and watch its limits from now on."""
        self._watcher.start()

    def end(self, reason: Reason | None) -> ProcessResult:
        """End the program and all that it started, and return what is left; later calls return the same.

        With `EXITED` its input is closed and it has the grace to exit by itself; with None everything ends at once, as
        the caller failed. A limit that it ran into before, or why it was not started, wins over `reason`. `exit_code`
        is that of a program that exited before it was sent a signal, whatever the reason. Blocks for at most two graces
        and a few seconds.
        """
        self._asked.set()
        with self._ending:
            if self._result is None:
                assert self._child is not None
                # The watcher reads the same pipes and may have begun to end the program: only one thread at a time.
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
        """Read errors until the program ends, meets a limit, or `end` takes over."""
        assert self._child is not None
        reason = self._child.watch(self._asked.is_set)
        if reason not in (Reason.EXITED, Reason.CANCELLED):
            self._limit = reason
            self._child.end(reason)


@contextmanager
def open_process(request: ProcessRequest, *, started: Callable[[int], None]) -> Iterator[ProcessSession]:
    """Start a program and yield its pipes; nothing of it is left behind on leaving, whatever happens.

    Standard error is read all the time, so that it never blocks the program. Standard output is the caller's
    to read, so `idle_limit_s`, `output_limit_bytes` and `stdin` of the request do not apply here; the wall
    limit, the memory limit and the process limit do: beyond them it is killed, and `end` returns which.

    Args:
        request: the program and its bounds.
        started: told the pid, which is also the id of the process group and of the session. Not called where the
            program could not be started: then `poll` gives 127, and `end` the message.
    """
    request = replace(request, separate_errors=True, idle_limit_s=None, output_limit_bytes=None)
    mark = uuid.uuid4().hex
    try:
        shim = start(request, mark, stdin=subprocess.PIPE)
    except NotStartedError as refusal:
        with io.FileIO(os.devnull, "w") as stdin, io.FileIO(os.devnull) as stdout:
            yield ProcessSession(None, stdin, stdout, request, str(refusal))
        return
    child = Child(shim, mark, request, None)
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
