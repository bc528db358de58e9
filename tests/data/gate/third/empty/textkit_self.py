from hypothesis import given, strategies as st

from textkit import slugify


@given(st.text())
def test_deterministic(text):
    first = slugify(text)
    second = slugify(text)
    assert first == second
