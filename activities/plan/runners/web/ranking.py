"""Ranking texts for a query: Okapi BM25 over words, and simple rules for documents of the web. Deterministic."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

K1 = 1.5
B = 0.75
"""Usual parameters (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009, section 3.4)."""
WORD_CHARACTERS = 60
_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\d])(?=\d)")

PRIMARY = (
    "rfc-editor.org",
    "ietf.org",
    "w3.org",
    "whatwg.org",
    "iso.org",
    "nist.gov",
    "unicode.org",
    "ecma-international.org",
)
"""Hosts of standards: primary sources."""
OFFICIAL = ("docs.", "developer.", "developers.", "spec.", "standards.", "man.", "wiki.")
"""First labels of hosts that keep documentation."""


def words(text: str) -> list[str]:
    """Return the words of a text or of code in lower case. `maxRetries` is three: its two parts and the whole."""
    found: list[str] = []
    for word in _WORD.findall(text):
        if len(word) > WORD_CHARACTERS:
            continue
        parts = _CAMEL.split(word)
        found.append(word.lower())
        if len(parts) > 1:
            found += [part.lower() for part in parts]
    return found


class Scorer:
    """Scores texts for one query, given all of them."""

    def __init__(self, query: str, texts: Sequence[Counter[str]]) -> None:
        """Take the query and the words of all texts."""
        self._terms = sorted(set(words(query)))
        lengths = [sum(text.values()) for text in texts]
        self._average = sum(lengths) / len(lengths) if lengths else 1.0
        containing = {term: sum(term in text for text in texts) for term in self._terms}
        self._weights = {
            # With 1 added, as in Lucene: a word that most texts contain never counts against a text.
            term: math.log(1 + (len(texts) - count + 0.5) / (count + 0.5))
            for term, count in containing.items()
            if count
        }

    def score(self, text: Counter[str]) -> float:
        """Return how well a text fits; 0: not at all."""
        long = K1 * (1 - B + B * sum(text.values()) / (self._average or 1.0))
        return sum(
            weight * text[term] * (K1 + 1) / (text[term] + long)
            for term, weight in self._weights.items()
            if term in text
        )


class Source(NamedTuple):
    """What is known of a document when it is ranked."""

    url: str
    title: str
    text: str


def source_score(source: Source, query: str) -> float:
    """Return how good a source a document is: what it says of the query, and where it comes from. 0 to about 2.5.

    Coverage of the query by the text (to 1) and by the title (to 0.5), plus 0.6 for a host of standards, 0.4 for one
    of documentation, 0.1 for https; a document without text has nothing but its origin.
    """
    terms = set(words(query))
    said, titled = set(words(source.text)), set(words(source.title))
    covered = len(terms & said) / len(terms) if terms else 0.0
    headed = len(terms & titled) / len(terms) if terms else 0.0
    return round(covered + headed / 2 + _origin(source.url), 4)


def _origin(url: str) -> float:
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = 0.1 if parts.scheme == "https" else 0.0
    if any(host == name or host.endswith("." + name) for name in PRIMARY):
        return secure + 0.6
    return secure + (0.4 if host.startswith(OFFICIAL) or "/docs/" in parts.path else 0.0)
