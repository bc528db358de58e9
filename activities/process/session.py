"""A program that is talked to over its standard input and output, bounded and ended as by `run_process`."""

import io
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from activities.process.child import Child
from activities.process.request import ProcessRequest, ProcessResult, Reason
from activities.process.start import NotStartedError, raw, start


class ProcessSession:
    """The pipes of a running program, and the way to end it.

    `stdin` and `stdout` belong to the session: closing the files early is fine (asyncio's pipe transports do),
    leaving the context closes them in any case. Who closes the bare descriptors has to `os.dup` them first.
    Both are /dev/null where the program could not be started.
    """

    def __init__(self, child: Child | None, stdin: io.FileIO, stdout: io.FileIO, request: ProcessRequest) -> None:
        """Take a program that was started; None where it could not be."""
        self.stdin = stdin
        self.stdout = stdout
        self._child = child
        self._request = request
        self._asked = threading.Event()
        self._ending = threading.Lock()
        self._limit: Reason | None = None
        self._result: ProcessResult | None = None
        # A daemon: a program that cannot be ended must not keep the worker from exiting.
        self._watcher = threading.Thread(target=self._watch, name="process-session", daemon=True)

    def poll(self) -> int | None:
        """Return the exit code of a program that has ended (negative: the signal), 127 where none was started."""
        return 127 if self._child is None else self._child.exit_code()

    def end(self, reason: Reason) -> ProcessResult:
        """End the program and all that it started, and return what is left; later calls return the same.

        With `EXITED` its input is closed and it has the grace to exit by itself. A limit that it ran into
        before, or why it was not started, wins over `reason`. `exit_code` is that of a program that exited before
        it was sent a signal, whatever the reason. Blocks for at most two graces and a few seconds.
        """
        return self._finish(reason)

    def start_watching(self) -> None:
        """Read its standard error and watch its limits from now on."""
        self._watcher.start()

    def fail(self, message: str) -> None:
        """Note why the program could not be started."""
        self._result = ProcessResult(reason=Reason.NOT_STARTED, message=message)

    def kill(self) -> None:
        """End everything at once: the caller failed, nobody waits for last words."""
        self._finish(None)

    def _finish(self, reason: Reason | None) -> ProcessResult:
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
            session = ProcessSession(None, stdin, stdout, request)
            session.fail(str(refusal))
            yield session
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
        session.kill()
        raise
    finally:
        session.stdin.close()
        session.stdout.close()
