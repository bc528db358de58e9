"""Reports the actions of Python test runners as JSON lines in a file outside the tree.

Consists of a pytest plugin and a wrapper around unittest's runner. Its reports cannot be fully trusted, because the
code under test runs in the same process, but they make cheating harder: every line has a nonce, errors are recorded
before hooks of the project can rewrite them, and a canary (a test that must fail) passes through the same hooks. It
works with Python 3.8 and later, and has few imports, because every Python that a check starts loads it.

PYTEST_DONT_REWRITE: it is imported before pytest, which would warn about that.
"""

import atexit
import json
import os
import sys
import time

import tightloop_loads

PLACE = "TIGHTLOOP_OBSERVE"
"""Environment variable with the check's file and nonce."""
CANARY = "tightloop-canary"
WITHIN = "TIGHTLOOP_WITHIN"
"""Environment variable for processes started by a test session. Sessions within tests do not belong to the check."""

TWICE = "TIGHTLOOP_TWICE"
"""Environment variable that asks for a second run of all tests that passed."""


class _Teller:
    """Appends events to the check's file."""

    def __init__(self, target):
        self._path, _, self._nonce = target.rpartition(":")
        self._pid = os.getpid()
        self._sessions = 0

    def tell(self, event, **fields):
        self.tell_all(((event, fields),))

    def tell_all(self, events):
        # A forked process is not the one that was observed.
        if os.getpid() != self._pid:
            return
        head = {"n": self._nonce, "pid": self._pid}
        line = "".join(json.dumps({**head, "e": event, **fields}) + "\n" for event, fields in events)
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            # A single write with O_APPEND, so that lines of several processes never mix.
            os.write(file, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)

    def session(self, kind):
        self._sessions += 1
        name = "%d.%d" % (self._pid, self._sessions)
        self.tell("session", s=name, k=kind)
        return name


_teller = None
_loads = None


def begin():
    """Report that this interpreter has started, and install an import hook for test runners."""
    global _teller, _loads
    target = os.environ.get(PLACE, "")
    if not target or _teller is not None:
        return
    _teller = _Teller(target)
    argv = getattr(sys, "orig_argv", sys.argv)
    _teller.tell("start", ppid=os.getppid(), cwd=os.getcwd(), argv=[str(argument)[:200] for argument in argv[:6]])
    # An interpreter that is killed, or leaves by os._exit, is known by the missing end.
    atexit.register(_teller.tell, "end")
    _loads = tightloop_loads.Loads(_teller)
    _watch_modules(_teller, _loads)
    _loads.observe()
    if not os.environ.get(WITHIN) or os.environ.get("PYTEST_XDIST_WORKER"):
        sys.meta_path.insert(0, _WhenUnittestIsImported())
        sys.meta_path.insert(0, _WhenPytestIsImported())
    if os.environ.get("TIGHTLOOP_HOLLOW"):
        import tightloop_hollow

        tightloop_hollow.begin()


# -- ends that are not the program's own ---------------------------------------------------------------


def _watch_modules(teller, loads):
    # A module that exits with 0 while tests import it ends the run as if all of them had passed.
    import _thread

    leave, plain, main = sys.exit, SystemExit, _thread.get_ident()

    def exit(status=None, /):  # noqa: A001 - it takes the place of `sys.exit`
        # The name `SystemExit` refers to an observed class, but the original `sys.exit` raises the plain one. Only the
        # plain one ends a thread silently.
        kind = SystemExit if _thread.get_ident() == main else plain
        raise kind(status) if status is not None else kind

    def exit_thread():
        exit()

    exit.__doc__ = leave.__doc__
    sys.exit = exit
    # In the main thread, these functions end the program. Like the original `sys.exit`, they are written in C.
    _thread.exit = _thread.exit_thread = exit_thread
    import importlib.machinery

    load = importlib.machinery.SourceFileLoader.exec_module

    def exec_module(self, module):
        try:
            load(self, module)
        except SystemExit as end:
            if not end.code and module.__name__ != "__main__":
                teller.tell("exit", file=os.path.abspath(self.path))
            raise
        loads.remember(module)

    importlib.machinery.SourceFileLoader.exec_module = exec_module


# -- unittest --------------------------------------------------------------------------------------------


class _WhenPytestIsImported:
    """Makes pytest load the plugin when pytest is imported.

    Other programs may not find the plugin, because a check can set PYTHONPATH.
    """

    def find_spec(self, name, path=None, target=None):
        if name == "_pytest.config":
            sys.meta_path.remove(self)
            os.environ["PYTEST_PLUGINS"] = ",".join(filter(None, (os.environ.get("PYTEST_PLUGINS"), __name__)))
        return


class _WhenUnittestIsImported:
    """Wraps the runner of unittest when unittest is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "unittest.runner":
            return None
        import importlib.machinery

        # First, or the imports of the lookup below would come back here.
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            _wrap_runner(module)

        spec.loader.exec_module = exec_module
        return spec


def _wrap_runner(module):
    run_all = module.TextTestRunner.run
    teller = _teller

    def run(self, test):
        # Nested tests, and tests collected by pytest, are reported by the outer session.
        if os.environ.get(WITHIN) or "_pytest" in sys.modules:
            return run_all(self, test)
        session = teller.session("unittest")
        _loads.started_tests = True
        os.environ[WITHIN] = "1"
        make = self._makeResult
        self._makeResult = lambda: _tell_results(make(), teller, session)
        try:
            result = run_all(self, test)
        finally:
            self._makeResult = make
            os.environ.pop(WITHIN, None)
        teller.tell("canary", s=session, failed=_unittest_canary_fails())
        teller.tell("finish", s=session)
        return result

    module.TextTestRunner.run = run


def _tell_results(result, teller, session):
    def wrap(name, outcome, raised):
        add = getattr(result, name)

        def report_and_add(test, *rest, **named):
            if raised:
                teller.tell("raw", s=session, id=test.id())
            teller.tell("test", s=session, id=test.id(), r=outcome)
            return add(test, *rest, **named)

        setattr(result, name, report_and_add)

    wrap("addSuccess", "passed", False)
    wrap("addFailure", "failed", True)
    wrap("addError", "failed", True)
    wrap("addSkip", "skipped", False)
    wrap("addExpectedFailure", "passed", False)
    wrap("addUnexpectedSuccess", "failed", False)
    sub = result.addSubTest

    def add_sub_test(test, subtest, error):
        if error is not None:
            teller.tell("test", s=session, id=test.id(), r="failed")
        return sub(test, subtest, error)

    result.addSubTest = add_sub_test
    return result


def _unittest_canary_fails():
    import unittest

    class Canary(unittest.TestCase):
        def runTest(self):
            self.assertEqual("this test", "must fail")

    result = unittest.TestResult()
    Canary().run(result)
    return bool(result.failures)


# -- pytest ----------------------------------------------------------------------------------------------


def pytest_configure(config):
    """Start a session. Sessions that start late or run inside a test are not reported."""
    import pytest

    if _teller is None:
        return
    is_part = hasattr(config, "workerinput")
    if os.environ.get(WITHIN) and not is_part:
        return
    plugins = os.environ.get("PYTEST_PLUGINS", "").split(",")
    left = ",".join(name for name in plugins if name and name != __name__)
    if left:
        os.environ["PYTEST_PLUGINS"] = left
    else:
        os.environ.pop("PYTEST_PLUGINS", None)
    os.environ[WITHIN] = "1"
    config.pluginmanager.register(_make_session(pytest, _teller, is_part), "tightloop-session")


def _make_session(pytest, teller, is_part):
    hook = getattr(pytest, "hookimpl")

    class Session:
        """Reports one session. pytest-xdist workers leave this to their controller."""

        def __init__(self):
            self.name = teller.session("pytest") if not is_part else ""
            self.passed = set()
            self.is_second_run = False

        @hook(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item):
            """Record a test's error before the project's hooks see it.

            Also record whether other code has replaced the test.
            """
            _loads.started_tests = True
            code = getattr(getattr(item, "obj", None), "__code__", None)
            path = _loads.path_in_tree(code.co_filename) if code is not None else ""
            # A decorator of pytest or of a library may wrap a test, one of the tree may replace it.
            if path and path != _loads.path_in_tree(str(getattr(item, "fspath", ""))):
                teller.tell("replaced", file=path, id=item.nodeid)
            outcome = yield
            error = outcome.excinfo
            skips = (pytest.skip.Exception, pytest.xfail.Exception)
            if error is None or issubclass(error[0], skips) or is_part or self.is_second_run:
                return
            if item.name != CANARY and item.get_closest_marker("xfail") is None:
                teller.tell("raw", s=self.name, id=item.nodeid)

        def pytest_runtest_logreport(self, report):
            """Report a test result."""
            if is_part or self.is_second_run:
                return
            result = report.outcome
            if report.when == "call" and report.passed:
                self.passed.add(report.nodeid)
            if hasattr(report, "wasxfail") and result == "skipped":
                result = "passed"
            if report.when == "call" or result != "passed":
                teller.tell("test", s=self.name, id=report.nodeid, r=result)

        @hook(hookwrapper=True, tryfirst=True)
        def pytest_runtestloop(self, session):
            """Run the passing tests a second time if the check asks for it. This doubles the run time."""
            begun = time.monotonic()
            yield
            if os.environ.get(TWICE) and not is_part:
                # Other kinds of items may not be made for a second run.
                functions = [item for item in getattr(session, "items", ()) if isinstance(item, pytest.Function)]
                items = [item for item in functions if item.nodeid in self.passed]
                self.is_second_run = True
                try:
                    _run_all(items, time.monotonic() * 2 - begun + 1)
                finally:
                    self.is_second_run = False

        @hook(hookwrapper=True)
        def pytest_runtest_makereport(self, item, call):
            """Report a test that fails an assertion in the second run."""
            outcome = yield
            if not self.is_second_run or call.when != "call" or call.excinfo is None:
                return
            if outcome.get_result().failed and isinstance(call.excinfo.value, (AssertionError, pytest.fail.Exception)):
                teller.tell("again", s=self.name, id=item.nodeid)

        def pytest_deselected(self, items):
            """Report the number of deselected tests."""
            if not is_part:
                teller.tell("deselected", s=self.name, count=len(items))

        @hook(trylast=True)
        def pytest_sessionfinish(self, session, exitstatus):
            """Run the canary and report the end of the session."""
            _loads.flush()
            if is_part:
                return
            for plugin in session.config.pluginmanager.get_plugins():
                path = _loads.path_in_tree(_file_of(plugin))
                if path:
                    teller.tell("plugin", by="", file=path)
            teller.tell("canary", s=self.name, failed=_pytest_canary_fails(pytest, session))
            teller.tell("finish", s=self.name, status=int(exitstatus))

    return Session()


def _run_all(items, until):
    from _pytest.runner import runtestprotocol

    for item, following in zip(items, [*items[1:], None]):
        # Not logged, so that neither the exit status nor a report counts it.
        if time.monotonic() < until:
            runtestprotocol(item, log=False, nextitem=following)


def _file_of(plugin):
    module = plugin if hasattr(plugin, "__file__") else sys.modules.get(type(plugin).__module__)
    return getattr(module, "__file__", None) or ""


def _pytest_canary_fails(pytest, session):
    from _pytest.runner import call_and_report

    class Canary(pytest.Item):
        def runtest(self):
            assert "this test" == "must fail"

        def reportinfo(self):
            return self.path if hasattr(self, "path") else self.fspath, 0, self.name

    failed = session.testsfailed
    try:
        # Not logged, so that neither plugins nor the exit status count it.
        report = call_and_report(Canary.from_parent(session, name=CANARY), "call", log=False)
    except Exception:  # a hook of the project may not accept other item types
        return True
    finally:
        # The canary was counted as a failure, which would change the exit status.
        session.testsfailed = failed
    return bool(report.failed)
