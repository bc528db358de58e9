"""Failure memory: models and ranking."""

import hashlib
import json
import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from pydantic import Field

from tightloop.value import Value, format_count

Z = 1.96
"""Normal quantile for a 95 % interval."""
LEAST_TRIES = 3
LEAST_RATE = 0.1
"""Success rate below which an entry is retired. For 1 of 3 successes it is 0.06, for 1 of 2 0.09, for 2 of 5 0.12."""


def wilson(worked: int, tried: int) -> float:
    """Return the lower bound of the success rate (Wilson 1927, 95 %).

    For example, 1 of 1 gives 0.21, and 9 of 10 gives 0.60.
    """
    if tried <= 0:
        return 0.0
    rate, square = worked / tried, Z * Z
    spread = Z * math.sqrt((rate * (1 - rate) + square / (4 * tried)) / tried)
    return max((rate + square / (2 * tried) - spread) / (1 + square / tried), 0.0)


class Evidence(Value):
    """The number of times that a pattern was tried, and how often it worked."""

    worked: int = 0
    tried: int = 0

    @property
    def rate(self) -> float:
        """Lower bound of the success rate."""
        return wilson(self.worked, self.tried)

    @property
    def retired(self) -> bool:
        """True if the pattern failed too often to be suggested again."""
        return self.tried >= LEAST_TRIES and self.rate < LEAST_RATE

    def __str__(self) -> str:
        """Return the number of attempts and successes as text."""
        return f"worked {self.worked} out of {format_count(self.tried, 'time')}" if self.tried else "not tried"


CONTEXT_CHARACTERS = 1_200
"""Maximum length of a check's output in a plan message."""
TEMPLATE_CHARACTERS = 2_000
"""Maximum length of a stored diff. The complete diff is in the checkpoint."""
LINE_CHARACTERS = 300
TITLE_CHARACTERS = 200
STEPS_LIMIT = 10
FACT_CHARACTERS = 2_000
KEY_CHARACTERS = 120


class Kind(StrEnum):
    """The kind of a memory entry."""

    FAILURE = "failure"
    PATTERN = "pattern"
    FACT = "fact"


class SeenFailure(Value):
    """Failure of a check, as recorded in the memory."""

    signature: str
    """Hash that is the same for failures with the same cause."""
    type: str = ""
    """Exception, lint rule or tool that failed."""
    check: str = ""
    """Failing command."""
    line: str
    """Most informative line of the output, without the parts that change between runs. Searches match this line."""
    context: str = ""
    """End of the output, at most `CONTEXT_CHARACTERS` characters."""
    workflow_id: str = ""
    """Id of the episode that recorded the failure."""
    iteration: int = 0
    at: datetime


class Pattern(Value):
    """A reusable solution to a kind of failure."""

    problem_type: str = ""
    title: str = ""
    steps: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands as argument lists, or an empty tuple if the steps were not commands."""
    code_template: str = ""
    """Diff of the production code, at most `TEMPLATE_CHARACTERS` characters."""
    test_template: str = ""
    """Diff of the tests, at most `TEMPLATE_CHARACTERS` characters."""
    workflow_id: str = ""
    """Id of the episode that recorded the pattern."""
    iteration: int = 0

    @property
    def titles(self) -> tuple[str, ...]:
        """One title per command."""
        return self.steps if len(self.steps) == len(self.commands) else (self.title,) * len(self.commands)

    @property
    def id(self) -> str:
        """ID within the project, consisting of 16 hexadecimal digits.

        The same commands always get the same ID, regardless of the planner.
        """
        content: Any = self.commands or (self.steps, self.code_template, self.test_template)
        return hashlib.sha256(json.dumps(content).encode("utf-8", "replace")).hexdigest()[:16]


class Outcome(Value):
    """Result of an attempt to fix a failure with a pattern."""

    signature: str
    pattern: str
    """Id of the pattern."""
    worked: bool
    key: str
    """Idempotency key of the attempt."""
    at: datetime


class Fact(Value):
    """Named statement about a project, stored in the memory."""

    key: str
    text: str
    source: str = ""
    """Author of the fact: an episode or a person."""
    at: datetime | None = None


class Query(Value):
    """Query for searching the memory."""

    text: str
    """Command output, its last line, or free text."""
    signature: str = ""
    """Signature of the failure, if known. Exact matches come first."""
    limit: int = 3
    solved: bool = True
    """True to return only failures with a known solution."""
    in_words: bool = False
    """True for free text written by a person or a model. This lowers the similarity threshold."""


class Match(StrEnum):
    """How a search result matches the query."""

    SIGNATURE = "signature"
    SIMILAR = "similar"


class Recollection(Value):
    """Past failure with its solution and evidence."""

    failure: str
    """Signature of the failure."""
    type: str = ""
    line: str
    match: Match
    score: float
    """1 if the signatures are equal, otherwise the similarity from 0 to 1."""
    pattern: Pattern | None = None
    """Best solution, or None if the failure was never solved."""
    evidence: Evidence = Evidence.model_construct()
    """Attempts to fix this failure with the pattern."""
    check: str = ""
    """Failing command that triggered the search."""

    @property
    def shown(self) -> str:
        """Kind of match and evidence, as text."""
        match_text = "the same failure" if self.match is Match.SIGNATURE else f"a similar failure ({self.score:.2f})"
        return f"{match_text}; {self.evidence}" if self.pattern else f"{match_text}; never solved"


class Entry(Value):
    """Row in a list of memory entries."""

    id: str
    kind: Kind
    type: str = ""
    text: str
    times: int = 1
    """Number of times that a failure occurred or a pattern was used."""
    evidence: Evidence = Evidence.model_construct()
    at: datetime | None = None


class Details(Value):
    """Full details of a memory entry."""

    entry: Entry
    check: str = ""
    context: str = ""
    pattern: Pattern | None = None
    related: tuple[Entry, ...] = ()
    """Patterns that solved this failure, or failures that this pattern solved."""
    embedder: str = ""
    """Embedding model used for the entry's vector, or "" if the entry has no vector."""
    dimension: int = 0


class MemoryStats(Value):
    """The size of a project's memory, and how useful it has been."""

    project: str
    failures: int = 0
    solved: int = 0
    patterns: int = 0
    facts: int = 0
    tried: int = 0
    worked: int = 0
    embedders: Mapping[str, int] = Field(default_factory=dict)
    """Number of rows per embedding model."""


LEXICAL_FLOOR = 0.35
"""Minimum share of the highest possible BM25 score for a match based on words alone."""


class Profile(NamedTuple):
    """Similarity thresholds of an embedding model."""

    threshold: float
    """Minimum cosine between two lines about the same failure."""
    loose: float
    """Minimum cosine if one of the two lines is free text."""
    lexical_weight: float = 0.15
    """Weight of the BM25 share relative to the cosine."""

    def in_words(self) -> "Profile":
        """Return a profile for free-text queries.

        The profile ignores word scores, because such a query often shares no words with the matching entry.
        """
        return self._replace(threshold=self.loose, lexical_weight=0.0)


# Thresholds depend on the model and on the compared texts; tests/benchmarks/memory.py measures them on 60 failures.
HASHING = Profile(threshold=0.35, loose=0.15)
"""Thresholds for hashed n-grams, which are purely lexical. They keep 97 % of the correct matches and 1 % of the wrong
ones.
"""
MINILM = Profile(threshold=0.5, loose=0.2)
"""Thresholds for `all-MiniLM-L6-v2`. They keep 100 % of the correct matches and 4 % of the wrong ones; for free text,
67 % and 9 %. At a threshold of 0.65, no free-text matches remain.
"""
OPENAI = Profile(threshold=0.6, loose=0.35)
"""Common thresholds for `text-embedding-3-large`. They have not been measured."""


class SearchHit(NamedTuple):
    """Search result with its score."""

    id: str
    score: float


def fuse_scores(
    vectors: Mapping[str, float], word_scores: Mapping[str, float], profile: Profile | None, *, highest: float
) -> list[SearchHit]:
    """Combine the scores of both search methods.

    Return the results above the thresholds, best first.

    Args:
        vectors: cosine similarity of each result.
        word_scores: BM25 score of each result.
        profile: profile of the embedder. None if there are no vectors.
        highest: BM25 score of the query against itself.
    """
    shares = {name: min(score / highest, 1.0) if highest > 0 else 0.0 for name, score in word_scores.items()}
    results: list[SearchHit] = []
    for name in {*vectors, *shares}:
        cosine, share = vectors.get(name, 0.0), shares.get(name, 0.0)
        if share < LEXICAL_FLOOR and (profile is None or cosine < profile.threshold):
            continue
        score = share
        if profile is not None and name in vectors:
            weight = profile.lexical_weight
            # A sum instead of fused ranks: RRF lowers the mean reciprocal rank of prose from 0.71 to 0.40 on MiniLM.
            score = (cosine + weight * share) / (1 + weight)
        results.append(SearchHit(name, round(score, 4)))
    return in_order(results)


def in_order(results: Iterable[SearchHit]) -> list[SearchHit]:
    """Sort results by descending score. Results with the same score are sorted by ID."""
    return sorted(results, key=lambda one: (-one.score, one.id))


# Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).
K1 = 1.2
B = 0.75
TERMS_LIMIT = 64
TERM_CHARACTERS = 64
_WORD = re.compile(r"[A-Za-z]+|\d+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def terms(text: str) -> Counter[str]:
    """Count the words in a text. The parts of compound names are counted as well."""
    counts: Counter[str] = Counter()
    for name in re.findall(r"\w+", text):
        counts[name.lower()[:TERM_CHARACTERS]] += 1
        parts = [part.lower() for token in _WORD.findall(name) for part in _HUMP.findall(token)]
        if len(parts) > 1:
            counts.update(part[:TERM_CHARACTERS] for part in parts)
    # Bounds the statement that looks the words up.
    return Counter(dict(counts.most_common(TERMS_LIMIT)))


class Posting(NamedTuple):
    """Occurrences of a word in one document of the index."""

    document: str
    times: int
    length: int
    """Number of words in the document."""


def bm25(
    postings: Mapping[str, list[Posting]], frequencies: Mapping[str, int], *, documents: int, average: float
) -> dict[str, float]:
    """Return the BM25 score of each document that contains at least one of the words.

    Args:
        postings: occurrences per query word.
        frequencies: number of documents per word.
        documents: total number of documents.
        average: mean document length in words.
    """
    scores: dict[str, float] = {}
    for term, occurrences in postings.items():
        weight = idf(frequencies.get(term, 0), documents)
        for posting in occurrences:
            scores[posting.document] = scores.get(posting.document, 0.0) + weight * _saturate(posting, average)
    return scores


def self_score(query: Mapping[str, int], frequencies: Mapping[str, int], *, documents: int, average: float) -> float:
    """Return the score of the query against itself, which is the upper bound on all scores."""
    length = sum(query.values())
    return sum(
        idf(frequencies.get(term, 0), documents) * _saturate(Posting("", count, length), average)
        for term, count in query.items()
    )


def idf(frequency: int, documents: int) -> float:
    """Return the inverse document frequency of a word."""
    # Never negative, unlike the original formula for words in more than half of the documents.
    return math.log1p((documents - min(frequency, documents) + 0.5) / (frequency + 0.5))


def _saturate(posting: Posting, average: float) -> float:
    length = posting.length / average if average else 1.0
    return posting.times * (K1 + 1) / (posting.times + K1 * (1 - B + B * length))


NAME = "hashing-3-5"
"""Model name. Change it whenever the vectors change."""
SHORTEST, LONGEST = 3, 5
TEXT_CHARACTERS = 2_000


def hash_text(text: str, dimension: int) -> "array[float]":
    """Hash text into a float32 unit vector of length `dimension`."""
    counts: Counter[str] = Counter()
    for token in text.lower()[:TEXT_CHARACTERS].split():
        # The spaces make the ends of a word differ from its middle.
        marked = f" {token} "
        for size in range(SHORTEST, LONGEST + 1):
            counts.update(marked[at : at + size] for at in range(len(marked) - size + 1))
    vector = [0.0] * dimension
    for gram, count in counts.items():
        # Not `hash`, which is randomized per process, while vectors are stored.
        code = zlib.crc32(gram.encode("utf-8", "replace"))
        # The highest bit is the sign, so that collisions cancel out on average (Weinberger et al. 2009).
        # Damped by the logarithm, so that a repeated run of characters does not dominate.
        vector[(code & 0x7FFFFFFF) % dimension] += (1 + math.log(count)) * (-1 if code >> 31 else 1)
    return unit(vector)


def unit(values: Sequence[float]) -> "array[float]":
    """Scale a vector to length 1. A zero vector is returned unchanged."""
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return array("f", (value / length for value in values))


class Embedder(Protocol):
    """Maps texts to vectors whose cosine measures similarity."""

    name: str
    """Model name, which is stored with each vector. Vectors from different models are never compared."""
    dimension: int
    """Vector length."""
    profile: Profile
    """Similarity thresholds for this embedder."""

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return a float32 unit vector for each text. This call blocks.

        Raises:
            ServiceUnavailableError: the model cannot be reached (retryable).
        """
        ...


class HashingEmbedder:
    """Embedder that hashes character n-grams. No model is needed.

    Texts with similar spelling get similar vectors, regardless of their meaning.
    """

    name = NAME
    profile = HASHING

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> "list[array[float]]":
        """Return one vector of hashed n-grams for each text."""
        return [hash_text(text, self.dimension) for text in texts]
