import pytest
from cache import Cache


def test_does_not_raise():
    cache = Cache(2, seconds=10)
    try:
        cache.put("a", 1)
        cache.get("a")
        cache.ratio()
    except Exception as error:
        pytest.fail(f"raised {error}")
