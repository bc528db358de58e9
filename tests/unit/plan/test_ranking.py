"""Ranking: words of code and prose, BM25, and where documents come from."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.plan.runners.fetch import Scorer, Source, source_score, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("maxRetries", ["maxretries", "max", "retries"]),
        ("max_retries", ["max", "retries"]),
        ("HTTPServer2", ["httpserver2", "http", "server", "2"]),
        ("Größe", ["größe"]),
        ("-- ?", []),
        ("x" * 61, []),
    ],
)
def test_words_of_names_are_found_alone_too(text: str, found: list[str]) -> None:
    assert sorted(words(text)) == sorted(found)


def test_rare_words_and_short_texts_count_more() -> None:
    texts = [Counter(words(text)) for text in ("the retry", "the the the", "the retry " + "filler " * 50)]
    scores = [Scorer("the retry", texts).score(text) for text in texts]
    assert scores[0] > scores[2] > scores[1] > 0


@given(st.lists(st.text("ab ", max_size=20), min_size=1, max_size=6), st.text("abc ", max_size=10))
def test_score_is_above_zero_only_with_a_common_word(texts: list[str], query: str) -> None:
    counted = [Counter(words(text)) for text in texts]
    scorer = Scorer(query, counted)
    for text in counted:
        assert (scorer.score(text) > 0) is bool(set(words(query)) & set(text))


def test_standards_and_documentation_stand_before_others() -> None:
    urls = [
        "https://www.rfc-editor.org/rfc/rfc9110",
        "https://docs.example.org/a",
        "https://blog.example.org/a",
        "http://x.org",
    ]
    scores = [source_score(Source(url, "Retries", "retry a request"), "retry request") for url in urls]
    assert scores == sorted(scores, reverse=True)
    assert source_score(Source(urls[3], "Retry", "retry request"), "retry request") > source_score(
        Source(urls[0], "", ""), "retry request"
    )
