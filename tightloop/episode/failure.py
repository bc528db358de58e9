"""Failures as data: their class, their signature, and how often one came back."""

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum

from tightloop.value import Value

# The order matters: colours cut words in two, a UUID would leave its parts as short hashes, and both contain digits.
_NOISE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<hash>"),
    # A hash has a digit and a letter: 7 digits alone are a number, `defaced` alone is a word.
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b"), "<hash>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:/[\w.@+-]+)+/"), ""),
    # Digits after a letter belong to a name: F401 is not F841.
    (re.compile(r"(?<![A-Za-z_\d])\d+(?:\.\d+)?"), "<n>"),
    (re.compile(r"[ \t]+"), " "),
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


def signature(*parts: str) -> str:
    """Return a short stable id of an error text, 16 hexadecimal digits.

    Whatever changes from run to run without meaning (numbers, addresses, hashes, folders, colours) is
    removed first, so that the same cause gets the same signature.
    """
    text = "\n".join(parts)
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    return hashlib.sha256(text.strip().encode("utf-8", "replace")).hexdigest()[:16]


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
    """The last failure, and how often its cause came in a row without a success between."""

    last: Failure | None = None
    count: int = 0

    def plus(self, failure: Failure) -> "FailureStreak":
        """Return the streak with one more failure; another cause begins a new one."""
        again = self.last is not None and self.last.signature == failure.signature
        return FailureStreak(last=failure, count=self.count + 1 if again else 1)


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
