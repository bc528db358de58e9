from cache import Cache


def test_overwriting_moves_to_the_end():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    cache.put("c", 4)
    assert cache.get("b") is None
    assert cache.get("a") == 3
    assert len(cache) == 2
