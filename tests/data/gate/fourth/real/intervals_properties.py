from hypothesis import given
from hypothesis import strategies as st

from intervals import covers, length, merge

pairs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


@given(pairs)
def test_length_counts_covered_numbers(intervals):
    merged = merge(intervals)
    covered = [n for n in range(-5, 80) if covers(merged, n)]
    assert length(intervals) == len(covered)


@given(pairs, st.randoms())
def test_order_does_not_matter(intervals, random):
    shuffled = list(intervals)
    random.shuffle(shuffled)
    assert merge(shuffled) == merge(intervals)
