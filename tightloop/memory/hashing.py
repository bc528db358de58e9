"""The embedder that needs nothing: character n-grams, hashed. It finds alike words, not alike meanings."""

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Sequence

NAME = "hashing-3-5"
"""Of the model; another one as soon as anything about the vectors changes."""
SHORTEST, LONGEST = 3, 5
TEXT_CHARACTERS = 2_000


def hashed(text: str, dimension: int) -> "array[float]":
    """Return the vector of a text, float32 (dimension,), of length 1."""
    counts: Counter[str] = Counter()
    for word in text.lower()[:TEXT_CHARACTERS].split():
        marked = f" {word} "
        for size in range(SHORTEST, LONGEST + 1):
            counts.update(marked[at : at + size] for at in range(len(marked) - size + 1))
    found = [0.0] * dimension
    for gram, count in counts.items():
        code = zlib.crc32(gram.encode("utf-8", "replace"))
        # The highest bit is the sign, so that what falls together cancels out on average (Weinberger et al. 2009).
        found[(code & 0x7FFFFFFF) % dimension] += (1 + math.log(count)) * (-1 if code >> 31 else 1)
    return unit(found)


def unit(values: Sequence[float]) -> "array[float]":
    """Return a vector of length 1; one of zeros stays as it is."""
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return array("f", (value / length for value in values))
