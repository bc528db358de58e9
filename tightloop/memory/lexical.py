"""Search by words: BM25 over postings, in plain Python."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

# Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).
K1 = 1.2
B = 0.75
TERMS_LIMIT = 64
TERM_CHARACTERS = 64
_WORD = re.compile(r"[A-Za-z]+|\d+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def terms(text: str) -> Counter[str]:
    """Return the words of a text with their counts; names also count as the words they are made of."""
    found: Counter[str] = Counter()
    for name in re.findall(r"\w+", text):
        found[name.lower()[:TERM_CHARACTERS]] += 1
        parts = [part.lower() for word in _WORD.findall(name) for part in _HUMP.findall(word)]
        if len(parts) > 1:
            found.update(part[:TERM_CHARACTERS] for part in parts)
    return Counter(dict(found.most_common(TERMS_LIMIT)))


class Posting(NamedTuple):
    """A word in a document."""

    document: str
    times: int
    length: int
    """Words of the document."""


def bm25(
    postings: Mapping[str, list[Posting]], frequencies: Mapping[str, int], *, documents: int, average: float
) -> dict[str, float]:
    """Return the score of each document that holds one of the words.

    Args:
        postings: the documents of each word of the query.
        frequencies: how many documents hold a word.
        documents: how many there are.
        average: words of a document.
    """
    scores: dict[str, float] = {}
    for word, found in postings.items():
        weight = idf(frequencies.get(word, 0), documents)
        for posting in found:
            scores[posting.document] = scores.get(posting.document, 0.0) + weight * _saturated(posting, average)
    return scores


def self_score(query: Mapping[str, int], frequencies: Mapping[str, int], *, documents: int, average: float) -> float:
    """Return the score of a document that is the query itself: what is found cannot be more alike."""
    length = sum(query.values())
    return sum(
        idf(frequencies.get(term, 0), documents) * _saturated(Posting("", count, length), average)
        for term, count in query.items()
    )


def idf(frequency: int, documents: int) -> float:
    """Return what a word is worth that so many documents hold."""
    return math.log1p((documents - min(frequency, documents) + 0.5) / (frequency + 0.5))


def _saturated(posting: Posting, average: float) -> float:
    length = posting.length / average if average else 1.0
    return posting.times * (K1 + 1) / (posting.times + K1 * (1 - B + B * length))
