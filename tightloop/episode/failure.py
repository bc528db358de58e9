"""Failures as data: their class, their signature, and how often one came back."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from tightloop.value import Value

# The order matters: colours cut words in two, a UUID would leave its parts as short hashes, and most contain digits.
_NOISE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
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
    (
        re.compile(
            r"\b(?:in|took|after|elapsed|duration|time)[ :=]*\d+(?:\.\d+)? ?(?:m?s|secs?|seconds?|min|minutes)?\b"
            r"|\b\d+\.\d+ ?s\b",
            re.IGNORECASE,
        ),
        "<time>",
    ),
    (re.compile(r"\s+"), " "),
)
# Digits after a letter belong to a name: F401 is not F841.
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d+(?:\.\d+)?")

LINES_LIMIT = 400
NUMBERS_LIMIT = 12

# How deep a program was when it failed is not what failed: the frames of Python, and of JavaScript and Java.
_FRAMES = re.compile(r"(?<=^Traceback \(most recent call last\):)(?:\n[ \t]+.*)+|^[ \t]+at \S.*$", re.MULTILINE)
_PRINTED_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\w)")
_GOOD_COUNT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) (?:tests? )?(?:pass\w*|ok|succeed\w*|done)\b", re.IGNORECASE)
# 9 of 24: whether that is good or bad, its course tells.
_SHARE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?:\s*/\s*\d+|\s+(?:out )?of\s+\d+|\s*%)")
_BAD = (
    r"\b(?:fail\w*|errors?|problems?|violations?|warnings?|broken|missing|left|remain\w*|to go|todo|unresolved|open)\b"
)
# The 17 of "3 failed, 17 passed" does not count failures.
_BAD_COUNT = re.compile(
    rf"(?<![\w.])(\d+(?:\.\d+)?)(?![\w.]*\d)[^\d\n;]{{0,40}}?{_BAD}|{_BAD}[ \t]*[:=#]?[ \t]*(\d+(?:\.\d+)?)\b",
    re.IGNORECASE,
)


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


def without_noise(text: str, *, numbers: bool = True) -> str:
    """Return a text without what changes from run to run and means nothing: times, addresses, hashes, folders, colours.

    Args:
        text: one line or several.
        numbers: whether all other numbers are left out, too.
    """
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
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


class Printed(Value):
    """The output of a failing check, compared line by line and number by number."""

    lines: tuple[str, ...] = ()
    """Marks of all lines, without what changes from run to run; sorted; empty above `LINES_LIMIT`."""
    numbers: tuple[float, ...] = ()
    """In the order of the text, without those that say nothing, such as times and places."""
    better: tuple[int, ...] = ()
    """For each number which way is better, as far as the words beside it tell: 1 up, -1 down, 0 unknown."""
    text: str = ""
    """Mark of the whole output with its numbers."""


def read_output(text: str) -> Printed:
    """Return what can be compared with the output of another run."""
    lines = [without_noise(line) for line in _FRAMES.sub("", text).split("\n")]
    marks = tuple(sorted(short_mark(line) for line in lines if line))
    whole = short_mark(without_noise(text, numbers=False)) if marks else ""
    numbers, better = _numbers(text)
    return Printed(lines=marks if len(marks) <= LINES_LIMIT else (), numbers=numbers, better=better, text=whole)


def _numbers(text: str) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the numbers of an output, and for each which way is better: 1 up, -1 down, 0 nobody says."""
    found: list[tuple[float, int]] = []
    for raw in text.split("\n"):
        line = without_noise(raw, numbers=False)
        shares = {share.start(1) for share in _SHARE.finditer(line)}
        bad = {count.start(1 if count[1] else 2) for count in _BAD_COUNT.finditer(line)}
        good = {count.start(1) for count in _GOOD_COUNT.finditer(line)}
        for number in _PRINTED_NUMBER.finditer(line):
            at = number.start()
            way = 1 if at in good else 0 if at in shares else -1 if at in bad else 0
            found.append((float(number[0]), way))
        if len(found) >= NUMBERS_LIMIT:
            break
    return tuple(number for number, _ in found[:NUMBERS_LIMIT]), tuple(way for _, way in found[:NUMBERS_LIMIT])


def is_part(some: tuple[str, ...], more: tuple[str, ...]) -> bool:
    """Return whether the first lines are some of the others, and not all of them."""
    return len(some) < len(more) and bool(some) and not Counter(some) - Counter(more)


class Failure(Value):
    """One failure of one iteration."""

    kind: FailureKind
    signature: str
    summary: str = ""
    iteration: int = 0


class FailureStreak(Value):
    """Iterations in a row that failed and brought nothing new."""

    last: Failure | None = None
    count: int = 0
    """How many of them failed for the last cause, in a row."""
    fruitless: int = 0
    """How many they are, whatever the cause."""
    idle: int = 0
    """How many of them, in a row, left nothing in the tree that had not been there before."""

    def plus(self, failure: Failure, *, idle: bool = False) -> "FailureStreak":
        """Return the streak with one more failure; another cause begins a new count."""
        again = self.last is not None and self.last.signature == failure.signature
        return FailureStreak(
            last=failure,
            count=self.count + 1 if again else 1,
            fruitless=self.fruitless + 1,
            idle=self.idle + 1 if idle else 0,
        )


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
