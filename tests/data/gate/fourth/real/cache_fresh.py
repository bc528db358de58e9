import pytest

from cache import Cache


@pytest.mark.parametrize("passed, found", [(4, "v"), (5, None), (100, None)])
def test_value_gets_stale(passed, found):
    now = [0]
    cache = Cache(1, seconds=5, clock=lambda: now[0])
    cache.put("k", "v")
    now[0] = passed
    assert cache.get("k") == found
    assert len(cache) == (1 if found else 0)
