"""Sees what one run of a test tells, before hooks of the project can rewrite it."""

import pytest


def nothing(outcome, seconds):
    return {
        "outcome": outcome, "assertion": False, "place": "", "type": "", "text": "", "line": 0, "reached": [],
        "raised": [], "lines": {},
        "seconds": seconds, "honest": True,
    }  # fmt: skip


class Plugin:
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


class Recorder:
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
