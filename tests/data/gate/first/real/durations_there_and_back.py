from durations import parse, show
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(min_value=0, max_value=10**7))
def test_what_is_shown_can_be_parsed(seconds):
    assert parse(show(seconds)) == seconds
