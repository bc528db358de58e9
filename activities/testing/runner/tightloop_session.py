"""A session of pytest that is collected once; each run of a test is a child of it, and leaves nothing behind.

What a run tells is no proof against the code under test, which runs in the same process. Errors are seen before hooks
of the project can rewrite them, two canaries go through the same hooks, and a run that tells twice is not believed.
"""

import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import tempfile
import time

import pytest
from tightloop_mutating import Changing
from tightloop_watching import Watching, describe

COLLECT_GRACE_S = 2.0
TAIL = 1500
_LETTERS = "hypothesis.internal.charmap"
_OF_XDIST, _OF_COVERAGE = ["-n", "0"], ["--no-cov"]


class Session:
    """The end of a session that decides; the other one serves."""

    def __init__(self, orders, forget, mutant):
        self._orders = orders
        self.found = {}
        order_end, self._orders_to = os.pipe()
        self._answers, answer_end = os.pipe()
        self._unread = b""
        self._pid = os.fork()
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
        """Return what was collected; without tests where it came to nothing."""
        answer = self._read(limit + COLLECT_GRACE_S)
        if answer is None:
            return {"items": [], "problems": [["", "collecting the tests took too long, or ended Python"]]}
        return answer

    def swaps(self, mutant):
        """Return whether the mutant can be put into functions that are imported already."""
        return not self.runs_at_import(mutant)

    def runs_at_import(self, mutant):
        """Return whether lines of the mutant are executed while tests are collected."""
        return bool(set(mutant["lines"]) & set(self.found["imported"].get(mutant["path"], ())))

    def run(self, index, mutant, limit):
        """Run one test."""
        try:
            os.write(self._orders_to, (json.dumps([index, mutant, limit]) + "\n").encode())
        except OSError:
            return _nothing("crashed", 0.0)
        return self._read(limit + COLLECT_GRACE_S) or _nothing("crashed", limit)

    def close(self):
        """End it with all that it started."""
        for end in (self._orders_to, self._answers):
            os.close(end)
        try:
            os.killpg(self._pid, signal.SIGKILL)
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


def plugins():
    """Return the modules of the plugins that pytest loads by itself."""
    from importlib.metadata import entry_points

    found = entry_points()
    found = found.select(group="pytest11") if hasattr(found, "select") else found.get("pytest11", [])
    return [point.value.partition(":")[0] for point in found]


def warm(names):
    """Load libraries before further sessions: each of them would take as long as the first one."""
    for name in names:
        if name not in sys.modules or name == _LETTERS:
            try:
                module = importlib.import_module(name)
                if name == _LETTERS:
                    # A table of all letters, which each run would make again: 1 s, and 14 s where lines are watched.
                    module.charmap()
            except BaseException:  # it was loaded in another way before
                pass


def _nothing(outcome, seconds):
    return {
        "outcome": outcome, "assertion": False, "place": "", "type": "", "text": "", "line": 0, "reached": [],
        "raised": [], "lines": {},
        "seconds": seconds, "honest": True,
    }  # fmt: skip


class _Server:
    """Collects, and forks a child for each run."""

    def __init__(self, orders, mutant, order_end, answer_end):
        self._orders, self._read_end, self._write_end = orders, order_end, answer_end
        self._watching = Watching(orders["root"], orders["changed"], orders["test_files"])
        self._changing = Changing(orders["root"])
        self._whole = mutant
        self._collected = False
        self._problems = []
        self._items = []

    def serve(self):
        sys.dont_write_bytecode = True
        if self._whole is not None:
            self._changing.overlay(self._whole)
        root = self._orders["root"]
        source = os.path.join(root, "src")
        sys.path[:0] = [root, source] if os.path.isdir(source) else [root]
        with tempfile.TemporaryFile() as output:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            self._watching.start()
            try:
                pytest.main(_arguments(self._orders["tests"]), plugins=[_Plugin(self)])
            except BaseException as error:  # whatever a plugin or a conftest raises
                self._problems.append(["", describe(error)])
            self._watching.stop()
            if not self._collected:
                sys.stdout.flush()
                output.seek(0)
                tail = output.read()[-TAIL:].decode("utf-8", "replace").strip()
                self._problems.append(["", tail or "pytest ended before it had collected the tests"])
                self._tell_collected()

    def problem(self, path, text):
        self._problems.append([path, text[-TAIL:]])

    def loop(self, items):
        """Tell what was collected, and run what is asked for."""
        self._watching.stop()
        self._collected = True
        self._items = items
        _calm_hypothesis(items)
        if self._whole is None:
            self._changing.note_functions(self._orders["changed"])
        self._tell_collected()
        orders = os.fdopen(self._read_end, "rb")
        for line in orders:
            index, mutant, limit = json.loads(line)
            self._tell(self._run(items[index], mutant, limit))

    def _tell_collected(self):
        items = [
            {"index": index, "id": item.nodeid, "function": item.nodeid.partition("[")[0], "path": _path(item)}
            for index, item in enumerate(self._items)
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
        begun = time.monotonic()
        read_end, write_end = os.pipe()
        pid = os.fork()
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
        text, in_time = _read_all(read_end, begun + limit)
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
        seconds = time.monotonic() - begun
        if not lines or not text.endswith(b"\n"):
            return _nothing("crashed" if in_time else "timeout", seconds)
        try:
            result = dict(_nothing("crashed", seconds), **json.loads(lines[0].decode()))
        except (ValueError, TypeError):
            return dict(_nothing("crashed", seconds), honest=False)
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
        recorder = _Recorder(self._watching)
        item.config.pluginmanager.register(recorder, "tightloop-recorder")
        # The capturing of the session holds files that the session reads: a run leaves it alone.
        self._watching.start(exceptions=True)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        self._watching.stop()
        result = recorder.result()
        result["reached"], result["raised"] = self._watching.taken_exceptions()
        result["lines"] = self._watching.taken_lines() if mutant is None else {}
        result["honest"] = _canaries_sing(item.session)
        os.write(write_end, (json.dumps(result) + "\n").encode())


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


def _path(item):
    return item.nodeid.partition("::")[0]


def _arguments(tests):
    has = importlib.util.find_spec
    return [
        "-q", "--continue-on-collection-errors", "--maxfail=0", "--tb=native",
        # Of modules that are loaded before a session; see `warm`.
        "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:randomly",
        "-o", "cache_dir=" + os.path.join(tempfile.gettempdir(), "tightloop-gate"),
        *(_OF_XDIST if has("xdist") else []),
        *(_OF_COVERAGE if has("pytest_cov") else []),
        *tests,
    ]  # fmt: skip


class _Plugin:
    """Takes the place of the loop over the tests."""

    def __init__(self, server):
        self._server = server

    def pytest_collectreport(self, report):
        if report.failed:
            longest = getattr(report, "longreprtext", "") or str(report.longrepr)
            self._server.problem(report.nodeid, longest)

    # Before the loop of pytest, which refuses to run where a file could not be collected.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        self._server.loop(list(session.items))
        return True


class _Recorder:
    """Sees the one run of a test."""

    def __init__(self, watching):
        self._watching = watching
        self._raised = None
        self._reports = []

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        """See the error of a test before any hook of the project does."""
        outcome = yield
        error = outcome.excinfo
        if self._raised is not None:
            return
        self._raised = error[1] if error is not None else None
        # unittest's errors are not raised; pytest keeps them here.
        kept = getattr(item, "_excinfo", None)
        if error is None and kept:
            self._raised = getattr(kept[0], "value", None)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        """See the error of a part of a test: of `subTest`."""
        if call.when == "call" and call.excinfo is not None and self._raised is None:
            self._raised = call.excinfo.value
        yield

    def pytest_runtest_logreport(self, report):
        self._reports.append(report)

    def result(self):
        result = _nothing("passed", 0.0)
        for report in self._reports:
            if hasattr(report, "wasxfail"):
                return dict(result, outcome="xfail", text=str(report.wasxfail)[:200])
            if report.outcome == "skipped":
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                return dict(result, outcome="skipped", text=str(reason)[:200])
            if report.outcome == "failed" and result["outcome"] == "passed":
                result.update(
                    outcome="failed", type=report.when, text=str(report.longreprtext).strip().rpartition("\n")[2][:300]
                )
                if report.when == "call" and self._raised is not None:
                    result.update(self._watching.judge(self._raised))
        if not self._reports:
            result["outcome"] = "crashed"
        return result


def _canaries_sing(session):
    """Return whether a test that must fail does, and one that must pass."""
    from _pytest.runner import call_and_report

    class Canary(pytest.Item):
        def runtest(self):
            assert self.name == "passes"

        def reportinfo(self):
            return "canary", 0, self.name

        def repr_failure(self, excinfo):
            return "canary"

    sang = []
    try:
        for name in ("passes", "fails"):
            canary = Canary.from_parent(session, name=name)
            # Not logged, so that no plugin counts it.
            call_and_report(canary, "setup", log=False)
            sang.append(call_and_report(canary, "call", log=False).outcome)
            call_and_report(canary, "teardown", log=False, nextitem=None)
    except Exception:  # a hook of the project that cannot take an item of another kind
        return True
    return sang == ["passed", "failed"]


def _calm_hypothesis(items):
    """Have properties draw the same examples in every run, keep none, and take their time."""
    hypothesis = sys.modules.get("hypothesis")
    if hypothesis is None:
        return

    def calm(old):
        old = old or hypothesis.settings.default
        return hypothesis.settings(
            old, derandomize=True, database=None, deadline=None, max_examples=min(old.max_examples, 100),
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate], report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck), print_blob=False,
        )  # fmt: skip

    name = "_hypothesis_internal_use_settings"
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if getattr(test, "is_hypothesis_test", False):
            setattr(test, name, calm(getattr(test, name, None)))
        machine = getattr(item, "cls", None)
        if isinstance(getattr(machine, "settings", None), hypothesis.settings):
            machine.settings = calm(machine.settings)
