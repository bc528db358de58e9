"""What the execution activity is to an executor, and what it tells the attempt after a crash."""

import contextvars
import math
import time

from pydantic import ValidationError
from temporalio import activity

from activities.workspace.port import WorkingTree
from tightloop.executor import Progress, ResumeToken

PROGRESS_SECONDS = 1.0


class Supervision:
    """Connects an executor with the activity that runs it and the tree that it works in."""

    def __init__(self, tree: WorkingTree) -> None:
        """Make it in the activity's own thread."""
        self._tree = tree
        # Executors may ask from threads of their own, where the activity's context is not set.
        self._context = contextvars.copy_context()
        self._told = -math.inf
        self._resume: ResumeToken | None = None

    def cancelled(self) -> bool:
        """Return whether the work shall stop."""
        return self._context.copy().run(activity.is_cancelled)

    def own_process(self, pid: int) -> None:
        """Note a child process with the tree."""
        self._tree.own_process(pid)

    def progress(self, progress: Progress) -> None:
        """Beat with the progress: at once where the way back changed, else at most once a second."""
        now = time.monotonic()
        if progress.resume == self._resume and now - self._told < PROGRESS_SECONDS:
            return
        self._told, self._resume = now, progress.resume
        self._context.copy().run(activity.heartbeat, progress)


def way_back() -> ResumeToken | None:
    """Return the resume token that the attempt before this one told in its heartbeats."""
    for detail in activity.info().heartbeat_details:
        try:
            return Progress.model_validate(detail).resume
        except ValidationError:
            continue
    return None
