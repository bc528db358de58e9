"""How similar two texts are: lines first, words inside of changed blocks, bounded in time for any input."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from rapidfuzz.distance import Indel

PRODUCT_LIMIT = 200_000_000
"""Bound on n * m of all sequence comparisons of one level; rapidfuzz takes about 50 ms for it, holding the GIL."""

PARTS_LIMIT = 150_000
"""Lines or words that are compared at once; of more, the first ones are compared and the result is extrapolated."""

LENGTH_LIMIT = 16_000_000
"""Characters of each text that are looked at."""


class Similarity(NamedTuple):
    """A ratio from 0 (nothing in common) to 1 (equal)."""

    ratio: float
    approximate: bool
    """A bound was reached: some blocks were compared without regard to the order of their parts."""


class _Block(NamedTuple):
    """A place where the texts differ."""

    old: list[str]
    new: list[str]
    scale: float = 1.0
    """How many times it counts, if it was found in a part of the text only."""


def similarity(old: str, new: str) -> Similarity:
    """Measure `two-level/1`: twice the common characters by all characters, without white space inside of blocks.

    Lines that are equal in order count in full; between them, words that are equal in order. Where the product of
    two lengths exceeds `PRODUCT_LIMIT`, the multisets are compared instead, which never gives less. One measure at all
    sizes: measuring characters in small and lines in big texts moves the class at the border (.795 -> .343 on
    the same edit).
    """
    if old == new:
        return Similarity(1.0, False)
    cut = max(len(old), len(new)) > LENGTH_LIMIT
    lines = _Level(PRODUCT_LIMIT)
    equal, blocks = lines.compare(old[:LENGTH_LIMIT].split("\n"), new[:LENGTH_LIMIT].split("\n"))
    words = _Level(PRODUCT_LIMIT)
    total = 2 * equal
    for block in blocks:
        old_words, new_words = _words(block.old), _words(block.new)
        equal_words, _ = words.compare(old_words, new_words)
        total += block.scale * (_weight(old_words) + _weight(new_words))
        equal += block.scale * equal_words
    ratio = 2 * equal / total if total else 1.0
    return Similarity(min(ratio, 1.0), cut or lines.approximate or words.approximate)


class _Level:
    """Compares sequences in order until its budget is spent, then without order."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.approximate = False

    def compare(self, old: list[str], new: list[str]) -> tuple[float, list[_Block]]:
        """Return the weight of what is equal, and the blocks that are not."""
        start, end = _common_ends(old, new)
        same = _weight(old[:start]) + _weight(old[len(old) - end :])
        old, new = old[start : len(old) - end], new[start : len(new) - end]
        scale = max(1.0, max(len(old), len(new)) / PARTS_LIMIT)
        if scale > 1.0:
            self.approximate = True
            old, new = old[: int(len(old) / scale)], new[: int(len(new) / scale)]
        product = len(old) * len(new)
        if product > self._budget:
            self.approximate = True
            equal, blocks = _unordered(old, new)
        else:
            self._budget -= product
            equal, blocks = _ordered(old, new)
        return same + scale * equal, [block._replace(scale=scale) for block in blocks]


def _ordered(old: list[str], new: list[str]) -> tuple[int, list[_Block]]:
    equal = 0
    blocks = []
    left = right = 0
    steps = Indel.opcodes(old, new)
    matches = ((s.src_start, s.src_end, s.dest_start, s.dest_end) for s in steps if s.tag == "equal")
    for src, src_end, dest, dest_end in chain(matches, [(len(old), len(old), len(new), len(new))]):
        if src > left or dest > right:
            blocks.append(_Block(old[left:src], new[right:dest]))
        equal += _weight(old[src:src_end])
        left, right = src_end, dest_end
    return equal, blocks


def _unordered(old: list[str], new: list[str]) -> tuple[int, list[_Block]]:
    before, after = Counter(old), Counter(new)
    both = before & after
    equal = sum(_weight([part]) * count for part, count in both.items())
    return equal, [_Block(list(_elements(before, both)), list(_elements(after, both)))]


def _elements(counted: Counter[str], without: Counter[str]) -> Iterator[str]:
    return (counted - without).elements()


def _common_ends(old: list[str], new: list[str]) -> tuple[int, int]:
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return start, end


def _words(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split()]


def _weight(parts: list[str]) -> int:
    """A line and a word count one more than their characters: for the line end or the space."""
    return sum(map(len, parts)) + len(parts)
