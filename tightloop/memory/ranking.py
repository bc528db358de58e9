"""How what was found by words and what was found by vectors become one list."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LEXICAL_FLOOR = 0.35
"""Share of the highest possible BM25 score from which words alone are enough."""


class Profile(NamedTuple):
    """How the scores of an embedder are to be read."""

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
