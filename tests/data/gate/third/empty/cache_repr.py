from cache import Cache


def test_cache_object():
    cache = Cache(4)
    cache.put("a", 1)
    cache.get("a")
    assert cache
    assert str(cache)
    assert repr(cache) != ""
