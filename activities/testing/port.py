"""The port of the test gate."""

from collections.abc import Callable, Sequence
from typing import Protocol

from activities.workspace.port import WorkingTree
from tightloop.testing import GateReport


class TestGate(Protocol):
    """Judges the tests of a change."""

    def judge(
        self,
        tree: WorkingTree,
        before: str,
        after: str,
        tests: Sequence[str],
        *,
        cancelled: Callable[[], bool],
        started: Callable[[int], None],
        time_limit_s: float,
    ) -> GateReport:
        """Return which tests have proved that they can fail. The working tree is neither read nor changed.

        Args:
            tree: has both trees in its store; its folder says where installed programs and ignored files lie.
            before: id of the tree before the change.
            after: id of the tree with the change and with the tests.
            tests: paths of test files of that tree: new ones, and changed ones.
            cancelled: asked several times a second; when True everything is ended.
            started: told the pid of each program that is started.
            time_limit_s: for all runs together; what there was no time for stands in the notes of the report.

        Raises:
            CancelledError: `cancelled` said so.
            SandboxUnavailableError: no sandbox works on this host. Not retryable: a person has to install one.
            GitError: the store does not hold a tree.
        """
        ...
