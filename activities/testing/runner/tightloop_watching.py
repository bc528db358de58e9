"""Watches which lines of changed files are executed, and which exceptions reach the code of the tests."""

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
    """A trace function for the files of the tree."""

    def __init__(self, root, changed, test_files):
        self._roots = tuple({os.path.join(os.path.abspath(place), "") for place in (root, os.path.realpath(root))})
        self._changed, self._tests = set(changed), set(test_files)
        self._known = {}
        # Their module says `builtins`.
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
        """Return what reached the tests, and the lines where it came out of changed code."""
        return sorted(self._exceptions), sorted(self._raised)

    def libraries(self):
        """Return the names of the modules that are loaded and do not belong to the tree."""
        found = []
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and name != "__main__" and self._role(file)[0] == LIBRARY:
                found.append(name)
        return found

    def judge(self, error):
        """Return what a failure says: whether it is an assertion, and whose."""
        assertions = (AssertionError, pytest.fail.Exception)
        while isinstance(getattr(error, "exceptions", None), (tuple, list)) and error.exceptions:
            error = error.exceptions[0]
        # Of the test at which it came out.
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
        """Return who failed: libraries between a file of the tree and the error do not count."""
        for frame, _ in reversed(list(walk_tb(error.__traceback__))):
            code = frame.f_code
            role, path = self._role(code.co_filename)
            helps = any(part in _HELPING for part in path.rpartition(".")[0].split("/"))
            # A helper of the project that asserts speaks for the test that calls it.
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
        known = self._known.get(filename)
        if known is not None:
            return known
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
    """Return the kind of an error and the first line of what it says."""
    text = str(error).strip().splitlines()
    return (type(error).__name__ + (": " + text[0] if text else ""))[:300]
