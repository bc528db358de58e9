"""What an episode does right now: the command or the call, its age, its limit and the attempts before it."""

from collections.abc import Sequence
from datetime import datetime

from tightloop.episode.check import Check
from tightloop.value import Value, shorten

PROOF = "proof, check"
"""What a check is called in a fresh checkout."""
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
        if not self.what:
            return ""
        parts = [self.what]
        if self.since is not None:
            age = f"for {span((now - self.since).total_seconds())}" if now else f"since {self.since:%H:%M:%S} UTC"
            parts.append(age + (f" of at most {span(self.limit_s)}" if self.limit_s else ""))
        if self.attempt > 1:
            parts.append(f"attempt {self.attempt}" + (f" of {self.attempts}" if self.attempts else ""))
        if self.next_attempt is not None and now is not None:
            parts.append(f"again in {span((self.next_attempt - now).total_seconds())}")
        return "; ".join([", ".join(parts), *([f"before: {self.trouble}"] if self.trouble else [])])

    @property
    def trouble(self) -> str:
        """Why it takes more than one attempt, or more than one answer."""
        answer = f"the last answer could not be used: {self.answer_problem}" if self.answer_problem else ""
        return "; ".join(part for part in (self.problem, answer) if part)


def span(seconds: float) -> str:
    """Return a length of time, such as `45 s`, `4 min 10 s` or `2 h 5 min`."""
    whole = max(round(seconds), 0)
    if whole < 120:
        return f"{whole} s"
    large, small, names = (whole // 60, whole % 60, ("min", "s")) if whole < 7_200 else _hours(whole)
    return f"{large} {names[0]}" + (f" {small} {names[1]}" if small else "")


def _hours(seconds: int) -> tuple[int, int, tuple[str, str]]:
    return seconds // 3_600, seconds % 3_600 // 60, ("h", "min")


def check_work(check: Check, number: int, total: int, since: datetime, kind: str = "check") -> Work:
    """Return what runs while one check does."""
    place = f"{kind} {number} of {total}" if total > 1 else kind
    what = f"{place}: {shorten(check.title, WHAT_CHARACTERS)}"
    return Work(what=what, since=since, limit_s=check.timeout_s, ends_early=True)


def checks_work(checks: Sequence[Check], kind: str = "check") -> Work:
    """Return what runs while all checks do, where nobody can say which of them it is."""
    names = ", ".join(check.title for check in checks)
    plural = "" if len(checks) == 1 else "s"
    what = f"{kind}{plural}: {shorten(names, WHAT_CHARACTERS)}"
    return Work(what=what, limit_s=sum(check.timeout_s for check in checks), ends_early=True)


def wait_for_worker(since: datetime, queue: str) -> str:
    """Return where and since when a step waits, as the status shows it."""
    return f"a worker with a free slot on task queue {queue!r} since {since:%Y-%m-%d %H:%M:%S} UTC"
