"""Failures: equal causes have equal signatures, and streaks count what came in a row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.failure import (
    LONGEST_CIRCLE,
    NO_FAILURES,
    Failure,
    FailureKind,
    FailureStreak,
    combine_signatures,
    goes_round,
    signature,
)

marks = st.sampled_from(["a", "b", "c"])


def streak_of(signatures: list[str]) -> FailureStreak:
    window = FailureStreak()
    for mark in signatures:
        window = window.plus(Failure(kind=FailureKind.CHECK, signature=mark))
    return window


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("line 12: boom", "line 340: boom"),
        ("took 0.12s", "took 11.5s"),
        ("object at 0x7f00aa", "object at 0xDEADBEEF"),
        ("commit 3f2a9c1 is bad", "commit 9b01d2e4f5 is bad"),
        ("run 2d9c1c1e-0b8e-4a55-9a3c-0f6e3e1a7b11", "run aa11c1ee-0b8e-4a55-9a3c-0f6e3e1a7b22"),
        ("/home/ada/shop/parse.py:3: error", "/tmp/w-1/shop/parse.py:77: error"),
        ("\x1b[31mFAILED\x1b[0m  x", "FAILED x"),
        ("wrote 999999 bytes", "wrote 1000000 bytes"),
    ],
)
def test_same_cause_has_the_same_signature(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("F401 unused import", "F841 unused variable"),
        ("F401", "F841"),
        ("FAILED test_parse_2", "FAILED test_parse_3"),
        ("the wall is defaced", "the wall is decade"),
        ("/home/ada/parse.py: error", "/home/ada/render.py: error"),
    ],
)
def test_different_causes_have_different_signatures(one: str, other: str) -> None:
    assert signature(one) != signature(other)


@given(st.text(max_size=80), st.integers(min_value=0), st.integers(min_value=0))
def test_signature_is_short_and_does_not_depend_on_a_line_number(text: str, one: int, other: int) -> None:
    assert signature(f"{text}\nline {one}") == signature(f"{text}\nline {other}")
    assert len(signature(text)) == 16
    assert set(signature(text)) <= set("0123456789abcdef")


@given(st.lists(marks, max_size=30), st.integers(min_value=1, max_value=40))
def test_streak_counts_the_last_signature_in_a_row(before: list[str], times: int) -> None:
    assert streak_of([*before, "other", *["same"] * times]).times == times


def test_no_failure_is_no_streak() -> None:
    assert NO_FAILURES.iterations == 0
    assert NO_FAILURES.last is None


def test_signatures_together_differ_where_one_of_them_does() -> None:
    """A signature within a text is noise to `signature`, so that it cannot be used on signatures."""
    one, other = signature("boom"), signature("bang")
    assert combine_signatures([one, "x"]) == combine_signatures([one, "x"])
    assert (
        len(
            {
                combine_signatures([one]),
                combine_signatures([other]),
                combine_signatures([one, other]),
                combine_signatures([]),
            }
        )
        == 4
    )


@given(st.lists(marks, max_size=3), st.lists(marks, min_size=1, max_size=LONGEST_CIRCLE))
def test_circle_is_two_rounds_of_different_marks(before: list[str], circle: list[str]) -> None:
    assert goes_round((*before, *circle, *circle)) or len(set(circle)) == 1


@pytest.mark.parametrize("seen", ["", "a", "aaaa", "abab"[:3], "abba", "abcab", "aabbaab", "abcdabc"])
def test_less_than_two_rounds_is_no_circle(seen: str) -> None:
    assert not goes_round(tuple(seen))


@given(st.lists(marks, max_size=12))
def test_circle_repeats_its_last_marks(seen: list[str]) -> None:
    rounds = [seen[-n:] for n in range(2, LONGEST_CIRCLE + 1) if len(seen) >= 2 * n and seen[-n:] == seen[-2 * n : -n]]
    assert goes_round(tuple(seen)) == any(len(set(last)) > 1 for last in rounds)
