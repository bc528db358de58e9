"""The timeline of one run of an episode or a plan, which is read in pages."""

from collections import deque
from datetime import datetime
from itertools import islice

from tightloop.value import Value

LINES_LIMIT = 1_000
"""Lines of a run that are kept; a run of 50 iterations writes about 150. An old one is some 500 bytes in the worker."""
PAGE_LINES = 200
OWN = -1
"""In place of a number of lines: begin with the first that the run itself has written."""


class TimelineLine(Value):
    """One line of what happened."""

    at: datetime
    kind: str
    """`opened`, `iteration`, `paused`, `resumed`, `limit`, `restored`, `reset`, `drift`, `closed`, `terminated` ..."""
    step: str = ""
    """Of a plan."""
    text: str = ""


class TimelinePage(Value):
    """A part of the lines of one run, which are counted from 0."""

    lines: tuple[TimelineLine, ...] = ()
    start: int = 0
    """Number of the first of `lines`."""
    oldest: int = 0
    """Number of the oldest line that the run still has."""
    end: int = 0
    """How many lines the run has written so far."""


class RunTimeline:
    """Keeps the lines of one run of a workflow, up to a bound."""

    def __init__(self, limit: int = LINES_LIMIT) -> None:
        """Begin with none: what a run before has written stays with that one."""
        self._lines: deque[TimelineLine] = deque(maxlen=limit)
        self._end = self._own = 0

    def add(self, line: TimelineLine) -> None:
        """Add a line; the oldest one goes when there are too many."""
        self._lines.append(line)
        self._end += 1

    def begin_own(self) -> None:
        """Note that the run was reset: the lines so far are those of the run that it was reset from."""
        self._own = self._end

    def page(self, after: int) -> TimelinePage:
        """Return what follows the first `after` lines, or `OWN`; a wrong number counts as the nearest right one."""
        oldest = self._end - len(self._lines)
        start = min(max(self._own if after == OWN else after, oldest), self._end)
        lines = tuple(islice(self._lines, start - oldest, start - oldest + PAGE_LINES))
        return TimelinePage(lines=lines, start=start, oldest=oldest, end=self._end)
