from hypothesis import given, strategies as st

from store.files import merge

values = st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6)
settings = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(settings, settings)
def test_merge(first, second):
    before = repr(first)
    merged = merge(first, second)
    assert set(merged) == set(first) | set(second)
    assert merge(first, {}) == first
    assert merge(merged, second) == merged
    assert repr(first) == before
