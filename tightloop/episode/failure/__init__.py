"""Failures as data: their class, their signature, and how often one came back."""

import base64
import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum

from tightloop.value import Value

# The order matters: colours cut words in two, a UUID would leave its parts as short hashes, and most contain digits.
_NOISE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
    (re.compile(r"==\d+=="), "<at>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<hash>"),
    # A date, a time of the day, or both; also `Mon Nov 23 10:05:00 UTC 2026`.
    (
        re.compile(
            r"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?(?:\d{1,2} )?"
            r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +\d{1,4}(?=[ ,\n]|$)"
        ),
        "<time>",
    ),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T_ ]\d\d[:.]?\d\d(?:[:.]?\d\d)?(?:[.,]\d+)?)?(?:Z\b|[+-]\d\d:?\d\d\b)?"),
        "<time>",
    ),
    (re.compile(r"\b\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?\b"), "<time>"),
    # A hash has a digit and a letter: 7 digits alone are a number, `defaced` alone is a word.
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b"), "<hash>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:/[\w.@+-]+)+/"), ""),
    # Places in a file, durations and ids of processes say nothing, whichever way they change.
    (
        re.compile(
            r"(?<=[\w)])(?::\d+){1,2}\b|\b(?:line|lines|col|column|pid|process|thread|port|attempt|retry|run|seed)"
            r"[ #:=]*\d+(?:-\d+)?",
            re.IGNORECASE,
        ),
        "<at>",
    ),
)
_DURATION = (
    re.compile(
        r"\b(?:in|took|after|elapsed|duration|time)[ :=]*\d+(?:\.\d+)? ?(?:m?s|secs?|seconds?|min|minutes)?\b"
        r"|\b\d+\.\d+ ?s\b",
        re.IGNORECASE,
    ),
    "<time>",
)
_SPACE = re.compile(r"\s+")
# Digits after a letter belong to a name: F401 is not F841.
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d+(?:\.\d+)?")


class FailureKind(StrEnum):
    """Who can fix a failure."""

    CHECK = "check"
    """A definition-of-done command failed; the next plan can fix it."""
    EXECUTOR = "executor"
    """The executor failed, timed out or its outcome is unknown."""
    PLANNER = "planner"
    """The planner's answer could not be used."""
    LIMIT = "limit"
    """A rate, quota or tool-call limit."""
    FATAL = "fatal"
    """Nothing in the loop can fix it: a person is needed."""


def without_noise(text: str, *, numbers: bool = True, durations: bool = True) -> str:
    """Return a text without what changes from run to run and means nothing: times, addresses, hashes, folders, colours.

    Args:
        text: one line or several.
        numbers: whether all other numbers are left out, too.
        durations: whether durations are left out.
    """
    for pattern, replacement in (*_NOISE, _DURATION) if durations else _NOISE:
        text = pattern.sub(replacement, text)
    text = _SPACE.sub(" ", text)
    return (_NUMBER.sub("<n>", text) if numbers else text).strip()


def signature(*parts: str) -> str:
    """Return a short stable id of an error text, 16 hexadecimal digits, the same for the same cause."""
    text = "\n".join(map(without_noise, parts))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def short_mark(text: str) -> str:
    """Return 4 characters that tell a text from some hundred others."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=3).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")


def combined(marks: Iterable[str]) -> str:
    """Return the signature of several signatures together, 16 hexadecimal digits."""
    # Not `signature`: it would remove the marks, which look like the hashes that are noise in a text.
    return hashlib.sha256("\n".join(marks).encode("utf-8", "replace")).hexdigest()[:16]


class Failure(Value):
    """One failure of one iteration."""

    kind: FailureKind
    signature: str
    summary: str = ""
    iteration: int = 0


class FailureStreak(Value):
    """Iterations without progress that failed and brought nothing new, or nothing of which anybody can tell its use."""

    last: Failure | None = None
    times: int = 0
    """How many of them failed for the last cause, in a row."""
    count: float = 0
    """The same, where one of which nobody can tell counts less."""
    iterations: int = 0
    """How many they are, whatever the cause."""
    fruitless: float = 0
    """The same, where one of which nobody can tell counts less."""
    idle: int = 0
    """How many of them, in a row, were in vain: `Tracking.idle`."""

    def plus(self, failure: Failure, *, weight: float = 1, idle: bool = False) -> "FailureStreak":
        """Return the streak with one more failure; another cause begins a new count."""
        again = self.last is not None and self.last.signature == failure.signature
        return FailureStreak(
            last=failure,
            times=self.times + 1 if again else 1,
            count=round(self.count + weight, 3) if again else weight,
            iterations=self.iterations + 1,
            fruitless=round(self.fruitless + weight, 3),
            idle=self.idle + 1 if idle else 0,
        )

    def eased(self) -> "FailureStreak":
        """Return the streak after new work that the checks say nothing about: a promise halves the doubts."""
        return self.evolve(count=round(self.count / 2, 3), fruitless=round(self.fruitless / 2, 3), idle=0)


NO_FAILURES = FailureStreak()
"""Something succeeded, or a person stepped in."""
LONGEST_CIRCLE = 4
"""States in the longest circle that is recognised; two rounds of it must be remembered."""


def goes_round(marks: tuple[str, ...]) -> bool:
    """Return whether the last marks are two rounds of the same circle: A-B-A-B, A-B-C-A-B-C and so on.

    A circle has at least two different states; one that stays as it is goes nowhere, not round.
    """
    for length in range(2, LONGEST_CIRCLE + 1):
        newest, before = marks[-length:], marks[-2 * length : -length]
        if newest == before and len(newest) == length and len(set(newest)) > 1:
            return True
    return False
