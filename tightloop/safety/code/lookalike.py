"""Finds names of packages that may be meant to be taken for others."""

import re
from collections.abc import Iterable

_AFFIXES = re.compile(r"^(?:python-?|py-)|(?:-?python\d?|-py\d?|-?\d)$")
SHORT = 6
"""Up to this many letters one slip makes a name look like another; of longer names two do."""


def looks_like(name: str, known: Iterable[str]) -> str:
    """Return the known name that another name may be meant to be taken for, or "".

    Args:
        name: as package indexes compare it.
        known: names in the same form; if `name` is one of them, it looks like none.
    """
    names = sorted(known)
    if name in names:
        return ""
    bare = _bare(name)
    for other in names:
        limit = 1 if len(other) <= SHORT else 2
        # Of names of two or three letters nearly all are one slip apart.
        if len(other) > 3 and (_bare(other) == bare or distance(name, other, limit) <= limit):
            return other
    return ""


def _bare(name: str) -> str:
    return _AFFIXES.sub("", name).replace("-", "") or name


def distance(one: str, other: str, limit: int) -> int:
    """Return the number of slips between two names, or more than `limit` where there are more.

    A slip is a letter too many, too few, another or two that changed places (Damerau-Levenshtein, optimal string
    alignment).
    """
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    above: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, start=1):
        before, above, row = above, row, [at]
        for place, wanted in enumerate(other, start=1):
            cost = min(above[place] + 1, row[-1] + 1, above[place - 1] + (letter != wanted))
            swapped = at > 1 and place > 1 and letter == other[place - 2] and one[at - 2] == wanted
            row.append(min(cost, before[place - 2] + 1) if swapped else cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]
