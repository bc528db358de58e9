"""Ranking of notes."""

import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

LEXICAL_FLOOR = 0.35
"""Share of the highest possible BM25 score from which words alone are enough."""


class Profile(NamedTuple):
    """Thresholds for the scores of an embedder."""

    threshold: float
    """Least cosine of two lines of failures about the same thing."""
    loose: float
    """The same where one of them is in a person's words."""
    lexical_weight: float = 0.15
    """What shared words add between two lines, as a share of their highest possible score."""

    def in_words(self) -> "Profile":
        """Return how to read the scores of a question in a person's words, which shares none with its answer."""
        return self._replace(threshold=self.loose, lexical_weight=0.0)


# A threshold is a property of a model and of what is compared; measured by tests/benchmarks/memory.py on 60 failures.
HASHING = Profile(threshold=0.35, loose=0.15)
"""Keeps 97 % of the true and 1 % of the wrong lines; of words it understands none."""
MINILM = Profile(threshold=0.5, loose=0.2)
"""Keeps 100 % of the true and 4 % of the wrong lines, 67 % and 9 % in words. At 0.65 no true match in words is left."""
OPENAI = Profile(threshold=0.6, loose=0.35)
"""Not measured: usual for `text-embedding-3-large`."""


class Found(NamedTuple):
    """One result, and how alike it is."""

    id: str
    score: float


def fused(
    vectors: Mapping[str, float], words: Mapping[str, float], profile: Profile | None, *, highest: float
) -> list[Found]:
    """Return what is alike enough, the most alike first.

    Cosines come first and words are added to them: equal ranks (RRF) bring the mean reciprocal rank of prose from 0.71
    down to 0.40 on MiniLM.

    Args:
        vectors: cosine of each result.
        words: BM25 score of each result.
        profile: of the embedder; None: there were no vectors.
        highest: BM25 score of the query itself.
    """
    shares = {name: min(score / highest, 1.0) if highest > 0 else 0.0 for name, score in words.items()}
    found: list[Found] = []
    for name in {*vectors, *shares}:
        cosine, share = vectors.get(name, 0.0), shares.get(name, 0.0)
        if share < LEXICAL_FLOOR and (profile is None or cosine < profile.threshold):
            continue
        score = share
        if profile is not None and name in vectors:
            weight = profile.lexical_weight
            score = (cosine + weight * share) / (1 + weight)
        found.append(Found(name, round(score, 4)))
    return in_order(found)


def in_order(found: Iterable[Found]) -> list[Found]:
    """Return results, the most alike first; equal ones always in the same order."""
    return sorted(found, key=lambda one: (-one.score, one.id))


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


class Embedder(Protocol):
    """Turns texts into vectors whose cosine says how alike they are."""

    @property
    def name(self) -> str:
        """The model, kept with each vector: those of two models are never compared."""
        ...

    @property
    def dimension(self) -> int:
        """Length of its vectors."""
        ...

    @property
    def profile(self) -> Profile:
        """Thresholds for its cosines."""
        ...

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return a vector of length 1 for each text, float32; blocking.

        Raises:
            ServiceUnavailableError: there are none now.
        """
        ...


class HashingEmbedder:
    """Lexical: it compares character n-grams, so that alike words are near, not alike meanings."""

    name = NAME
    profile = HASHING

    def __init__(self, dimension: int = 384) -> None:
        """Take the length of the vectors."""
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return the hashed n-grams of each text."""
        return [hashed(text, self.dimension) for text in texts]
