"""Failure signatures, used to compare the output of failing checks."""

import base64
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from tightloop.value import Value, shorten

# The order matters: colours split words, a UUID would leave its parts as short hashes, and most contain digits.
_NOISE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "<addr>"),
    (re.compile(r"==\d+=="), "<at>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<hash>"),
    # A date, a time of day, or both; also `Mon Nov 23 10:05:00 UTC 2026`.
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
    # Positions in a file, durations and process ids are noise in either direction.
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
)
_COLOURS, _ = _NOISE[0]
_SPACE = re.compile(r"\s+")
# Digits after a letter belong to a name: F401 is not F841.
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d+(?:\.\d+)?")


class FailureKind(StrEnum):
    """The origin of a failure, which determines who can fix it."""

    CHECK = "check"
    """A command of the definition of done failed. The next plan can fix it."""
    EXECUTOR = "executor"
    """The executor failed, timed out or ended with an unknown outcome."""
    PLANNER = "planner"
    """The planner's reply could not be used."""
    LIMIT = "limit"
    """A rate limit, quota or tool-call limit was reached."""
    FATAL = "fatal"
    """Nothing in the loop can fix the failure, so a person is needed."""


def without_noise(text: str, *, numbers: bool = True) -> str:
    """Remove the parts of a text that vary between runs, such as times, addresses and hashes.

    All other numbers are removed too, unless `numbers` is False.
    """
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    text = _SPACE.sub(" ", text)
    return (_NUMBER.sub("<n>", text) if numbers else text).strip()


def signature(*parts: str) -> str:
    """Return a stable id for an error text.

    The id has 16 hexadecimal digits and is the same for the same cause.
    """
    text = "\n".join(map(without_noise, parts))
    # `replace`, because output may hold lone surrogates, which UTF-8 rejects.
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def short_mark(text: str) -> str:
    """Return a 4-character hash, which is enough to distinguish a few hundred texts."""
    # 3 bytes are exactly 4 characters of base64.
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=3).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")


def combine_signatures(marks: Iterable[str]) -> str:
    """Combine several signatures into one signature of 16 hexadecimal digits."""
    # Not `signature`: it would remove the marks, which look like the hashes that are noise in a text.
    return hashlib.sha256("\n".join(marks).encode("utf-8", "replace")).hexdigest()[:16]


class Failure(Value):
    """A failure that occurred in an iteration."""

    kind: FailureKind
    signature: str
    summary: str = ""
    iteration: int = 0


class FailureStreak(Value):
    """The number of consecutive iterations without progress."""

    last: Failure | None = None
    times: int = 0
    """Number of consecutive iterations with the latest cause."""
    iterations: int = 0
    """Number of iterations with any cause."""
    unchanged: int = 0
    """Number of consecutive iterations that changed no file."""

    def plus(self, failure: Failure, *, changed: bool = True) -> "FailureStreak":
        """Return the streak after another failure. A different cause restarts the count."""
        again = self.last is not None and self.last.signature == failure.signature
        return FailureStreak(
            last=failure,
            times=self.times + 1 if again else 1,
            iterations=self.iterations + 1,
            unchanged=0 if changed else self.unchanged + 1,
        )


NO_FAILURES = FailureStreak.model_construct()
"""Streak without failures, used after a success or an intervention by a person."""
LONGEST_CIRCLE = 4
"""Length of the longest cycle that can be detected. Two rounds of it must be remembered."""


def goes_round(marks: tuple[str, ...]) -> bool:
    """Return whether the last marks repeat a cycle, such as A-B-A-B or A-B-C-A-B-C.

    A cycle has at least two distinct states. An unchanged state is stagnation, not a cycle.
    """
    for length in range(2, LONGEST_CIRCLE + 1):
        newest, before = marks[-length:], marks[-2 * length : -length]
        # The length too: before there are two rounds, both slices may be short and equal.
        if newest == before and len(newest) == length and len(set(newest)) > 1:
            return True
    return False


LINES_LIMIT = 400
NUMBERS_LIMIT = 12

# The stack depth at a failure is not its cause: the frames of Python, and of JavaScript and Java.
_FRAMES = re.compile(r"(?<=^Traceback \(most recent call last\):)(?:\n[ \t]+.*)+|^[ \t]+at \S.*$", re.MULTILINE)
# The 8 of `utf-8` belongs to a name, and the second 4 of `1.4.4` to a version.
_PRINTED_NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:(?=(?:[mµun]?s|[kMG]i?B)\b)|(?![\w.]*\w))"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")


class ComparableOutput(Value):
    """The output of a failing check, in a form whose lines and numbers can be compared."""

    lines: tuple[str, ...] = ()
    """Sorted marks of all lines, without noise. Empty if there are more than `LINES_LIMIT` lines."""
    numbers: tuple[float, ...] = ()
    """The first numbers in text order, without noise such as times and positions."""


def read_output(text: str) -> ComparableOutput:
    """Extract the comparable parts of the output."""
    text = without_frames(text)
    lines = [without_noise(line) for line in text.split("\n")]
    marks = tuple(sorted(short_mark(line) for line in lines if line))
    numbers = itertools.chain.from_iterable(map(_numbers, text.split("\n")))
    return ComparableOutput(
        # The marks are stored with every result; a longer output is compared as a whole only.
        lines=marks if len(marks) <= LINES_LIMIT else (),
        numbers=tuple(itertools.islice(numbers, NUMBERS_LIMIT)),
    )


def without_frames(text: str) -> str:
    """Return the output without stack frames."""
    return _FRAMES.sub("", text)


def _numbers(line: str) -> Iterator[float]:
    text = without_noise(_THOUSANDS.sub("", line), numbers=False)
    return (float(number[0]) for number in _PRINTED_NUMBER.finditer(text))


def is_part(some: tuple[str, ...], more: tuple[str, ...]) -> bool:
    """Return whether the first lines are a proper subset of the second lines.

    A line that is repeated must occur at least as often in the second lines.
    """
    return len(some) < len(more) and bool(some) and not Counter(some) - Counter(more)


_ERROR_LINES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^E  +(?:assert\b|[\w.]*(?:Error|Exception|Warning)\b).*$",
        r"^E  +[^\s+].*$",
        r"^.*\b[A-Z]\w*(?:Error|Exception)\b.*$",
        r"^(?:\S*:\d+:\d+: )?[A-Z]{1,6}\d{3,4}\b.*$",
        # `Found 3 errors` is a count, not a cause.
        r"^(?!Found ).*\berror\b.*$",
        r"^.*\S.*$",
    )
)
"""Patterns for the lines that explain a failure, most useful first.

The order is pytest errors, exceptions, findings, errors, and then any other line.
"""

_MARK = re.compile(r"^E  +")
_TYPE = re.compile(r"\b([A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt))\b|(?:^|\s)([A-Z]{1,6}\d{3,4})\b")


_CAUSE_LINES = (
    *_ERROR_LINES[:2],
    # Assertions of other languages: cargo, go test, jest, node, unittest and compilers.
    re.compile(r"^.*(?:\bassert|\bpanicked at\b|\bexpected\b|\bgot\b.*\bwant\b).*$", re.MULTILINE | re.IGNORECASE),
    *_ERROR_LINES[2:-1],
    re.compile(
        r"^.*\b(?:error|fatal|fail(?:ed|ure|s)?|exception|panic|not ok|undefined|cannot|missing|denied)\b.*$",
        re.MULTILINE | re.IGNORECASE,
    ),
    _ERROR_LINES[-1],
)
"""Patterns for the lines to show to people, most useful first.

Unlike the lines of `_ERROR_LINES`, these are not compared with earlier failures.
"""


def find_explaining_line(text: str) -> str:
    """Return the output line that best explains the failure, or "" if there is none."""
    return _find_last(text, _ERROR_LINES)


def find_cause(text: str) -> str:
    """Return the line with the failing assertion or the error, or the last line if there is none."""
    return _find_last(text, _CAUSE_LINES)


def _find_last(text: str, patterns: tuple[re.Pattern[str], ...]) -> str:
    for pattern in patterns:
        if lines := pattern.findall(text):
            # The last one, because tools print the final error at the end.
            return str(lines[-1])
    return ""


def explain_output(text: str, limit: int) -> str:
    """Return the output lines that explain the failure of a command, at most `limit` characters.

    The failing assertion or the error comes first, followed by as many of the last lines as fit. A line
    is cut only if it is longer than `limit`.
    """
    lines = [line.rstrip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    cause = shorten(_MARK.sub("", find_cause("\n".join(lines))).strip(), limit)
    left, last = limit - len(cause), list[str]()
    for line in reversed(lines):
        if cause and _MARK.sub("", line).strip() == cause:
            continue
        left -= len(line) + 1
        if left < 0:
            break
        last.append(line)
    return "\n".join((*filter(None, [cause]), *reversed(last)))


def normalize_explaining_line(text: str) -> str:
    """Normalize the explanatory line, so that equal failures have equal lines."""
    return without_noise(_MARK.sub("", find_explaining_line(text).strip()))


def failure_type(text: str) -> str:
    """Return the exception or rule named in the explanatory line, or ""."""
    match = _TYPE.search(find_explaining_line(text))
    return (match[1] or match[2]) if match else ""
