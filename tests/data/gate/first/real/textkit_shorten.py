from hypothesis import given
from hypothesis import strategies as st
from textkit import shorten


@given(st.text(alphabet="ab ", max_size=40), st.integers(min_value=3, max_value=20))
def test_it_fits(text, width):
    short = shorten(text, width)
    assert len(short) <= width
    assert short == text or short.endswith("...")
