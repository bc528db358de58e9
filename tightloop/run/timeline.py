"""Timeline of a run, and what it does now."""

from collections import deque
from datetime import datetime
from itertools import islice

from tightloop.value import Value
from tightloop.wording import work_text

LINES_LIMIT = 1_000
"""Lines kept in memory. A run of 50 iterations writes about 150; a line takes some 500 bytes."""
PAGE_LINES = 200
OWN = -1
"""In place of a number of lines: start with the first line that this Temporal run wrote itself."""


class TimelineLine(Value):
    """One event of a run."""

    at: datetime
    kind: str
    """`opened`, `iteration`, `completed`, `paused`, `limit`, `restored`, `reset`, `drift`, `closed` ..."""
    step: str = ""
    """Step of a plan; empty where the event is about the whole run."""
    text: str = ""


class TimelinePage(Value):
    """Part of the lines of one Temporal run, which are numbered from 0."""

    lines: tuple[TimelineLine, ...] = ()
    start: int = 0
    """Number of the first of `lines`."""
    oldest: int = 0
    """Number of the oldest line that is still kept."""
    end: int = 0
    """Number of lines written so far."""


class RunTimeline:
    """The lines of one Temporal run, up to a limit."""

    def __init__(self, limit: int = LINES_LIMIT) -> None:
        self._lines: deque[TimelineLine] = deque(maxlen=limit)
        self._end = self._own = 0

    def add(self, line: TimelineLine) -> None:
        """Add a line. The oldest one is dropped at the limit."""
        self._lines.append(line)
        self._end += 1

    def begin_own(self) -> None:
        """Mark a reset: all lines so far belong to the run that this one was reset from."""
        self._own = self._end

    def page(self, after: int) -> TimelinePage:
        """Return the lines after the first `after` ones, or `OWN`; a wrong number means the nearest valid one."""
        oldest = self._end - len(self._lines)
        start = min(max(self._own if after == OWN else after, oldest), self._end)
        lines = tuple(islice(self._lines, start - oldest, start - oldest + PAGE_LINES))
        return TimelinePage(lines=lines, start=start, oldest=oldest, end=self._end)


WHAT_CHARACTERS = 300
PROBLEM_CHARACTERS = 400


class Work(Value):
    """What runs now, for a person who wonders whether it still does."""

    what: str = ""
    """Such as `check 2 of 3: pytest -q`."""
    since: datetime | None = None
    limit_s: float = 0.0
    """It is ended after this time; 0: not known here."""
    spent_s: float = 0.0
    """Seconds that the attempts before this one took of the limit."""
    attempt: int = 1
    attempts: int = 0
    """Maximum number of attempts; 0: not known here."""
    problem: str = ""
    """Why the attempt before this one failed."""
    answer_problem: str = ""
    """What was wrong with the last answer of a model."""
    next_attempt: datetime | None = None
    """When it is tried again, where it waits for that."""
    ends_early: bool = False
    """A pause may end it: nothing is lost but its time."""

    def told(self, now: datetime | None = None) -> str:
        """Return it in words; with its age where the time is given, else with the time at which it began."""
        return work_text(self, now)


def wait_for_worker(since: datetime, queue: str) -> str:
    """Return where and since when a step waits, as the status shows it."""
    return f"a worker with a free slot on task queue {queue!r} since {since:%Y-%m-%d %H:%M:%S} UTC"
