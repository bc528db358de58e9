"""Memory of failures and their solutions: models and ranking."""

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

from tightloop.value import Value, counted

Z = 1.96
"""Of the normal distribution, for a 95 % interval."""
LEAST_TRIES = 3
LEAST_RATE = 0.1
"""One success of three is 0.06, one of two 0.09, two of five 0.12."""


def wilson(worked: int, tried: int) -> float:
    """Return the lower bound of the success rate (Wilson 1927, 95 %): 1 of 1 is 0.21, 9 of 10 are 0.60."""
    if tried <= 0:
        return 0.0
    rate, square = worked / tried, Z * Z
    spread = Z * math.sqrt((rate * (1 - rate) + square / (4 * tried)) / tried)
    return max((rate + square / (2 * tried) - spread) / (1 + square / tried), 0.0)


class Evidence(Value):
    """Counts of tries and successes."""

    worked: int = 0
    tried: int = 0

    @property
    def rate(self) -> float:
        """The success rate that it has at least."""
        return wilson(self.worked, self.tried)

    @property
    def retired(self) -> bool:
        """True if it failed too often to be shown again."""
        return self.tried >= LEAST_TRIES and self.rate < LEAST_RATE

    def __str__(self) -> str:
        """Return the evidence in words."""
        return f"worked {self.worked} of {counted(self.tried, 'time')}" if self.tried else "not tried"


CONTEXT_CHARACTERS = 1_200
"""As many as travel of a check's output."""
TEMPLATE_CHARACTERS = 2_000
"""Of a diff: the rest of a longer one is in the checkpoint that it came from."""
LINE_CHARACTERS = 300
TITLE_CHARACTERS = 200
STEPS_LIMIT = 10
FACT_CHARACTERS = 2_000
KEY_CHARACTERS = 120


class Kind(StrEnum):
    """Kind of an entry."""

    FAILURE = "failure"
    PATTERN = "pattern"
    FACT = "fact"


class SeenFailure(Value):
    """A failure of a check, as it appeared."""

    signature: str
    """Equal for equal causes."""
    type: str = ""
    """An exception, a lint rule, or the tool that failed."""
    check: str = ""
    """The command that failed."""
    line: str
    """The line that says most, without what changes from run to run: what is searched."""
    context: str = ""
    """End of the output, at most `CONTEXT_CHARACTERS`."""
    workflow_id: str = ""
    """The episode that saw it."""
    iteration: int = 0
    at: datetime


class Pattern(Value):
    """A repeatable solution of failures."""

    problem_type: str = ""
    title: str = ""
    steps: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    """Programs and arguments, where the steps were commands."""
    code_template: str = ""
    """The change of the code, at most `TEMPLATE_CHARACTERS` of its diff."""
    test_template: str = ""
    """The change of the tests."""
    workflow_id: str = ""
    """The episode that found it."""
    iteration: int = 0

    @property
    def titles(self) -> tuple[str, ...]:
        """A title for each command."""
        return self.steps if len(self.steps) == len(self.commands) else (self.title,) * len(self.commands)

    @property
    def id(self) -> str:
        """Id within a project, 16 hexadecimal digits: the same commands are the same pattern, whoever plans them."""
        said: Any = self.commands or (self.steps, self.code_template, self.test_template)
        return hashlib.sha256(json.dumps(said).encode("utf-8", "replace")).hexdigest()[:16]


class Outcome(Value):
    """One use of a pattern against a failure, and whether its check turned green."""

    signature: str
    pattern: str
    """Its id."""
    worked: bool
    key: str
    """Of the use: entered twice it counts once."""
    at: datetime


class Fact(Value):
    """Something about a project, under a name."""

    key: str
    text: str
    source: str = ""
    """Who says so: an episode, or a person."""
    at: datetime | None = None


class Query(Value):
    """A question to the memory."""

    text: str
    """An output, its last line, or words."""
    signature: str = ""
    """Of the failure, where it is known: what fits exactly comes first."""
    limit: int = 3
    solved: bool = True
    """Only what was solved before."""
    in_words: bool = False
    """Asked by a person or a model in their own words, not by an output: what is less alike counts, too."""


class Match(StrEnum):
    """Why something was found."""

    SIGNATURE = "signature"
    SIMILAR = "similar"


class Recollection(Value):
    """A failure of earlier, what solved it, and how often."""

    failure: str
    """Its signature."""
    type: str = ""
    line: str
    match: Match
    score: float
    """1 for the same signature, else how similar the failures are, from 0 on."""
    pattern: Pattern | None = None
    """What solved it, the best first; None: nothing did yet."""
    evidence: Evidence = Evidence.model_construct()
    """How often it was tried against this failure, and worked."""
    check: str = ""
    """The failing command that it was looked up for."""

    @property
    def shown(self) -> str:
        """The evidence in words."""
        seen = "the same failure" if self.match is Match.SIGNATURE else f"a similar failure ({self.score:.2f})"
        return f"{seen}; {self.evidence}" if self.pattern else f"{seen}; never solved"


class Entry(Value):
    """One line of a list."""

    id: str
    kind: Kind
    type: str = ""
    text: str
    times: int = 1
    """How often a failure was seen, or a pattern used."""
    evidence: Evidence = Evidence.model_construct()
    at: datetime | None = None


class Details(Value):
    """Everything about one entry."""

    entry: Entry
    check: str = ""
    context: str = ""
    pattern: Pattern | None = None
    related: tuple[Entry, ...] = ()
    """What solved the failure, or which failures the pattern solved."""
    embedder: str = ""
    """The model of its vector; empty: it has none."""
    dimension: int = 0


class MemoryStats(Value):
    """Size and usefulness of the memory of a project."""

    project: str
    failures: int = 0
    solved: int = 0
    patterns: int = 0
    facts: int = 0
    tried: int = 0
    worked: int = 0
    embedders: Mapping[str, int] = Field(default_factory=dict)
    """Rows by model of their vectors."""


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
