"""Records one test run, including its outcome, the executed lines and the exceptions that reach the test."""

import os
import sys
import threading
from traceback import walk_tb
import pytest


CHANGED, TEST, OTHER, LIBRARY = "changed", "test", "other", ""
_NOT_OURS = ("_pytest", "pytest", "hypothesis", "unittest", "pluggy", "anyio")
_ORDINARY = (AssertionError, StopIteration, StopAsyncIteration, GeneratorExit)
_INSTALLED = ("site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox")
_HELPING = ("test", "tests", "testing", "conftest")


class Watching:
    """Traces the lines and exceptions in the files of the tree."""

    def __init__(self, root, changed, test_files):
        self._roots = tuple({os.path.join(os.path.abspath(folder), "") for folder in (root, os.path.realpath(root))})
        self._changed, self._tests = set(changed), set(test_files)
        self._known = {}
        # Listed explicitly, because their module is `builtins`.
        self._ordinary = (*_ORDINARY, pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception)
        self._lines = {}
        self._exceptions = set()
        self._sees_exceptions = False

    def start(self, exceptions=False):
        self._lines, self._exceptions, self._sees_exceptions = {}, set(), exceptions
        self._raised = set()
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def stop(self):
        sys.settrace(None)
        threading.settrace(None)

    def taken_lines(self):
        return {path: sorted(lines) for path, lines in self._lines.items()}

    def taken_exceptions(self):
        """Return the exceptions that reached the tests, and the lines at which they left the changed code."""
        return sorted(self._exceptions), sorted(self._raised)

    def libraries(self):
        """Return the names of loaded modules that are outside the tree."""
        names = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and name != "__main__" and self._role(file)[0] == LIBRARY:
                names.append(name)
        return names

    def judge(self, error):
        """Return whether a failure is an assertion, and the kind of code that raised it."""
        assertions = (AssertionError, pytest.fail.Exception)
        # A group of exceptions is judged by its first member.
        while isinstance(getattr(error, "exceptions", None), (tuple, list)) and error.exceptions:
            error = error.exceptions[0]
        # The innermost line of a test in the traceback.
        frames = [(self._role(frame.f_code.co_filename)[0], line) for frame, line in walk_tb(error.__traceback__)]
        lines = [line for role, line in frames if role == TEST]
        return {
            "assertion": isinstance(error, assertions),
            "place": self._place(error),
            "line": lines[-1] if lines else 0,
            "type": type(error).__name__,
            "text": describe(error),
        }

    def _place(self, error):
        """Return the role of the code that raised an error. Frames in libraries are skipped."""
        for frame, _ in reversed(list(walk_tb(error.__traceback__))):
            code = frame.f_code
            role, path = self._role(code.co_filename)
            helps = any(part in _HELPING for part in path.rpartition(".")[0].split("/"))
            # An assertion helper of the project counts as the test that calls it.
            if role == OTHER and ("assert" in code.co_name.lower() or helps):
                role = TEST
            if role != LIBRARY:
                return role
        return LIBRARY

    def _enter(self, frame, event, arg):
        filename = frame.f_code.co_filename
        role, path = self._known.get(filename) or self._role(filename)
        if role == CHANGED:
            lines = self._lines.setdefault(path, set())
            lines.add(frame.f_lineno)

            def follow(frame, event, arg):
                if event == "line":
                    lines.add(frame.f_lineno)
                return follow

            return follow
        if role == TEST and self._sees_exceptions:
            # Only the exceptions of tests matter, and line events would slow every test down.
            frame.f_trace_lines = False
            return self._see
        return None

    def _see(self, frame, event, arg):
        if event == "exception":
            kind = arg[0]
            module = str(getattr(kind, "__module__", ""))
            if not issubclass(kind, self._ordinary) and module.partition(".")[0] not in _NOT_OURS:
                self._exceptions.add(module + "." + kind.__name__)
                if any(self._role(inner.f_code.co_filename)[0] == CHANGED for inner, _ in walk_tb(arg[2])):
                    self._raised.add(frame.f_lineno)
        return self._see

    def _role(self, filename):
        cached = self._known.get(filename)
        if cached is not None:
            return cached
        role, path, full = LIBRARY, filename, os.path.abspath(filename)
        root = next((root for root in self._roots if full.startswith(root)), None)
        if root is not None:
            path = full[len(root) :].replace(os.sep, "/")
            is_installed = any(part in _INSTALLED for part in path.split("/"))
            role = CHANGED if path in self._changed else TEST if path in self._tests else OTHER
            role = LIBRARY if role == OTHER and is_installed else role
        self._known[filename] = role, path
        return role, path


def describe(error):
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return (type(error).__name__ + (": " + text[0] if text else ""))[:300]


def nothing(outcome, seconds):
    return {
        "outcome": outcome, "assertion": False, "place": "", "type": "", "text": "", "line": 0, "reached": [],
        "raised": [], "lines": {},
        "seconds": seconds, "honest": True,
    }  # fmt: skip


class Plugin:
    """A pytest plugin that replaces pytest's loop over the tests."""

    def __init__(self, server):
        self._server = server

    def pytest_collectreport(self, report):
        if report.failed:
            longest = getattr(report, "longreprtext", "") or str(report.longrepr)
            self._server.problem(report.nodeid, longest)

    # Before pytest's own loop, which refuses to run if collecting a file failed.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        self._server.loop(list(session.items))
        return True


class Recorder:
    """Records a single run of a test."""

    def __init__(self, watching):
        self._watching = watching
        self._raised = None
        self._reports = []

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        """Record a test's error before the project's hooks see it."""
        outcome = yield
        error = outcome.excinfo
        if self._raised is not None:
            return
        self._raised = error[1] if error is not None else None
        # unittest's errors are not raised; pytest stores them here.
        stored_errors = getattr(item, "_excinfo", None)
        if error is None and stored_errors:
            self._raised = getattr(stored_errors[0], "value", None)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        """Record a `subTest` error."""
        if call.when == "call" and call.excinfo is not None and self._raised is None:
            self._raised = call.excinfo.value
        yield

    def pytest_runtest_logreport(self, report):
        self._reports.append(report)

    def result(self):
        result = nothing("passed", 0.0)
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


def canaries_sing(session):
    """Return whether the two canary tests work. One must pass and the other must fail."""
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
    except Exception:  # a hook of the project may not accept other item types
        return True
    return sang == ["passed", "failed"]
