import pytest

from cache import Cache


def test_size_must_be_positive():
    with pytest.raises(ValueError) as info:
        Cache(0)
    assert "room" in str(info.value)
    assert Cache(1).size == 1


def test_reading_keeps_a_value_alive():
    cache = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert cache.get("b", "gone") == "gone"
    assert cache.get("a") == 1
