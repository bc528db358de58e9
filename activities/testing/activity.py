"""The activity of the test gate."""

from datetime import UTC, datetime
from typing import ClassVar

from temporalio import activity

from activities.testing.port import TestGate
from activities.workspace.port import Workspaces
from activities.workspace.scope import EpisodeScope
from tightloop.episode.work import Work
from tightloop.testing import GateReport
from tightloop.value import Value, counted

TIME_LIMIT_S = 120.0
"""A change with ten tests takes 3 to 10 s, a slow suite as long as it is given."""


class JudgeTestsRequest(Value):
    """A change, and the tests that were written for it."""

    scope: EpisodeScope
    before: str
    """Id of the tree before the change."""
    after: str
    """Id of the tree with the change and the tests."""
    tests: tuple[str, ...]
    """Paths of test files of the tree `after`."""
    time_limit_s: float = TIME_LIMIT_S


class TestingActivities:
    """Tells tests that can fail from those that cannot."""

    __test__: ClassVar[bool] = False

    def __init__(self, workspaces: Workspaces, gate: TestGate) -> None:
        self._workspaces, self._gate = workspaces, gate

    @activity.defn(name="judge_tests_of_change", no_thread_cancel_exception=True)
    def judge_tests(self, request: JudgeTestsRequest) -> GateReport:
        """Run the tests on both trees and on mutants of the change. Idempotent: it changes nothing."""
        what = f"judge {counted(len(request.tests), 'test file')}"
        activity.heartbeat(Work(what=what, since=datetime.now(UTC), limit_s=request.time_limit_s))
        with self._workspaces.hold(request.scope) as tree:
            return self._gate.judge(
                tree,
                request.before,
                request.after,
                request.tests,
                cancelled=activity.is_cancelled,
                started=tree.own_process,
                time_limit_s=request.time_limit_s,
            )
