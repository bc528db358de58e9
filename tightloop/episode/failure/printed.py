"""The output of a failing check as data: its lines, its numbers, and which way they should go."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tightloop.episode.failure import short_mark, without_noise
from tightloop.value import Value

LINES_LIMIT = 400
NUMBERS_LIMIT = 12
DURATION_AND_LIMIT = 2
PASSED = 4
"""The way of a number of tests that pass, not only ran: up."""
SHARE = 3
"""The way of a number such as the 9 in `9 of 24`: only its course tells which one is good."""
MEASURE = 2
"""Added to the way of a number that is measured, not counted: it trembles."""

# How deep a program was when it failed is not what failed: the frames of Python, and of JavaScript and Java.
_FRAMES = re.compile(r"(?<=^Traceback \(most recent call last\):)(?:\n[ \t]+.*)+|^[ \t]+at \S.*$", re.MULTILINE)
# The 8 of `utf-8` belongs to a name, and the second 4 of `1.4.4` to a version.
_PRINTED_NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:(?=(?:[mµun]?s|[kMG]i?B)\b)|(?![\w.]*\w))"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_NUMBER = r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
_COUNTED = r"(?:failures?|errors?|problems?|violations?|warnings?|issues?)\b"
_SO_MANY = rf"(?<![\w.]){_NUMBER}(?:(?:\s*/\s*|\s+(?:out )?of\s+)\d+)? (?:(?!no[nt]? )[a-z-]+ ){{0,3}}?"
_GOOD_COUNT = re.compile(
    rf"{_SO_MANY}(?:done|tested|covered|complete\w*|finished|ready|run|executed|collected)\b"
    # What stops at the first problem gets further.
    rf"|\b(?:case|test|step|stage|level|phase|row|record|token|byte|offset)[ #:=]{{1,2}}(\d+)\b(?! {_COUNTED})",
    re.IGNORECASE,
)
_PASSED = re.compile(rf"{_SO_MANY}(?:pass(?!w)\w*|ok|succeed\w*)\b", re.IGNORECASE)
_SHARE = re.compile(rf"(?<![\w.]){_NUMBER}(?:\s*/\s*\d+|\s+(?:out )?of\s+\d+|\s*%)")
_BAD = (
    r"\b(?:fail\w*|errors?|problems?|violations?|warnings?|broken|missing|left|remain\w*|to go|todo|open|lack\w*"
    r"|lost|leak(?:s|ed)?|bad|wrong|invalid|incorrect|incomplete|dead|stale|outdated|differ|without"
    r"|un(?:resolved|reachable|used|defined|covered|documented|translated|tested|checked|formatted|typed|known|handled)"
    r"|(?:do|are|were|have|did|could|can) ?not|(?:do|are|were|have|did|could|ca)n't)\b"
)
# The 17 of "3 failed, 17 passed" does not count failures.
_BAD_COUNT = re.compile(
    rf"(?<![\w.]){_NUMBER}(?![\w.]*\d)[^\d\n;]{{0,40}}?{_BAD}|{_BAD}[ \t]*[:=#]?[ \t]*{_NUMBER}\b", re.IGNORECASE
)
# The 4 of "page 4 is missing" is a name: nothing is worse where page 5 is the first one.
_LABEL = re.compile(
    rf"\b(?!(?:found|got|with|total|still|only|all|and|are|than|other|another)\b)[a-z]+ #?{_NUMBER}"
    r"(?=:| (?:is|was|has|does|lacks|fails|failed|missing|not)\b)",
    re.IGNORECASE,
)
_BETWEEN = r"[^\w\n;,]{1,4}(?:is |are |of |at )?"
_HIGHER = (
    r"(?:accuracy|coverage|score|recall|precision|f1|auc|bleu|throughput|speedup|similarity|uptime"
    r"|(?:hit|pass|success) rate)\b"
)
_OFF = r"(?:off|out|away|short|over|above|late|behind|missed|exceed\w*|too \w+)"
_LOWER = (
    r"(?:loss|[wc]er|(?:error|failure|miss) rate|latency|rmse|mae|mse|perplexity|distance|lag|misses|overhead|leaked"
    r"|lost|runtime|diff\w*|delta|deviation|gap|drift|size|memory|duration|jitter|stall\w*)\b"
)
_UNIT = r"(?:[a-zµ]+/op|[mµun]?s|secs?|seconds?|minutes|[kMG]i?B|bytes)"
_MEASURES = (
    (1, rf"(?:\b|_){_HIGHER}{_BETWEEN}{_NUMBER}|{_NUMBER} ?(?:[a-z]+/s|[frq]ps)\b"),
    (-1, rf"(?:\b|_){_LOWER}{_BETWEEN}{_NUMBER}|{_NUMBER} ?{_UNIT}\b"),
    (-1, rf"\b{_OFF} by {_NUMBER}|(?<![\w.]){_NUMBER}(?: [a-zµ%]+)? {_OFF}\b"),
)
_WAYS = (
    (-1, _BAD_COUNT),
    (0, _LABEL),
    (SHARE, _SHARE),
    *((way * MEASURE, re.compile(pattern, re.IGNORECASE)) for way, pattern in _MEASURES),
    (1, _GOOD_COUNT),
    (PASSED, _PASSED),
)
"""What the words beside a number tell; the last that fits counts."""
_WANTED = (
    r"\b(?:goal|target|expect\w*|want\w*|need\w*|requir\w*|limit|threshold|below|under|above|over|least|most|max\w*"
    r"|min\w*|should|must|than|within|exceed\w*|allow\w*|permit\w*|budget|cap|quota|sl[oa]|spec|aim|tolerance|reference|baseline)\b"
)
_LIMITED = re.compile(rf"{_WANTED}|<=?|>=?", re.IGNORECASE)
_GOAL = re.compile(
    rf"{_WANTED}[^\d\n;]{{1,15}}?{_NUMBER}|(?<![\w.]){_NUMBER}[^\d\n;,]{{1,15}}?{_WANTED}", re.IGNORECASE
)


class Printed(Value):
    """The output of a failing check, compared line by line and number by number."""

    lines: tuple[str, ...] = ()
    """Marks of all lines, without what changes from run to run; sorted; empty above `LINES_LIMIT`."""
    numbers: tuple[float, ...] = ()
    """In the order of the text, without those that say nothing, such as times and places."""
    better: tuple[int, ...] = ()
    """For each number which way is better, as far as the words beside it tell: 1 up, -1 down, 2 and -2 for measures,
    `SHARE`, `PASSED`, 0 unknown."""
    goals: tuple[float | None, ...] = ()
    """For each number the one on its line that it has to come to, as far as words tell."""
    text: str = ""
    """Mark of the whole output with its numbers."""


def read_output(text: str) -> Printed:
    """Return what can be compared with the output of another run."""
    text = without_frames(text)
    lines = [without_noise(line) for line in text.split("\n")]
    marks = tuple(sorted(short_mark(line) for line in lines if line))
    numbers = _numbers(text)
    return Printed(
        lines=marks if len(marks) <= LINES_LIMIT else (),
        numbers=tuple(number.value for number in numbers),
        better=tuple(number.better for number in numbers),
        goals=tuple(number.goal for number in numbers),
        text=short_mark(without_noise(text, numbers=False)) if marks else "",
    )


def without_frames(text: str) -> str:
    """Return an output without where a program was when it failed."""
    return _FRAMES.sub("", text)


class _Number(NamedTuple):
    value: float
    better: int
    goal: float | None


def _numbers(text: str) -> list[_Number]:
    found: list[_Number] = []
    for raw in text.split("\n"):
        line = _THOUSANDS.sub("", raw)
        # A duration says nothing, but for one with its limit.
        is_limited = _LIMITED.search(line) and len(_PRINTED_NUMBER.findall(line)) <= DURATION_AND_LIMIT
        found += _numbers_of(without_noise(line, numbers=False, durations=not is_limited))
        if len(found) >= NUMBERS_LIMIT:
            break
    return found[:NUMBERS_LIMIT]


def _numbers_of(line: str) -> Iterator[_Number]:
    values = {number.start(): float(number[0]) for number in _PRINTED_NUMBER.finditer(line)}
    ways = {at: way for way, pattern in _WAYS for at in _places(pattern, line)}
    goal = next((at for at in _places(_GOAL, line) if at in values), None)
    for at, value in values.items():
        yield _Number(value, ways.get(at, 0), None if goal in (None, at) else values[goal])


def _places(pattern: re.Pattern[str], line: str) -> Iterator[int]:
    return (found.start(1 if found[1] else 2) for found in pattern.finditer(line))


def is_part(some: tuple[str, ...], more: tuple[str, ...]) -> bool:
    """Return whether the first lines are some of the others, and not all of them."""
    return len(some) < len(more) and bool(some) and not Counter(some) - Counter(more)
