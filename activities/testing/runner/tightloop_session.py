"""A pytest session that collects once. Each test run is a forked child process, so that nothing is left behind.

A report cannot be trusted completely, because the code under test runs in the same process. Therefore, errors are
recorded before the project's hooks can rewrite them, two canaries go through the same hooks, and a run that reports
twice is rejected.
"""

import json
import os
import select
import signal
import sys
import tempfile
import time
import warnings

import pytest
from tightloop_mutating import Changing
from tightloop_preparing import arguments, calm_hypothesis
from tightloop_recording import Plugin, Recorder, Watching, canaries_sing, describe, nothing

COLLECT_GRACE_S = 2.0
TAIL = 1500


class Session:
    """Controls a session from the parent process. `_Server` runs in the session itself."""

    def __init__(self, orders, forget, mutant):
        self._orders = orders
        self.found = {}
        order_end, self._orders_to = os.pipe()
        self._answers, answer_end = os.pipe()
        self._unread = b""
        self._pid = _fork()
        if self._pid == 0:
            try:
                os.close(self._orders_to)
                os.close(self._answers)
                forget()
                os.setsid()
                _Server(orders, mutant, order_end, answer_end).serve()
            finally:
                os._exit(0)
        os.close(order_end)
        os.close(answer_end)

    def collect(self, limit):
        """Collect the tests. If this fails, the result contains a problem and no tests."""
        answer = self._read(limit + COLLECT_GRACE_S)
        if answer is None:
            return {"items": [], "problems": [["", "collecting the tests took too long or crashed Python"]]}
        return answer

    def runs_at_import(self, mutant):
        """Return whether any of the mutant's lines run during collection."""
        return bool(set(mutant["lines"]) & set(self.found["imported"].get(mutant["path"], ())))

    def run(self, index, mutant, limit):
        """Run one test in a child process, optionally with a mutant."""
        try:
            os.write(self._orders_to, (json.dumps([index, mutant, limit]) + "\n").encode())
        except OSError:
            return nothing("crashed", 0.0)
        return self._read(limit + COLLECT_GRACE_S) or nothing("crashed", limit)

    def close(self):
        """Kill the session and its whole process group."""
        for end in (self._orders_to, self._answers):
            os.close(end)
        # Both: a child that was stopped before its setsid leads no group yet.
        for end in (os.killpg, os.kill):
            try:
                end(self._pid, signal.SIGKILL)
            except OSError:
                pass
        os.waitpid(self._pid, 0)

    def _read(self, limit):
        end = time.monotonic() + limit
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._answers, 1 << 16) if ready else b""
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


class _Server:
    """Collects tests and forks a child process for each run."""

    def __init__(self, orders, mutant, order_end, answer_end):
        self._orders, self._read_end, self._write_end = orders, order_end, answer_end
        self._watching = Watching(orders["root"], orders["changed"], orders["test_files"])
        self._changing = Changing(orders["root"])
        self._whole = mutant
        self._collected = False
        self._problems = []
        self._items = []

    def serve(self):
        # Bytecode of a mutant must not be loaded by the next session.
        sys.dont_write_bytecode = True
        if self._whole is not None:
            self._changing.overlay(self._whole)
        root = self._orders["root"]
        source = os.path.join(root, "src")
        # As with `python -m pytest`, and for projects with a src layout that are not installed.
        sys.path[:0] = [root, source] if os.path.isdir(source) else [root]
        with tempfile.TemporaryFile() as output:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            self._watching.start()
            try:
                pytest.main(arguments(self._orders["tests"]), plugins=[Plugin(self)])
            except BaseException as error:  # any exception of a plugin or a conftest
                self._problems.append(["", describe(error)])
            self._watching.stop()
            if not self._collected:
                sys.stdout.flush()
                output.seek(0)
                tail = output.read()[-TAIL:].decode("utf-8", "replace").strip()
                self._problems.append(["", tail or "pytest exited before it collected the tests"])
                self._report_collection()

    def problem(self, path, text):
        self._problems.append([path, text[-TAIL:]])

    def loop(self, items):
        """Report the collected tests, then run each requested test."""
        self._watching.stop()
        self._collected = True
        self._items = items
        calm_hypothesis(items)
        if self._whole is None:
            self._changing.note_functions(self._orders["changed"])
        self._report_collection()
        orders = os.fdopen(self._read_end, "rb")
        for line in orders:
            index, mutant, limit = json.loads(line)
            self._tell(self._run(items[index], mutant, limit))

    def _report_collection(self):
        items = [
            {"index": index, "id": name, "function": name.partition("[")[0], "path": name.partition("::")[0]}
            for index, name in enumerate(item.nodeid for item in self._items)
        ]
        changed = self._orders["changed"]
        self._tell(
            {
                "items": items[: self._orders["items"]],
                "more": max(len(items) - self._orders["items"], 0),
                "problems": self._problems,
                "loaded": self._watching.libraries(),
                "imported": self._watching.taken_lines(),
                "executable": {path: self._changing.executable(path) for path in changed},
            }
        )

    def _tell(self, answer):
        left = memoryview((json.dumps(answer) + "\n").encode())
        while left:
            left = left[os.write(self._write_end, left) :]

    def _run(self, item, mutant, limit):
        start = time.monotonic()
        read_end, write_end = os.pipe()
        pid = _fork()
        if pid == 0:
            try:
                os.setsid()
                os.close(read_end)
                os.close(self._read_end)
                os.close(self._write_end)
                self._run_here(item, mutant, write_end)
            finally:
                os._exit(0)
        os.close(write_end)
        text, in_time = _read_all(read_end, start + limit)
        os.close(read_end)
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass
        try:
            os.waitpid(pid, 0)
        except OSError:
            pass
        lines = text.splitlines()
        seconds = time.monotonic() - start
        if not lines or not text.endswith(b"\n"):
            return nothing("crashed" if in_time else "timeout", seconds)
        try:
            result = dict(nothing("crashed", seconds), **json.loads(lines[0].decode()))
        except (ValueError, TypeError, RecursionError):
            return dict(nothing("crashed", seconds), honest=False)
        result["seconds"] = seconds
        result["honest"] = bool(result["honest"]) and len(lines) == 1
        return result

    def _run_here(self, item, mutant, write_end):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (1, 2):
            os.dup2(nowhere, standard)
        if mutant is not None and self._whole is None and not self._changing.swap(mutant):
            os.write(write_end, b'{"outcome": "unswapped"}\n')
            return
        recorder = Recorder(self._watching)
        item.config.pluginmanager.register(recorder, "tightloop-recorder")
        # The session's output capturing uses files shared with the session, so a run must not touch them.
        self._watching.start(exceptions=True)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        self._watching.stop()
        result = recorder.result()
        result["reached"], result["raised"] = self._watching.taken_exceptions()
        result["lines"] = self._watching.taken_lines() if mutant is None else {}
        result["honest"] = canaries_sing(item.session)
        os.write(write_end, (json.dumps(result) + "\n").encode())


def _fork():
    with warnings.catch_warnings():
        # Python 3.12 and later warn if the project has started threads.
        warnings.simplefilter("ignore")
        return os.fork()


def _read_all(end, deadline):
    text = b""
    while True:
        ready, _, _ = select.select([end], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return text, False
        chunk = os.read(end, 1 << 16)
        if not chunk:
            return text, True
        text += chunk
        # A process that the test left behind keeps the pipe open.
        deadline = min(deadline, time.monotonic() + 1.0) if text.endswith(b"\n") else deadline
