"""The rules of the memory: how much a rate is worth, what is alike, and what comes first."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.memory import (
    HASHING,
    LEXICAL_FLOOR,
    MINILM,
    TERMS_LIMIT,
    Evidence,
    HashingEmbedder,
    Pattern,
    Posting,
    bm25,
    fuse_scores,
    self_score,
    terms,
    wilson,
)

counts = st.integers(0, 200)
scores = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), max_size=6)


@pytest.mark.parametrize(("worked", "tried", "bound"), [(1, 1, 0.21), (3, 3, 0.44), (9, 10, 0.60), (50, 60, 0.72)])
def test_lower_bound_is_that_of_wilson(worked: int, tried: int, bound: float) -> None:
    assert round(wilson(worked, tried), 2) == bound


@given(counts, counts)
def test_bound_is_below_the_rate_and_grows_with_success(worked: int, failed: int) -> None:
    tried = worked + failed
    assert 0 <= wilson(worked, tried) <= (worked / tried if tried else 0) + 1e-9
    assert wilson(worked + 1, tried + 1) > wilson(worked, tried)
    assert wilson(worked, tried + 1) <= wilson(worked, tried)


@pytest.mark.parametrize(
    ("worked", "tried", "retired"), [(1, 1, False), (1, 2, False), (1, 3, True), (2, 5, False), (2, 9, True)]
)
def test_pattern_is_retired_once_it_failed_too_often(worked: int, tried: int, retired: bool) -> None:
    assert Evidence(worked=worked, tried=tried).retired is retired


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parse_order_total", {"parse_order_total", "parse", "order", "total"}),
        ("HTTPServerError", {"httpservererror", "http", "server", "error"}),
        ("total", {"total"}),
        ("", set()),
    ],
)
def test_names_count_as_their_parts_too(name: str, words: set[str]) -> None:
    assert set(terms(name)) == words


@given(st.text(max_size=3_000))
def test_text_has_a_bounded_number_of_words(text: str) -> None:
    assert len(terms(text)) <= TERMS_LIMIT


def test_rare_word_counts_more_and_nothing_is_more_alike_than_the_query_itself() -> None:
    documents = ["error in alpha", "error in beta", "error in gamma"]
    postings: dict[str, list[Posting]] = {}
    for name in documents:
        for word, count in terms(name).items():
            postings.setdefault(word, []).append(Posting(name, count, 3))
    frequencies = {word: len(found) for word, found in postings.items()}
    query = terms("error in beta")
    found = bm25({word: postings[word] for word in query}, frequencies, documents=3, average=3)
    assert max(found, key=lambda name: found[name]) == "error in beta"
    assert found["error in alpha"] == found["error in gamma"]
    assert found["error in beta"] == pytest.approx(self_score(query, frequencies, documents=3, average=3))


@given(st.text(max_size=200), st.sampled_from([64, 384, 1536]))
def test_hashed_vector_has_length_one_or_is_empty(text: str, dimension: int) -> None:
    [vector] = HashingEmbedder(dimension).embed([text])
    length = math.sqrt(sum(value * value for value in vector))
    assert len(vector) == dimension
    assert length == pytest.approx(1, abs=1e-3) or length == 0


def test_alike_words_are_nearer_than_others() -> None:
    one, alike, other = HashingEmbedder(384).embed(
        ["cannot import name parse_order", "cannot import name parse_orders", "the disk has no room left"]
    )
    near, far = (sum(a * b for a, b in zip(one, each, strict=True)) for each in (alike, other))
    assert near > 0.8 > 0.3 > far


@given(scores, scores)
def test_everything_that_is_shown_is_alike_enough_and_in_order(
    vectors: dict[str, float], words: dict[str, float]
) -> None:
    found = fuse_scores(vectors, words, HASHING, highest=1.0)
    assert all(vectors.get(one.id, 0) >= HASHING.threshold or words.get(one.id, 0) >= LEXICAL_FLOOR for one in found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert all(0 <= one.score <= 1 for one in found)
    assert len({one.id for one in found}) == len(found)


def test_vectors_lead_and_words_decide_between_near_equals() -> None:
    prose = fuse_scores({"meant": 0.60, "worded": 0.40}, {"worded": 0.9}, MINILM, highest=1.0)
    assert prose[0].id == "meant"
    close = fuse_scores({"meant": 0.60, "worded": 0.59}, {"worded": 0.9}, MINILM, highest=1.0)
    assert close[0].id == "worded"


def test_question_in_words_is_not_pulled_to_what_shares_words() -> None:
    profile = MINILM.in_words()
    found = fuse_scores({"meant": 0.42, "worded": 0.40, "far": 0.1}, {"worded": 0.3}, profile, highest=1.0)
    assert [one.id for one in found] == ["meant", "worded"]


def test_without_vectors_words_alone_have_to_do() -> None:
    assert [one.id for one in fuse_scores({}, {"a": 0.9, "b": 0.1}, None, highest=1.0)] == ["a"]
    assert fuse_scores({}, {"a": 0.9}, None, highest=0.0) == []


def test_same_commands_are_the_same_pattern_and_other_changes_are_others() -> None:
    run = ("ruff", "check", "--fix")
    assert Pattern(title="a", commands=(run,)).id == Pattern(title="b", commands=(run,), code_template="+x").id
    assert Pattern(title="a", code_template="+x").id != Pattern(title="a", code_template="+y").id
