"""The change between two plans is stored exactly and shown so that a person can read it."""

import random
import time

import pytest
from diff_match_patch import diff_match_patch
from hypothesis import given
from hypothesis import strategies as st

from tightloop.episode.messages import DELTA_CHARACTERS, make_delta, show_change, show_delta

OLD = "# Plan\n\n- Fix the parser in src/a.py\n- Run tests\n\n# Context\nnothing much\n"
NEW = "# Plan\n\n- Fix the lexer in src/b.py\n- Run tests\n- Write docs\n\n# Context\nnothing much at all\n"
PARTS = ("a", "line\n", "\r\n", "\0", "\u2028", "e\u0301", "\N{GRINNING FACE}", "\t", "%41", "+", "=1", "[-", "+}", "")
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=20), max_size=12).map("".join)


@given(old=TEXTS, new=TEXTS)
def test_delta_of_any_text_leads_to_the_new_text_by_the_library_too(old: str, new: str) -> None:
    delta = make_delta(old, new)
    assert delta is not None
    engine = diff_match_patch()
    assert engine.diff_text2(engine.diff_fromDelta(old, delta.delta)) == new
    assert show_delta(old, delta) == show_change(old, new)


def test_whole_words_and_lines_are_marked_and_the_rest_is_left_out() -> None:
    assert show_change(OLD, NEW).splitlines() == [
        "- Fix the [-parser-]{+lexer+} in src/[-a-]{+b+}.py",
        "{+- Write docs+}",
        "nothing much{+ at all+}",
    ]
    assert show_change(OLD, OLD) == ""


def test_delta_is_refused_for_another_text_and_where_it_is_damaged() -> None:
    delta = make_delta(OLD, NEW)
    assert delta is not None
    with pytest.raises(ValueError, match="the delta is for the plan"):
        show_delta(NEW, delta)
    for body in ("=999999", "=-1", "+%ff", "=3", "?1", delta.delta.replace("lexer", "boxer")):
        with pytest.raises(ValueError):
            show_delta(OLD, delta.evolve(delta=body))


def test_long_and_hard_texts_take_a_bounded_time() -> None:
    assert make_delta("a" * DELTA_CHARACTERS, "b") is None
    noise = random.Random(1)
    old, new = (" ".join(str(noise.random()) for _ in range(10_000)) for _ in range(2))
    begun = time.process_time()
    delta = make_delta(old, new)
    assert delta is not None
    assert "{+" in show_delta(old, delta)
    assert time.process_time() - begun < 5
